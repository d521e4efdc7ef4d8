"""What a run on disk does around the rounds that it computes: checks before, progress and measurements meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.learn import OnRound, Server
from fedforget.algorithm.ports import State
from fedforget.requests.intake import Intake
from fedforget.requests.intents import Outcome, Pledge
from fedforget.requests.leaves import TargetLeaves
from fedforget.requests.processor import Processor
from fedforget.session.on_demand import EngineOnDemand
from fedforget.session.options import OtherEnvironment, RoundOptions
from fedforget.store.books.leaves import target_leaves
from fedforget.store.books.tree import PARTS
from fedforget.store.commitments import commitments_digest
from fedforget.store.record import learner_digest
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest
from fedforget.training.environment import environment, is_mixed, numeric_environment


@dataclass(slots=True)
class RunWork:
    """The ``Work`` of a run that this process has opened to write."""

    engine: EngineOnDemand
    run: OpenRun
    server: Server
    options: RoundOptions
    _learner_checked: bool = False

    @property
    def seed_origin(self) -> str:
        return self.run.server.seed_origin

    def check_learner(self, rewind_to: int, leaving: Sequence[Request] = ()) -> None:
        """Check once per session: no other process changes the learner of this one."""
        if not self._learner_checked:
            from fedforget.session.learner_check import LearnerCheck  # noqa: PLC0415 (torch)

            server = self.run.server
            stays = min(server.kept_at_or_before(rewind_to), server.rounds_done)
            LearnerCheck(self.engine(), self.run, self.server, stays, leaving).require(self.options.other_environment)
            self._learner_checked = True

    def check_state(self, rewind_to: int) -> None:
        self.run.server.load(self.run.server.kept_at_or_before(rewind_to))

    def check_books(self, decision: Decision | None = None) -> None:
        books, numbers = self.run.clients.books, set(range(PARTS))
        if decision is not None and decision.rewind_to == decision.goal and decision.new_seeds is None:
            clients = {*decision.leaving, *(target.client for target in decision.requests)}
            clients |= {new.client for new in decision.joining}
            numbers = {books.part_of(client) for client in clients}
        for number in numbers:
            books.part(number)  # raises if it is damaged

    def pledge(self, decision: Decision) -> Pledge | None:
        from fedforget.session.pledge import make_pledge  # noqa: PLC0415 (torch)

        stays = self.run.server.kept_at_or_before(decision.rewind_to)
        witnessed = self.run.file.plan.last_witnessed_round(stays)
        return None if witnessed else make_pledge(self.engine(), self.run, decision)

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
            self.run.record.trained(self.run.server.rounds_done, numeric_environment())

    def state_digest(self) -> str:
        return state_digest(self.run)

    def data_root(self) -> bytes:
        return self.run.clients.books.root()

    def leaves_of(self, targets: Sequence[Request]) -> tuple[TargetLeaves, ...]:
        return target_leaves(self.run.clients.books, targets)

    def outcome(self) -> Outcome:
        run = self.run
        if self.engine.is_built:  # else no round was computed, and ``train`` measured this model
            self.engine().measure(run, self.options.eval_every)
        return Outcome(
            rounds_done=run.server.rounds_done,
            model_digest=run.server.model_digest() if len(run.server.roster) else None,
            state_digest=state_digest(run),
            plan_digest=run.file.digest,
            commitments=commitments_digest(run),
            version=environment()["fedforget"],
            mixed_environments=is_mixed(run.record.environments.of_rounds(run.server.rounds_done)),
            data_root=run.clients.books.root(),
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
            Intake(self.run, record.book, self.run.inbox),
            record.batches,
            self,
            recompute_all=self.options.other_environment is OtherEnvironment.RECOMPUTE,
        )
