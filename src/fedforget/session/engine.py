"""The engine of a run: its module, its data, and the processes that train."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fedforget.algorithm.aggregate import aggregator
from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import Server
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Aggregator, ClientMemory, Federation
from fedforget.data.federated import FederatedData
from fedforget.errors import InvalidInput, quoted, shown
from fedforget.federation.background import BackgroundJob
from fedforget.federation.draw_ahead import drawing_ahead
from fedforget.federation.local import LocalFederation
from fedforget.federation.pool import PATIENCE, WorkerPool
from fedforget.session.arguments import number_of, whole_or_none
from fedforget.store.run_directory import OpenRun
from fedforget.training.evaluation import TestSet
from fedforget.training.local_sgd import Loss, TorchLearner
from fedforget.training.weights import PristineBuffers, parameter_names

if TYPE_CHECKING:
    from torch import nn

INLINE, POOL = "inline", "pool"
FEDERATIONS = (INLINE, POOL)
OnRound = Callable[[int], None]
_LONGEST = 1e6  # seconds


@dataclass(frozen=True, slots=True)
class Workforce:
    """How clients are trained on this machine: in this process, or by worker processes. The results are the same."""

    federation: str = INLINE
    workers: int | None = None  # None: one per core
    patience: float = PATIENCE  # seconds that a worker has for one local round

    def __post_init__(self) -> None:
        if self.federation not in FEDERATIONS:
            raise InvalidInput(f"unknown federation {quoted(self.federation)}", hint=f"use {' or '.join(FEDERATIONS)}")
        patience = number_of(self.patience, "patience")
        workers = whole_or_none(self.workers, "workers")
        if workers is not None and workers < 1:
            raise InvalidInput(f"{shown(workers)} workers cannot train", hint="give at least 1 of them (--workers)")
        if workers is not None and self.federation != POOL:
            raise InvalidInput("--workers is for the pool", hint="leave it out, or use --federation pool")
        if not 0 < patience <= _LONGEST:
            raise InvalidInput(
                f"a worker cannot have {patience:g} s for a round",
                hint=f"give more than 0 seconds, and at most {_LONGEST:g}",
            )


@dataclass(slots=True)
class Engine:
    """Learns and measures. Everything it needs to know of a run's progress is in the run itself."""

    plan: Plan
    module: nn.Module
    data: FederatedData
    loss: Loss | None
    pristine: PristineBuffers
    workforce: Workforce
    _tests: TestSet | None = field(default=None, init=False)

    def learner(self) -> TorchLearner:
        return TorchLearner(self.module, self.data, self.plan.local, self.loss, self.pristine)

    def aggregator(self) -> Aggregator:
        return aggregator(self.plan.server, parameter_names(self.module))

    @contextlib.contextmanager
    def federation(self, clients: ClientMemory, sizes: Callable[[], dict[Id, int]]) -> Iterator[Federation]:
        """Reach the clients whose memory this is."""
        learner = self.learner()
        pool = (
            None
            if self.workforce.federation == INLINE
            else WorkerPool(
                self.plan.clients_per_round,
                learner,
                workers=self.workforce.workers,
                patience=self.workforce.patience,
                before_fork=lambda first: learner.share(sizes(), first),
                in_worker=_one_thread,
            )
        )
        with contextlib.closing(LocalFederation(self.plan, clients, learner, trainer=pool)) as federation:
            yield federation

    @contextlib.contextmanager
    def server(self, run: OpenRun) -> Iterator[Server]:
        with self.federation(run.clients, run.clients.sizes) as federation:
            priorities = PrfPriorities(run.server.seed.value)
            yield drawing_ahead(Server(self.plan, priorities, run.server, federation, self.aggregator()))

    @contextlib.contextmanager
    def measuring(self, run: OpenRun, every: int | None) -> Iterator[Callable[[int, Any], None] | None]:
        """Measure models as they come: in this process, or in one of its own where worker processes train."""
        if every is None or (tests := self._test_set()) is None:
            yield None
            return
        if self.workforce.federation == INLINE:
            yield lambda round_, model: run.record.metrics.measured(round_, *tests.count_correct(model))
            return
        with contextlib.closing(BackgroundJob(tests.count_correct, _one_thread, self.workforce.patience)) as job:

            def note(results: list[tuple[int, Any]]) -> None:
                for round_, counts in results:
                    run.record.metrics.measured(round_, *counts)

            yield lambda round_, model: note(job.start(round_, model))
            note(job.finish())

    def measure(self, run: OpenRun, every: int | None = None) -> None:
        """Measure the current model and every so many of those that are kept, where it has not been done."""
        if (tests := self._test_set()) is None or not len(run.server.roster):
            return
        current = run.server.rounds_done
        for round_ in run.server.kept():
            wanted = round_ == current or (every is not None and round_ % every == 0)
            if wanted and run.record.metrics.accuracy(round_) is None:
                run.record.metrics.measured(round_, *tests.count_correct(run.server.load(round_).model))

    def _test_set(self) -> TestSet | None:
        if self._tests is None and self.data.test is not None:
            self._tests = TestSet(self.module, self.data.test)
        return self._tests

    def check_data(self, run: OpenRun, leaving: Iterable[Request]) -> None:
        """Everything that stays must be in the data, and be what it was."""
        lost: dict[Id, set[Id | None]] = {}
        for request in leaving:
            lost.setdefault(request.client, set()).add(request.sample)
        for client in run.server.roster:
            gone = lost.get(client, set())
            if None in gone:
                continue
            contents = run.clients.contents(client)
            staying = {sample: content for sample, content in contents.items() if sample not in gone}
            self.data.require_unchanged(client, staying)


def _one_thread() -> None:
    torch.set_num_threads(1)
