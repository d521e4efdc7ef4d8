"""Checks of a client before it computes: environment and learner must be those of its earlier rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fedforget.client_side.directory import OpenDirectory
from fedforget.errors import EnvironmentDiffers, LearnerDiffers, shown
from fedforget.store.environments import TrainedRounds
from fedforget.training.environment import arithmetic, numeric_differences


@dataclass(frozen=True, slots=True)
class Here:
    """A client's present numeric environment, and the names of the module's parts and of the loss."""

    environment: Mapping[str, str]
    learner: Mapping[str, str]


class Rules:
    """The rules of one client."""

    def __init__(self, state: OpenDirectory) -> None:
        self._state, self._record = state, state.record

    def before_training(self, round_: int, here: Here, *, mixed: bool) -> None:
        """Raise EnvironmentDiffers or LearnerDiffers unless both are those of the earlier rounds, or were compared."""
        elsewhere = self._elsewhere(self._record.environments.of_rounds(round_ - 1), here)
        if elsewhere and not mixed:
            raise self._environment_differs(elsewhere[0], here)
        self._require_learner(here)
        self._record.environments.begin(round_, here.environment)

    def before_repeating(self, round_: int, here: Here, *, bitwise: bool) -> None:
        """Raise EnvironmentDiffers if a bitwise comparison is asked of a round from another environment."""
        own = [each for each in self._record.environments.of_rounds(round_) if each.last_round >= round_]
        elsewhere = self._elsewhere(own, here)
        if elsewhere and bitwise:
            raise self._environment_differs(elsewhere[0], here)

    def repeated(self, here: Here, *, agrees: bool | None) -> None:
        """Record the names of a learner that repeated an earlier round: they may differ from then on."""
        if agrees and self._record.names("learner") not in ({}, dict(here.learner)):
            self._record.note(("learner renamed", {"compared": True}), learner=_text(here.learner))

    def environment(self) -> Mapping[str, str]:
        """Return the environment of the last round that was trained here; empty before the first."""
        trained = self._record.environments.of_rounds(2**62)
        return trained[-1].environment if trained else {}

    def _elsewhere(self, trained: list[TrainedRounds], here: Here) -> list[TrainedRounds]:
        return [each for each in trained if arithmetic(each.environment) != arithmetic(here.environment)]

    def _require_learner(self, here: Here) -> None:
        known = self._record.names("learner")
        if known == dict(here.learner):
            return
        if known and self._state.memory.witnesses(self._state.client):
            changed = sorted(name for name in {*known, *here.learner} if known.get(name) != here.learner.get(name))
            raise LearnerDiffers(
                f"client {shown(self._state.client)} has another model or loss than in its earlier rounds "
                f"({', '.join(changed[:3])}), and no earlier step was repeated to compare",
                hint="start its node with the model and the loss of the run; the server compares a renamed one itself",
            )
        self._record.note(learner=_text(here.learner))

    def _environment_differs(self, then: TrainedRounds, here: Here) -> EnvironmentDiffers:
        changes = "; ".join(numeric_differences(then.environment, here.environment))
        return EnvironmentDiffers(
            f"nothing was changed: client {shown(self._state.client)} trained {then} elsewhere ({changes})",
            hint="start its node where they were trained; or let the server give --recompute-all or --accept-mixed",
        )


def _text(names: Mapping[str, str]) -> str:
    return json.dumps(dict(names), sort_keys=True)
