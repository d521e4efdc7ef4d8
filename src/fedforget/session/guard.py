"""Whether a learner is the one that computed the rounds that stay: this process compares its own, clients theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.learn import Server
from fedforget.requests.intents import Pledge
from fedforget.session.on_demand import EngineOnDemand
from fedforget.session.options import RoundOptions
from fedforget.store.run_directory import OpenRun


class LearnerGuard(Protocol):
    """Compares learners before a run goes on from rounds that stay."""

    def require(self, rewind_to: int, leaving: Sequence[Request]) -> None:
        """Raise LearnerDiffers or EnvironmentDiffers if another learner or environment computed them."""

    def pledge(self, decision: Decision) -> Pledge | None:
        """Note which learner begins a batch that leaves no witness."""


@dataclass(frozen=True, slots=True)
class OwnLearner:
    """The guard of a run whose clients are trained on this machine."""

    engine: EngineOnDemand
    run: OpenRun
    server: Server
    options: RoundOptions

    def require(self, rewind_to: int, leaving: Sequence[Request]) -> None:
        from fedforget.session.learner_check import LearnerCheck  # noqa: PLC0415 (torch)

        server = self.run.server
        stays = min(server.kept_at_or_before(rewind_to), server.rounds_done)
        check = LearnerCheck(self.engine(), self.run, self.server, stays, leaving)
        check.require(self.options.other_environment)

    def pledge(self, decision: Decision) -> Pledge | None:
        from fedforget.session.pledge import make_pledge  # noqa: PLC0415 (torch)

        stays = self.run.server.kept_at_or_before(decision.rewind_to)
        witnessed = self.run.file.plan.last_witnessed_round(stays)
        return None if witnessed else make_pledge(self.engine(), self.run, decision)


class LearnersElsewhere:
    """The guard of a deployment: each client compares its own learner with its own witnesses, before it trains."""

    def require(self, rewind_to: int, leaving: Sequence[Request]) -> None:
        """Do nothing: a client that differs refuses to train."""

    def pledge(self, decision: Decision) -> Pledge | None:  # noqa: ARG002
        return None
