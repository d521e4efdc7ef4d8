"""What a run on disk does around the rounds that it computes: checks before, progress and measurements meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import fedforget
from fedforget.algorithm.forget import Request
from fedforget.algorithm.learn import OnRound, Server
from fedforget.algorithm.ports import State
from fedforget.requests.intake import Intake
from fedforget.requests.lifecycle import Outcome
from fedforget.requests.processor import Processor
from fedforget.session.engine import Engine
from fedforget.session.learner_check import OtherEnvironment, require_learner
from fedforget.store.commitments import commitments_digest
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest
from fedforget.training.environment import is_mixed, numeric_environment


@dataclass(slots=True)
class RunWork:
    """The ``Work`` of a run that this process has opened to write."""

    engine: Engine
    run: OpenRun
    server: Server
    progress: Callable[[int], None] | None = None  # called after each round
    eval_every: int | None = None
    other_environment: OtherEnvironment = OtherEnvironment.REFUSE
    _data_checked: bool = False
    _learner_checked: bool = False

    @property
    def seed_origin(self) -> str:
        return self.run.server.seed_origin

    def check_data(self, leaving: Sequence[Request] = ()) -> None:
        """Once is enough: no other process changes what this one trains on."""
        if not self._data_checked:
            self.engine.check_data(self.run, leaving)
            self._data_checked = True

    def check_learner(self, rewind_to: int, leaving: Sequence[Request] = ()) -> None:
        """Once is enough, as with the data."""
        if not self._learner_checked:
            server = self.run.server
            stays = min(server.kept_at_or_before(rewind_to), server.rounds_done)
            require_learner(self.engine, self.run, self.server, stays, leaving, self.other_environment)
            self._learner_checked = True

    def check_state(self, rewind_to: int) -> None:
        self.run.server.load(self.run.server.kept_at_or_before(rewind_to))

    def begin_rounds(self) -> None:
        self.run.record.environments.begin(self.run.server.rounds_done + 1, numeric_environment())

    @contextlib.contextmanager
    def learning(self, goal: int) -> Iterator[OnRound]:
        computed = False
        with self.engine.measuring(self.run, self.eval_every) as measure:

            def after(round_: int, state: State) -> None:
                nonlocal computed
                computed = True
                if self.progress is not None:
                    self.progress(round_)
                if measure is not None and self.eval_every and round_ % self.eval_every == 0 and round_ < goal:
                    measure(round_, state.model)

            yield after
        if computed:
            self.run.record.trained(self.run.server.rounds_done, numeric_environment())

    def state_digest(self) -> str:
        return state_digest(self.run)

    def outcome(self) -> Outcome:
        run = self.run
        self.engine.measure(run, self.eval_every)
        return Outcome(
            rounds_done=run.server.rounds_done,
            model_digest=run.server.model_digest() if len(run.server.roster) else None,
            state_digest=state_digest(run),
            plan_digest=run.file.digest,
            commitments=commitments_digest(run),
            version=fedforget.__version__,
            mixed_environments=is_mixed(run.record.environments.of_rounds(run.server.rounds_done)),
        )

    def applied(self) -> None:
        if self.run.crashed:
            self.run.require_whole()

    def purge(self) -> None:
        self.run.server.end_work()
        self.run.purge_function()

    def processor(self) -> Processor:
        """What carries out the requests of this run."""
        record = self.run.record
        return Processor(
            self.server,
            Intake(self.run, record.book, self.run.inbox),
            record.batches,
            self,
            recompute_all=self.other_environment is OtherEnvironment.RECOMPUTE,
        )
