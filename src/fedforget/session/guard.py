"""Whether a learner is the one that computed the rounds that stay: this process compares its own, clients theirs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import Server
from fedforget.algorithm.ports import Federation, TrainTask
from fedforget.algorithm.witness import repeat_witness
from fedforget.errors import LearnerDiffers, TrainingFailed, shown
from fedforget.requests.intents import Pledge
from fedforget.session.on_demand import EngineOnDemand
from fedforget.session.options import OtherEnvironment, RoundOptions
from fedforget.store.run_directory import OpenRun

if TYPE_CHECKING:
    from fedforget.session.learner_check import LearnerCheck


class LearnerGuard(Protocol):
    """Compares learners before a run goes on from rounds that stay."""

    def require(self, rewind_to: int, leaving: Sequence[Request]) -> bool:
        """Raise LearnerDiffers or EnvironmentDiffers if another learner or environment computed them.

        Return whether anything could be compared.
        """

    def before_measuring(self) -> None:
        """Raise LearnerDiffers if the learner of this process did not compute the model that it is to measure."""

    def pledge(self, decision: Decision) -> Pledge | None:
        """Note which learner begins a batch that leaves no witness."""


@dataclass(frozen=True, slots=True)
class WitnessGuard:
    """The guard of a run whose clients are trained on this machine."""

    engine: EngineOnDemand
    run: OpenRun
    server: Server
    options: RoundOptions

    def require(self, rewind_to: int, leaving: Sequence[Request]) -> bool:
        server = self.run.server
        stays = min(server.kept_at_or_before(rewind_to), server.rounds_done)
        return self._check(stays, leaving).require(self.options.other_environment)

    def before_measuring(self) -> None:
        self._check(self.run.server.rounds_done, ()).before_measuring()

    def _check(self, stays: int, leaving: Sequence[Request]) -> LearnerCheck:
        from fedforget.session.learner_check import LearnerCheck  # noqa: PLC0415 (torch)

        return LearnerCheck(self.engine(), self.run, self.server, stays, leaving)

    def pledge(self, decision: Decision) -> Pledge | None:
        from fedforget.session.pledge import make_pledge  # noqa: PLC0415 (torch)

        stays = self.run.server.kept_at_or_before(decision.rewind_to)
        witnessed = self.run.file.plan.last_witnessed_round(stays)
        return None if witnessed else make_pledge(self.engine(), self.run, decision)


@dataclass(frozen=True, slots=True)
class LearnersElsewhere:
    """The guard of a deployment: clients repeat their first steps of an earlier round, and compare them themselves.

    ``present``: the clients that have answered in this session. One that is away is compared when it is back.
    """

    server: Server
    present: Collection[Id]
    options: RoundOptions

    def require(self, rewind_to: int, leaving: Sequence[Request]) -> bool:
        memory = self.server.memory
        stays = min(memory.kept_at_or_before(rewind_to), memory.rounds_done)
        reached = _Present(self.server.federation, self.present)
        asked = replace(self.server, federation=cast(Federation, reached), draw_slots=None)
        bitwise = self.options.other_environment is not OtherEnvironment.ACCEPT
        try:
            found = repeat_witness(asked, stays, leaving, all_clients=True, intact=lambda _: False, bitwise=bitwise)
        except _Away:
            return False
        if found is not None and found.agrees is False:
            raise LearnerDiffers(
                f"nothing was changed: the module or the loss of client {shown(found.client)} computes something else "
                f"than when it trained round {found.round}",
                hint="start its node with the model and the loss of the run, and give the same command again",
            )
        return found is not None

    def before_measuring(self) -> None:
        """Do nothing: the server takes no steps that could be compared; only its tensors are."""

    def pledge(self, decision: Decision) -> Pledge | None:  # noqa: ARG002
        return None


class _Away(TrainingFailed):
    """A client that cannot be asked now."""


class _Present:
    """A ``Federation`` that asks only clients that are there to repeat a round."""

    def __init__(self, federation: Federation, present: Collection[Id]) -> None:
        self._federation, self._present = federation, present

    def repeats(self, task: TrainTask, leaving: Collection[Id] = (), *, bitwise: bool = True) -> bool | None:
        if task.client not in self._present:
            raise _Away(f"client {shown(task.client)} is away")
        return self._federation.repeats(task, leaving, bitwise=bitwise)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)
