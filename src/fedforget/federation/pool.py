"""One single-threaded worker process per core. What a client learns is the same wherever it is trained.

The parent draws and keeps the books, as ``inline`` does; workers run local rounds and know nothing else. The model and
the results travel through shared memory, the rest through pipes; results are read in the order of the tasks. Where the
tasks of a round don't come out even, some are begun by one worker and finished by another (``schedule``).
"""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fedforget.algorithm.draws import PrfPriorities, Priorities
from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import (
    ClientMemory,
    LocalLearner,
    LocalRound,
    Newcomer,
    PausableLearner,
    RemoveOrder,
    Trained,
)
from fedforget.errors import FedForgetError, TrainingFailed, shown
from fedforget.federation import shortage
from fedforget.federation.inline import InlineFederation
from fedforget.federation.schedule import Board, Part
from fedforget.federation.shared_arrays import SharedArrays
from fedforget.federation.worker import Late, Lost, Worker

PATIENCE = 600.0  # seconds for one local round
_SHORT = 0.02  # seconds
_END = object()


def default_workers() -> int:
    """One per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(slots=True)
class _Desk:
    """A worker, what it is at, and what comes after that."""

    worker: Worker
    parts: deque[Part] = field(default_factory=deque)
    introduced: set[Id] = field(default_factory=set)  # clients whose samples it has heard of
    since: float = 0.0  # when it began with the first of them
    lost: bool = False


class PoolFederation(InlineFederation):
    """``inline`` with its local rounds in worker processes, which start with the first round and stay.

    ``before_fork`` is given the first local round and may lay out data to be shared; ``in_worker`` runs in each worker
    as it starts. A failure ends all workers; the next round starts new ones.
    """

    def __init__(
        self,
        plan: Plan,
        memory: ClientMemory,
        learner: LocalLearner,
        priorities: Callable[[bytes], Priorities] = PrfPriorities,
        *,
        workers: int | None = None,
        patience: float = PATIENCE,
        before_fork: Callable[[LocalRound], None] | None = None,
        in_worker: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(plan, memory, learner, priorities)
        self._count = default_workers() if workers is None else workers
        self._patience, self._before_fork, self._in_worker = patience, before_fork, in_worker
        self._desks: list[_Desk] = []
        try:
            self._at_work = selectors.DefaultSelector()
        except OSError as error:
            raise TrainingFailed(
                f"no worker process could be started: {error.strerror}", hint="use --federation inline"
            ) from error
        self._last_part = _SHORT  # seconds that the last part took
        self._heard: dict[Id, tuple[Id, ...]] = {}  # in a worker: the samples of the clients it was introduced to

    def close(self) -> None:
        """End the workers: at once where they are busy."""
        for desk in self._desks:
            if desk.parts:
                self._at_work.unregister(desk.worker.pipe)
            desk.worker.close(at_once=bool(desk.parts))
        self._desks = []

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        self.close()  # what was laid out for them holds what is now gone
        super().remove(orders)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        self.close()  # what was laid out for them lacks what is there now
        super().join(newcomers)

    def worker_processes(self) -> list[int]:
        return [desk.worker.process_id for desk in self._desks if desk.worker.process_id is not None]

    def _train_all(self, works: Sequence[LocalRound], meanwhile: Iterator[None]) -> list[Trained]:
        if not works:
            return []
        try:
            if not self._desks:
                with shortage.told():
                    self._start(works[0])
            return self._share_out(works, meanwhile)
        except BaseException:
            self.close()
            raise

    def _start(self, first: LocalRound) -> None:
        if self._before_fork is not None:
            self._before_fork(first)
        slots = range(self._plan.clients_per_round)
        self._model = SharedArrays(first.model)
        self._results = [SharedArrays(first.model) for _ in slots]
        halfway = self._learner.halfway_like(first.model) if isinstance(self._learner, PausableLearner) else None
        self._halfway = [SharedArrays(halfway) for _ in slots] if halfway is not None else []
        for _ in range(min(self._count, len(slots))):  # a round has no work for more
            self._desks.append(_Desk(Worker(self._run_one, get_ready=self._in_worker)))

    def _share_out(self, works: Sequence[LocalRound], meanwhile: Iterator[None]) -> list[Trained]:
        """The local models in the order of the work; those in shared memory are there until the next round."""
        shared = self._model.fits(works[0].model)
        if shared:
            self._model.write(works[0].model)
        can_cut = shared and len(works) <= len(self._halfway)
        board = Board(len(works), len(self._desks) if can_cut else 1, len(works[0].rows))
        trained: dict[int, Trained] = {}
        while self._hand_out(board, works, shared=shared):
            for desk in self._next_to_answer(works, meanwhile):
                part = desk.parts.popleft()
                try:
                    answer = self._answer(desk, part, large=not shared)
                    before = trained.get(part.task, answer)  # of a task that was cut, one part has the checksum
                    trained[part.task] = Trained(answer.model, before.checksum or answer.checksum)
                    board.done(part)
                except Lost as how:
                    board.failed(part, _named(how, works[part.task]))
                    board.put_back(desk.parts)
                    desk.parts.clear()
                    desk.lost = True
                except FedForgetError as failure:
                    board.failed(part, failure)
                desk.since = time.monotonic()
                if not desk.parts:
                    self._at_work.unregister(desk.worker.pipe)
        board.raise_first_failure()
        return [trained[task] for task in range(len(works))]

    def _hand_out(self, board: Board, works: Sequence[LocalRound], *, shared: bool) -> bool:
        """Give every worker something to do; says whether anything that matters is under way.

        Where parts are short, workers get the next one before they ask: waiting for it would take about as long.
        """
        for depth in (1, 2) if shared and self._last_part < _SHORT else (1,):
            for desk in self._desks:
                if len(desk.parts) < depth and not desk.lost and (part := board.take()) is not None:
                    self._ask(desk, part, works[part.task], shared=shared)
        return any(board.matters(part) for desk in self._desks for part in desk.parts)

    def _ask(self, desk: _Desk, part: Part, work: LocalRound, *, shared: bool) -> None:
        question = replace(  # without what the worker has: the model, and the ids of samples it has heard of
            work.part(part.start, part.stop),
            model=None if shared else work.model,
            samples=() if work.client in desk.introduced else work.samples,
        )
        desk.introduced.add(work.client)
        if not desk.parts:
            desk.since = time.monotonic()
            self._at_work.register(desk.worker.pipe, selectors.EVENT_READ, desk)
        desk.parts.append(part)
        try:
            desk.worker.ask((part.task, question), self._patience)
        except Lost as how:
            raise _named(how, work) from how

    def _next_to_answer(self, works: Sequence[LocalRound], meanwhile: Iterator[None]) -> list[_Desk]:
        while not (ready := self._at_work.select(0)) and next(meanwhile, _END) is not _END:
            pass
        if not ready:
            since, task = min((desk.since, desk.parts[0].task) for desk in self._desks if desk.parts)
            ready = self._at_work.select(max(0.0, since + self._patience - time.monotonic()))
            if not ready:
                raise _named(Late(self._patience), works[task])
        return [key.data for key, _ in ready]

    def _answer(self, desk: _Desk, part: Part, *, large: bool) -> Trained:
        is_shared, trained = desk.worker.answer(self._patience, large=large)
        self._last_part = time.monotonic() - desk.since
        return Trained(self._results[part.task].views(), trained.checksum) if is_shared else trained

    # In a worker

    def _run_one(self, question: tuple[int, LocalRound]) -> tuple[bool, Trained]:
        """Train; says whether the model lies in shared memory."""
        task, asked = question
        room = (self._halfway if asked.unfinished else self._results)[task : task + 1]
        into = room[0].views() if room else None
        work = replace(
            asked,
            into=into,
            model=self._model.views() if asked.model is None else asked.model,
            samples=self._heard.setdefault(asked.client, asked.samples),
            halfway=self._halfway[task].views() if asked.done else None,
        )
        trained = self._train_one(work)
        if trained.model is not into:
            if not work.unfinished and not (room and room[0].fits(trained.model)):
                return False, trained
            room[0].write(trained.model)
        return True, Trained(None, trained.checksum)


def _named(how: Lost, work: LocalRound) -> TrainingFailed:
    return TrainingFailed(
        f"the worker that trained client {shown(work.client)} in round {work.round} {how}",
        hint=f"the round was not committed; give the same command again, {how.remedy}",
    )
