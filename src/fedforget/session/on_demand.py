"""The engine of a session, built when a round has to be computed.

A request that changes no draw needs neither model nor data. So the command line carries it out without importing torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import Server
from fedforget.algorithm.ports import Aggregator, LocalLearner, LocalRound, State, Trained, TrainReply
from fedforget.federation.draw_ahead import drawing_ahead
from fedforget.federation.local import LocalFederation, RoundTrainer
from fedforget.session.sample_check import SampleCheck
from fedforget.store.run_directory import OpenRun

if TYPE_CHECKING:
    from fedforget.session.engine import Engine


class EngineOnDemand:
    """Builds the engine once, and keeps torch in its fixed modes from then until the session ends."""

    def __init__(self, make: Callable[[], Engine], session: contextlib.ExitStack) -> None:
        self._make = make
        self._session = session
        self._engine: Engine | None = None

    def __call__(self) -> Engine:
        if self._engine is None:
            engine = self._make()
            self._session.enter_context(engine.computing())
            self._engine = engine
        return self._engine

    @property
    def is_built(self) -> bool:
        return self._engine is not None


@contextlib.contextmanager
def server_of(run: OpenRun, engine: EngineOnDemand, *, data_checked: bool = False) -> Iterator[Server]:
    """Reach the clients of a run. What computes rounds is built with the engine.

    ``data_checked``: the data are known to be what the run began with.
    """
    parts = _Parts(engine, run, None if data_checked else SampleCheck(run.clients))
    learner, trainer = _LearnerOnDemand(parts), _TrainerOnDemand(parts)
    plan, priorities = run.file.plan, PrfPriorities(run.server.seed.value)

    def aggregate(state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State:
        return parts.built().aggregator(state, slots, replies)

    with contextlib.closing(LocalFederation(plan, run.clients, learner, trainer=trainer)) as federation:
        yield drawing_ahead(Server(plan, priorities, run.server, federation, aggregate))


@dataclass(frozen=True, slots=True)
class _Built:
    learner: LocalLearner
    trainer: RoundTrainer
    aggregator: Aggregator


@dataclass(slots=True)
class _Parts:
    """What computes rounds, built on first use."""

    engine: EngineOnDemand
    run: OpenRun
    check: SampleCheck | None
    existing: _Built | None = None

    def require_unchanged(self, work: LocalRound) -> None:
        if self.check is not None:
            self.check.require_unchanged(self.engine().data, work)

    def built(self) -> _Built:
        if self.existing is None:
            engine = self.engine()
            learner, clients = engine.learner(), self.run.clients
            trainer = engine.trainer(learner, clients.sizes, clients.contents)
            self.existing = _Built(learner, trainer, engine.aggregator())
        return self.existing


@dataclass(frozen=True, slots=True)
class _LearnerOnDemand:
    parts: _Parts

    def train(self, work: LocalRound) -> Trained:
        self.parts.require_unchanged(work)
        return self.parts.built().learner.train(work)


@dataclass(frozen=True, slots=True)
class _TrainerOnDemand:
    parts: _Parts

    def train(self, works: Sequence[LocalRound], idle: Iterator[None]) -> list[Trained]:
        for work in works:
            self.parts.require_unchanged(work)
        return self.parts.built().trainer.train(works, idle)

    def samples_change(self) -> None:
        if self.parts.existing is not None:
            self.parts.existing.trainer.samples_change()

    def close(self) -> None:
        if self.parts.existing is not None:
            self.parts.existing.trainer.close()
