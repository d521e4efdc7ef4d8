"""Check, before a run continues from kept rounds, that this learner and this machine trained them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import Server
from fedforget.algorithm.witness import Repetition, repeat_witness
from fedforget.errors import DataChanged, EnvironmentDiffers, InvalidInput, LearnerDiffers, RunDamaged
from fedforget.requests.intents import Intent
from fedforget.requests.lifecycle import Stage
from fedforget.session.engine import Engine
from fedforget.session.options import OtherEnvironment
from fedforget.session.pledge import pledged_elsewhere, repeat_pledge
from fedforget.store.environments import TrainedRounds
from fedforget.store.run_directory import OpenRun
from fedforget.training.environment import arithmetic, numeric_differences, numeric_environment
from fedforget.training.identity import differences, parts_of
from fedforget.training.streams import start_stream, stream_was_used

log = logging.getLogger("fedforget")


_OPEN_WITH = "open the run with the module and the loss that it was trained with"
_GIVE_DATA_OR_RECOMPUTE = (
    "give the data that leave once more, so that an earlier round can be repeated; or give --recompute-all "
    "(recompute_all=True) to compute all rounds anew with the module and the loss given"
)


@dataclass(slots=True)
class LearnerCheck:
    """What a session is about to do: go on after ``rounds`` and carry out ``requests``."""

    engine: Engine
    run: OpenRun
    server: Server
    rounds: int
    requests: Sequence[Request]
    _now: dict[str, str] = field(init=False)
    _elsewhere: list[TrainedRounds] = field(init=False)  # rounds of another environment
    _pending: list[Intent] = field(init=False)
    _names: dict[str, str] = field(init=False)
    _renamed: list[str] = field(init=False)
    _draws_differ: bool = field(init=False, default=False)  # random layers: another environment draws other numbers

    def __post_init__(self) -> None:
        run, model = self.run, self.engine.model
        self._now, self._names = numeric_environment(), parts_of(model.module, model.loss)
        trained = run.record.environments.of_rounds(run.server.rounds_done)
        self._elsewhere = [each for each in trained if arithmetic(each.environment) != arithmetic(self._now)]
        self._pending = run.record.batches.unfinished()
        self._renamed = differences(run.record.learner, self._names)

    def require(self, other: OtherEnvironment) -> bool:
        """Refuse to go on where another learner or environment computed the rounds. Changes no file of the function.

        Return whether steps were compared; else nothing was trained, or the caller accepts that nothing is known.
        """
        if other is OtherEnvironment.REFUSE:
            self._require_same_environment()
        found = self._repeat_steps()
        if found is None and other is not OtherEnvironment.RECOMPUTE and pledged_elsewhere(self._pending):
            raise self._begun_elsewhere()
        found = found or self._repeat_first_steps()
        if found is not None:
            self._require_agreement(found)
        elif self._draws_differ:
            log.warning(
                "only the structure of the learner could be compared with the one that trained %s", self.run.path
            )
        elif self._something_was_trained:
            self._require_consent(other)
        self._note_names(compared=found is not None)
        return found is not None

    def before_measuring(self) -> None:
        """Refuse to measure with another learner. Warn if nothing can be compared. Changes nothing."""
        try:
            found = self._repeat_steps() or self._repeat_first_steps()
        except (DataChanged, InvalidInput):  # measuring does not need the data that witnesses need
            found = None
        if found is not None:
            self._require_agreement(found)
        elif self._something_was_trained:
            log.warning("measured with a module that could not be compared with the one that trained %s", self.run.path)

    def _require_same_environment(self) -> None:
        """Refuse if rounds that stay are of another environment."""
        staying = [each for each in self._elsewhere if each.first_round <= self.rounds]
        if staying:
            raise _environment_differs(self.run, staying[0], self._now)

    def _begun_elsewhere(self) -> EnvironmentDiffers:
        return EnvironmentDiffers(
            f"nothing was changed: a request on {self.run.path} was begun in another environment, so this learner "
            "cannot be compared with the one that began it",
            hint="finish it where it was begun; or give --recompute-all (recompute_all=True) to compute all rounds "
            "here",
        )

    def _require_agreement(self, found: Repetition) -> None:
        if found.agrees is None:
            raise RunDamaged(
                f"{self.run.clients.database.path} is damaged: client {found.client} has no witness of round "
                f"{found.round}"
            )
        if not found.agrees:
            then = f"client {found.client} trained round {found.round}" if found.round else "the request began"
            raise self._learner_differs(f"the module or the loss computes something else than when {then}")

    @property
    def _something_was_trained(self) -> bool:
        """Whether rounds are kept, or were kept when a pending batch began."""
        server = self.run.server
        return bool(server.rounds_done and len(server.roster)) or any(
            intent.decision.rewind_to < intent.decision.goal for intent in self._pending
        )

    def _require_consent(self, other: OtherEnvironment) -> None:
        """Nothing shows which learner trained the rounds: go on only if all are computed anew with the one given."""
        if other is not OtherEnvironment.RECOMPUTE:
            why = "an unfinished request removed them" if self._pending else "data that they need are gone"
            raise self._learner_differs(
                f"no earlier step can be repeated to compare the module and the loss with those of the run: {why}",
                hint=_GIVE_DATA_OR_RECOMPUTE,
            )
        log.warning(
            "nothing shows that the module and the loss are those that trained %s: all rounds are computed anew with "
            "them",
            self.run.path,
        )
        if not self._renamed:
            self.run.record.note_learner(self._names, (), compared=False)

    def _learner_differs(self, what: str, hint: str = _OPEN_WITH) -> LearnerDiffers:
        why = f" ({'; '.join(self._renamed)})" if self._renamed else ""
        return LearnerDiffers(f"nothing was changed: {what}{why}", hint=hint)

    def _note_names(self, *, compared: bool) -> None:
        """Record the names of the learner if they are new."""
        if not self._renamed:
            return
        if compared:
            known = "the steps that were repeated agree"
        else:
            known = "nothing was compared" if self._something_was_trained else "no round was trained yet"
        log.warning("the learner is described otherwise than before (%s): %s", known, "; ".join(self._renamed))
        self.run.record.note_learner(self._names, self._renamed, compared=compared)

    def _repeat_steps(self) -> Repetition | None:
        """Repeat a witness; where none can be repeated, the pledge of a pending batch. None if there is neither."""

        def computed_here(round_: int) -> bool:
            return not any(each.first_round <= round_ <= each.last_round for each in self._elsewhere)

        found = repeat_witness(
            self.server,
            self.rounds,
            self.requests,
            all_clients=bool(self._renamed),
            comparable=computed_here,
            intact=self._has_its_draws,
        )
        return found or repeat_pledge(self.engine, self.run, self._pending)

    def _has_its_draws(self, _: Id) -> bool:
        """Return whether clients that lose data still draw what they drew: no batch is half applied."""
        batches = self.run.record.batches
        return all(batches.stage(intent) is not Stage.ACCEPTED for intent in self._pending)

    def _repeat_first_steps(self) -> Repetition | None:
        """Have all clients of a round from another environment repeat its first step, and compare within a tolerance.

        None if nothing can be compared.
        """
        if not self._elsewhere:
            return None
        start_stream(bytes(8))
        found = repeat_witness(
            self.server, self.rounds, self.requests, all_clients=True, intact=self._has_its_draws, bitwise=False
        )
        self._draws_differ = found is not None and stream_was_used() and not self._drew_alike(found.round)
        return None if self._draws_differ else found

    def _drew_alike(self, round_: int) -> bool:
        """Return whether random layers drew the same in the environment of a round as they do here."""
        return all(
            each.environment.get("random") == self._now["random"]
            for each in self._elsewhere
            if each.first_round <= round_ <= each.last_round
        )


def _environment_differs(run: OpenRun, then: TrainedRounds, now: dict[str, str]) -> EnvironmentDiffers:
    done = max([run.server.rounds_done, *(intent.decision.goal for intent in run.record.batches.unfinished())])
    steps = run.server.steps_of(done)
    changes = "; ".join(numeric_differences(then.environment, now))
    return EnvironmentDiffers(
        f"nothing was changed: {run.path} has {then} from another environment ({changes}), "
        "and continuing here would mix environments",
        hint=f"work where they were trained; or give --recompute-all (recompute_all=True) to compute all {done} rounds "
        f"({steps} steps) here, exact again; or --accept-mixed (accept_mixed=True), and the full receipt says so",
    )
