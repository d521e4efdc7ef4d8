"""What a run on disk does around the rounds that it computes: checks before, progress and measurements meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.learn import OnRound, Server
from fedforget.algorithm.ports import State
from fedforget.errors import LearnerDiffers
from fedforget.requests.intake import Intake
from fedforget.requests.intents import Outcome, Pledge
from fedforget.requests.leaves import TargetLeaves
from fedforget.requests.ports import Inbox
from fedforget.requests.processor import Processor
from fedforget.session.guard import LearnerGuard
from fedforget.session.on_demand import EngineOnDemand
from fedforget.session.options import OtherEnvironment, RoundOptions
from fedforget.store.commitments import commitments_digest
from fedforget.store.record import learner_digest
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest
from fedforget.training.environment import environment, is_mixed, numeric_environment

log = logging.getLogger("fedforget")


@dataclass(slots=True)
class RunWork:
    """The ``Work`` of a run that this process has opened to write."""

    engine: EngineOnDemand
    run: OpenRun
    server: Server
    options: RoundOptions
    guard: LearnerGuard
    inbox: Inbox
    _learner_checked: bool = False

    @property
    def seed_origin(self) -> str:
        return self.run.server.seed_origin

    def check_learner(self, rewind_to: int, leaving: Sequence[Request] = ()) -> None:
        """Check until it was compared once in this session: no other process changes the learner of this one."""
        if not self._learner_checked:
            self._learner_checked = self.guard.require(rewind_to, leaving)

    def check_state(self, rewind_to: int) -> None:
        self.run.server.load(self.run.server.kept_at_or_before(rewind_to))

    def check_books(self, decision: Decision | None = None) -> None:
        clients = None
        if decision is not None and decision.rewind_to == decision.goal and decision.new_seeds is None:
            clients = {*decision.leaving, *(target.client for target in decision.requests)}
            clients |= {new.client for new in decision.joining}
        self.run.part.check(clients)

    def pledge(self, decision: Decision) -> Pledge | None:
        return self.guard.pledge(decision)

    def begin_rounds(self) -> None:
        self.run.record.environments.begin(self.run.server.rounds_done + 1, numeric_environment())

    @contextmanager
    def learning(self, goal: int) -> Iterator[OnRound]:
        computed, every = False, self.options.eval_every
        with nullcontext() if every is None else self.engine().measuring(self.run, every) as measure:

            def after(round_: int, state: State) -> None:
                nonlocal computed
                computed = True
                if self.options.on_round is not None:
                    self.options.on_round(round_)
                if measure is not None and every and round_ % every == 0 and round_ < goal:
                    measure(round_, state.model)

            yield after
        if computed:
            self._learner_checked = True  # its own rounds
            self.run.record.trained(self.run.server.rounds_done, numeric_environment())

    def measure(self) -> None:
        """Measure the models that were not measured yet. Raise LearnerDiffers if another learner computed them."""
        engine, every = self.engine(), self.options.eval_every
        if unmeasured := engine.unmeasured(self.run, every):
            if not self._learner_checked:
                self.guard.before_measuring()
                self._learner_checked = True
            engine.measure(self.run, unmeasured)

    def measure_if_comparable(self) -> None:
        """Measure, but don't stop a request that computes no round because of another learner."""
        try:
            self.measure()
        except LearnerDiffers as error:
            log.warning("the model is not measured: %s", error.message)

    def state_digest(self) -> str:
        return state_digest(self.run)

    def data_root(self) -> bytes:
        return self.run.part.data_root()

    def leaves_of(self, targets: Sequence[Request]) -> tuple[TargetLeaves, ...]:
        return self.run.part.leaves_of(targets)

    def outcome(self) -> Outcome:
        run = self.run
        if self.engine.is_built:  # else no round was computed, and ``train`` measured this model
            self.measure_if_comparable()
        return Outcome(
            rounds_done=run.server.rounds_done,
            model_digest=run.server.model_digest() if len(run.server.roster) else None,
            state_digest=state_digest(run),
            plan_digest=run.file.digest,
            commitments=commitments_digest(run),
            version=environment()["fedforget"],
            mixed_environments=is_mixed(run.record.environments.of_rounds(run.server.rounds_done)),
            data_root=run.part.data_root(),
            learner=learner_digest(run.record.learner),
        )

    def applied(self) -> None:
        if self.run.crashed:
            self.run.require_whole()

    def purge(self, last: Callable[[], None]) -> None:
        self.run.server.end_work()
        self.run.seal(last)

    def processor(self) -> Processor:
        """What carries out the requests of this run."""
        record = self.run.record
        return Processor(
            self.server,
            Intake(self.run, record.book, self.inbox),
            record.batches,
            self,
            recompute_all=self.options.other_environment is OtherEnvironment.RECOMPUTE,
        )
