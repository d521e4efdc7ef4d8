"""One single-threaded worker process per core. The result of a client does not depend on the worker.

The parent process derives draws and stores the clients' notes (``local``); workers only compute local rounds. Models
are sent through shared memory, everything else through pipes. The parent returns results in the order of the tasks. If
a round does not divide evenly, one worker begins a task and another finishes it (``schedule``).
"""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import LocalLearner, LocalRound, Trained
from fedforget.errors import FedForgetError, TrainingFailed, shown
from fedforget.federation import shortage
from fedforget.federation.learner_failures import as_training_failed
from fedforget.federation.parts import ResumableLearner, RoundPart
from fedforget.federation.schedule import Part, RoundSchedule
from fedforget.federation.shared_arrays import SharedArrays
from fedforget.federation.worker import Late, Lost, Worker

PATIENCE = 600.0  # seconds for one local round
_SHORT = 0.02  # seconds
_END = object()


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(slots=True)
class _WorkerQueue:
    """A worker, and the parts sent to it that it has not answered: the running one, then the next."""

    worker: Worker
    parts: deque[Part] = field(default_factory=deque)
    knows: set[Id] = field(default_factory=set)  # clients whose samples the worker knows
    since: float = 0.0  # when the worker began the first part
    lost: bool = False


class WorkerPool:
    """A ``RoundTrainer`` with worker processes, which start with the first round and stay.

    ``largest_round``: how many tasks a round has at most. ``before_fork`` gets the first local round and may cache data
    for the workers to share; ``in_worker`` runs in each worker as it starts. A failure stops all workers; the next
    round starts new ones.
    """

    def __init__(
        self,
        largest_round: int,
        learner: LocalLearner,
        *,
        workers: int | None = None,
        patience: float = PATIENCE,
        before_fork: Callable[[LocalRound], None] | None = None,
        in_worker: Callable[[], None] = lambda: None,
    ) -> None:
        self._largest_round, self._learner = largest_round, learner
        self._resumable = learner if isinstance(learner, ResumableLearner) else None
        self._count = default_workers() if workers is None else workers
        self._patience, self._before_fork, self._in_worker = patience, before_fork, in_worker
        self._queues: list[_WorkerQueue] = []
        try:
            self._at_work = selectors.DefaultSelector()
        except OSError as error:
            raise TrainingFailed(
                f"no worker process could be started: {error.strerror}", hint="use --federation inline"
            ) from error
        self._last_part = _SHORT  # seconds that the last part took
        self._known: dict[Id, tuple[Id, ...]] = {}  # in a worker: the samples of the clients that it trained

    def close(self) -> None:
        """Stop the workers, busy ones immediately."""
        for queue in self._queues:
            if queue.parts:
                self._at_work.unregister(queue.worker.pipe)
            queue.worker.close(at_once=bool(queue.parts))
        self._queues = []

    def samples_change(self) -> None:
        """Stop the workers: they share the old samples."""
        self.close()

    def train(self, works: Sequence[LocalRound], idle: Iterator[None]) -> list[Trained]:
        if not works:
            return []
        try:
            if not self._queues:
                with shortage.as_out_of_memory():
                    self._start(works[0])
            return self._share_out(works, idle)
        except BaseException:
            self.close()
            raise

    def _start(self, first: LocalRound) -> None:
        if self._before_fork is not None:
            self._before_fork(first)
        tasks = range(self._largest_round)
        self._model = SharedArrays(first.model)
        self._results = [SharedArrays(first.model) for _ in tasks]
        halfway = self._resumable.halfway_like(first.model) if self._resumable is not None else None
        self._halfway = [SharedArrays(halfway) for _ in tasks] if halfway is not None else []
        for _ in range(min(self._count, len(tasks))):  # a round has no work for more workers
            self._queues.append(_WorkerQueue(Worker(self._run_one, get_ready=self._in_worker)))

    def _share_out(self, works: Sequence[LocalRound], idle: Iterator[None]) -> list[Trained]:
        """Return the local models in the order of ``works``. The next round overwrites those in shared memory."""
        shared = self._model.fits(works[0].model)
        if shared:
            self._model.write(works[0].model)
        can_cut = shared and len(works) <= len(self._halfway)
        schedule = RoundSchedule(len(works), len(self._queues) if can_cut else 1, len(works[0].rows))
        trained: dict[int, Trained] = {}
        while self._hand_out(schedule, works, shared=shared):
            for queue in self._next_to_answer(works, idle):
                part = queue.parts.popleft()
                try:
                    answer = self._answer(queue, part, large=not shared)
                    begun = trained.get(part.task, answer)  # of a task that was cut, either part may have the checksum
                    trained[part.task] = replace(begun, model=answer.model, checksum=begun.checksum or answer.checksum)
                    schedule.done(part)
                except Lost as how:
                    schedule.failed(part, _named(how, works[part.task]))
                    schedule.put_back(queue.parts)
                    queue.parts.clear()
                    queue.lost = True
                except FedForgetError as failure:
                    schedule.failed(part, failure)
                queue.since = time.monotonic()
                if not queue.parts:
                    self._at_work.unregister(queue.worker.pipe)
        schedule.raise_first_failure()
        return [trained[task] for task in range(len(works))]

    def _hand_out(self, schedule: RoundSchedule, works: Sequence[LocalRound], *, shared: bool) -> bool:
        """Send parts to free workers. Return whether a running part can still affect the result.

        If parts are short, a worker gets its next part before it has answered the last one: the wait in between would
        take about as long as a part.
        """
        for depth in (1, 2) if shared and self._last_part < _SHORT else (1,):
            for queue in self._queues:
                if len(queue.parts) < depth and not queue.lost and (part := schedule.take()) is not None:
                    self._ask(queue, part, works[part.task], shared=shared)
        return any(schedule.matters(part) for queue in self._queues for part in queue.parts)

    def _ask(self, queue: _WorkerQueue, part: Part, work: LocalRound, *, shared: bool) -> None:
        asked = replace(  # without what the worker has: the model and known sample ids
            work,
            model=None if shared else work.model,
            samples=() if work.client in queue.knows else work.samples,
        )
        queue.knows.add(work.client)
        if not queue.parts:
            queue.since = time.monotonic()
            self._at_work.register(queue.worker.pipe, selectors.EVENT_READ, queue)
        queue.parts.append(part)
        try:
            queue.worker.ask(RoundPart(part.task, part.start, part.stop, asked), self._patience)
        except Lost as how:
            raise _named(how, work) from how

    def _next_to_answer(self, works: Sequence[LocalRound], idle: Iterator[None]) -> list[_WorkerQueue]:
        """Wait until a worker answers; advance ``idle`` meanwhile."""
        while not (ready := self._at_work.select(0)) and next(idle, _END) is not _END:
            pass
        if not ready:
            since, task = min((queue.since, queue.parts[0].task) for queue in self._queues if queue.parts)
            ready = self._at_work.select(max(0.0, since + self._patience - time.monotonic()))
            if not ready:
                raise _named(Late(self._patience), works[task])
        return [key.data for key, _ in ready]

    def _answer(self, queue: _WorkerQueue, part: Part, *, large: bool) -> Trained:
        is_shared: bool
        trained: Trained
        is_shared, trained = queue.worker.answer(self._patience, large=large)
        self._last_part = time.monotonic() - queue.since
        return replace(trained, model=self._results[part.task].views()) if is_shared else trained

    # In a worker

    def _run_one(self, part: RoundPart) -> tuple[bool, Trained]:
        """Train one part. Return whether its model is in shared memory, and the result."""
        asked = part.work
        work = replace(
            asked,
            model=self._model.views() if asked.model is None else asked.model,
            samples=self._known.setdefault(asked.client, asked.samples),
        )
        room = (self._results if part.is_last else self._halfway)[part.task : part.task + 1]
        into = room[0].views() if room else None
        with as_training_failed(work):
            trained = self._train_part(part, work, into)
        if trained.model is not into:
            if part.is_last and not (room and room[0].fits(trained.model)):
                return False, trained
            room[0].write(trained.model)
        return True, replace(trained, model=None)

    def _train_part(self, part: RoundPart, work: LocalRound, into: Any) -> Trained:
        if self._resumable is None:  # the rounds of such a learner are never cut
            return self._learner.train(work)
        halfway = None if part.is_first else self._halfway[part.task].views()
        return self._resumable.train_part(work, part.start, part.stop, halfway, into)


def _named(how: Lost, work: LocalRound) -> TrainingFailed:
    return TrainingFailed(
        f"the worker that trained client {shown(work.client)} in round {work.round} {how}",
        hint=f"the round was not committed; give the same command again, {how.remedy}",
    )
