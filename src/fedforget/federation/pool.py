"""One single-threaded worker process per core. What a client learns is the same wherever it is trained.

The parent draws and keeps the books, as ``inline`` does; workers run local rounds and know nothing else. The model and
the results travel through shared memory, the rest through pipes; results are read in the order of the tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any

from fedforget.algorithm.draws import PrfPriorities, Priorities
from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import ClientMemory, LocalLearner, LocalRound, RemoveOrder
from fedforget.errors import FedForgetError, InvalidInput, TrainingFailed
from fedforget.federation.inline import InlineFederation
from fedforget.federation.shared_arrays import SharedArrays
from fedforget.federation.worker import Lost, Worker

PATIENCE = 600.0  # seconds for one local round


def default_workers() -> int:
    """One per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(slots=True)
class _Desk:
    """A worker, and what it is at: a place in the list of work, since when."""

    worker: Worker
    place: int | None = None
    since: float = 0.0


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
        if self._count < 1:
            raise InvalidInput(f"{self._count} workers cannot train", hint="give --workers from 1")
        self._patience, self._before_fork, self._in_worker = patience, before_fork, in_worker
        self._desks: list[_Desk] = []
        self._introduced: set[Id] = set()  # clients whose samples the workers have heard of

    def close(self) -> None:
        """End the workers: at once where they are busy."""
        for desk in self._desks:
            desk.worker.close(at_once=desk.place is not None)
        self._desks = []

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        self.close()  # what was laid out for them holds what is now gone
        super().remove(orders)

    def worker_processes(self) -> list[int]:
        return [desk.worker.process_id for desk in self._desks if desk.worker.process_id is not None]

    def _train_all(self, works: Sequence[LocalRound]) -> list[Any]:
        if not works:
            return []
        try:
            if not self._desks:
                self._start(works[0])
            return self._share_out(works)
        except BaseException:
            self.close()
            raise

    def _start(self, first: LocalRound) -> None:
        if self._before_fork is not None:
            self._before_fork(first)
        self._introduced.clear()
        self._model = SharedArrays(first.model)
        self._results = [SharedArrays(first.model) for _ in range(self._plan.clients_per_round)]
        for _ in range(min(self._count, self._plan.clients_per_round)):  # a round has no work for more
            self._desks.append(_Desk(Worker(self._run_one, get_ready=self._in_worker)))

    def _share_out(self, works: Sequence[LocalRound]) -> list[Any]:
        """The local models in the order of the work; those in shared memory are there until the next round."""
        shared = self._model.fits(works[0].model)
        if shared:
            self._model.write(works[0].model)
        found: list[Any] = [None] * len(works)
        failures: dict[int, FedForgetError] = {}
        waiting, idle = iter(enumerate(works)), list(self._desks)
        while True:
            for desk, (place, work) in zip(idle, waiting if not failures else (), strict=False):
                desk.place, desk.since = place, time.monotonic()
                self._ask(desk, place, self._as_sent(work, shared))
            busy = [desk for desk in self._desks if desk.place is not None]
            if failures:  # the first in the order of tasks is raised, as if they had been done one by one
                busy = [desk for desk in busy if (desk.place or 0) < min(failures)]
            if not busy:
                break
            idle = self._next_to_answer(busy, works)
            for desk in idle:
                place, desk.place = desk.place or 0, None
                try:
                    is_shared, model = self._answer_of(desk, works[place], large=not shared)
                except FedForgetError as failure:
                    failures[place] = failure
                    continue
                found[place] = self._results[place].views() if is_shared else model
                self._introduced.add(works[place].client)
        if failures:
            raise failures[min(failures)]
        return found

    def _as_sent(self, work: LocalRound, shared: bool) -> LocalRound:
        """Without what the workers have: the model, and the ids of samples they have seen."""
        known = work.client in self._introduced
        return replace(work, model=None if shared else work.model, samples=() if known else work.samples)

    def _next_to_answer(self, busy: Sequence[_Desk], works: Sequence[LocalRound]) -> list[_Desk]:
        slowest = min(busy, key=lambda desk: desk.since)
        ready = wait([desk.worker.pipe for desk in busy], max(0.0, slowest.since + self._patience - time.monotonic()))
        if not ready:
            raise _lost(works[slowest.place or 0], f"did not finish within {self._patience:g} s")
        return [desk for desk in busy if desk.worker.pipe in ready]

    def _ask(self, desk: _Desk, place: int, work: LocalRound) -> None:
        try:
            desk.worker.ask((place, work), self._patience)
        except Lost as how:
            raise _lost(work, str(how)) from how

    def _answer_of(self, desk: _Desk, work: LocalRound, *, large: bool) -> tuple[bool, Any]:
        try:
            answer: tuple[bool, Any] = desk.worker.answer(self._patience, large=large)
        except Lost as how:
            raise _lost(work, str(how)) from how
        return answer

    # In a worker

    def _run_one(self, question: tuple[int, LocalRound]) -> tuple[bool, Any]:
        place, work = question
        if work.model is None:
            work = replace(work, model=self._model.views())
        try:
            trained = self._learner.train(work)
        except FedForgetError:
            raise
        except Exception as error:
            raise TrainingFailed(
                f"client {work.client} failed in round {work.round}: {type(error).__name__}: {error}",
                hint="correct the model or the data and give the same command again",
            ) from error
        if place < len(self._results) and self._results[place].fits(trained):
            self._results[place].write(trained)
            return True, None
        return False, trained


def _lost(work: LocalRound, how: str) -> TrainingFailed:
    remedy = "with fewer --workers if memory is short"
    if "within" in how:
        remedy = "with a longer --worker-timeout (patience, in Python) if it only needs more time"
    return TrainingFailed(
        f"the worker that trained client {work.client} in round {work.round} {how}",
        hint=f"the round was not committed; give the same command again, {remedy}",
    )
