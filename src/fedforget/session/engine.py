"""The engine of a run: its module, its data, and the processes that train it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedforget.algorithm.aggregate import aggregator
from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Aggregator, ClientMemory, Federation
from fedforget.data.federated import FederatedData
from fedforget.errors import InvalidInput, LearnerDiffers
from fedforget.federation.background import BackgroundJob
from fedforget.federation.flower.simulation import Simulation
from fedforget.federation.flower.trainer import FlowerTrainer
from fedforget.federation.local import InlineTrainer, LocalFederation, RoundTrainer
from fedforget.federation.local_rounds import ContentsOf
from fedforget.federation.pool import WorkerPool
from fedforget.federation.traffic import Traffic
from fedforget.session.workforce import FLOWER_SIMULATION, INLINE, Workforce
from fedforget.store.books.tree import PARTS
from fedforget.store.plan_file import PlanFile, Settings
from fedforget.store.run_directory import OpenRun
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.environment import arithmetic_digest
from fedforget.training.evaluation import TestSet
from fedforget.training.identity import Structure, differences, require_loss, require_module, structure_of
from fedforget.training.local_sgd import Loss, TorchLearner
from fedforget.training.streams import own_streams
from fedforget.training.weights import PristineBuffers, float_type, parameter_names

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Model:
    """The module and the loss of a run, as the caller gives them."""

    module: nn.Module
    loss: Loss | None
    structure: Structure
    pristine: PristineBuffers

    @classmethod
    def of(cls, module: Any, loss: Any = None) -> Model:
        """Check module and loss. Raise InvalidInput if they cannot be trained, whatever the run."""
        with fixed_arithmetic():
            require_module(module)
            require_loss(loss)
            return cls(module, loss, structure_of(module), PristineBuffers(module))

    def described(self, settings: Settings) -> Settings:
        """Return the settings for the plan file: also the digest of buffers that the state_dict lacks."""
        buffers = self.pristine.digest()
        return {**settings, "unstored_buffers": buffers} if buffers else settings

    def description(self) -> dict[str, Any]:
        """Return what a Flower node compares with the model that it builds."""
        return {"tensors": dict(self.structure), "unstored_buffers": self.pristine.digest()}

    def require_described(self, problem: Mapping[str, Any]) -> None:
        """Raise LearnerDiffers if the server's module has other tensors or buffers than this one of a node."""
        found = differences(problem.get("tensors", {}), self.structure)
        if found or problem.get("unstored_buffers") != self.pristine.digest():
            raise LearnerDiffers(
                f"the ClientApp builds another model than the ServerApp: {'; '.join(found) or 'other buffers'}",
                hint="give the same function to server_app and client_app, and build buffers from constants",
            )

    def require_of(self, file: PlanFile, run: Path) -> None:
        """Raise LearnerDiffers if the module's tensors or buffers are not the run's."""
        found = differences(file.tensors, structure_of(self.module))  # which may have changed since it was given
        if found:
            raise LearnerDiffers(
                f"the model is not the one that {run} was made with: the tensor {'; '.join(found)}",
                hint="open the run with the nn.Module it began with, in the same types, with the same layers frozen",
            )
        if file.model.get("unstored_buffers", "") != self.pristine.digest():
            raise LearnerDiffers(
                "the model's non-persistent buffers are not what they were when the run began",
                hint="build the nn.Module afresh before opening the run: they are outside its state_dict",
            )


@dataclass(slots=True)
class Engine:
    """Trains and evaluates. It keeps no progress of a run: that is in the run directory."""

    plan: Plan
    model: Model
    data: FederatedData
    workforce: Workforce
    problem: Mapping[str, Any] = field(default_factory=dict)  # what a Flower node builds the model and data from
    traffic: Traffic = field(default_factory=Traffic)
    _tests: TestSet | None = field(default=None, init=False)

    @classmethod
    def of_run(
        cls,
        file: PlanFile,
        run: Path,
        model: Model,
        data: FederatedData,
        workforce: Workforce,
        data_dir: Path | None = None,
    ) -> Engine:
        """Return the engine of a run, or raise LearnerDiffers. ``data_dir``: where nodes find built-in data."""
        model.require_of(file, run)
        problem = problem_of(file.model, file.dataset, data_dir) if file.is_built_in else model.description()
        return cls(file.plan, model, data, workforce, problem)

    def learner(self) -> TorchLearner:
        return TorchLearner(self.model.module, self.data, self.plan.local, self.model.loss, self.model.pristine)

    def aggregator(self) -> Aggregator:
        return aggregator(self.plan.server, parameter_names(self.model.module))

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Fix the modes of torch and its random streams for the block."""
        with fixed_arithmetic(float_type(self.model.module)), own_streams():
            yield

    def trainer(
        self, learner: TorchLearner, sizes: Callable[[], dict[Id, int]], contents_of: ContentsOf | None = None
    ) -> RoundTrainer:
        """Return the trainer of local rounds: this process, worker processes, or nodes, which check content digests."""
        if self.workforce.federation == INLINE:
            return InlineTrainer(learner)
        if self.workforce.uses_nodes:
            return self._on_nodes(contents_of)
        return WorkerPool(
            self.plan.clients_per_round,
            learner,
            workers=self.workforce.workers,
            patience=self.workforce.patience,
            before_fork=lambda first: learner.share(sizes(), first),
            in_worker=_one_thread,
        )

    def _on_nodes(self, contents_of: ContentsOf | None) -> FlowerTrainer:
        shared, patience = self.workforce.nodes, self.workforce.patience
        if "dataset" not in self.problem and self.workforce.federation == FLOWER_SIMULATION:
            raise InvalidInput(
                "the nodes of a simulation cannot build a model and data of your own",
                hint="make a Flower app of them, as docs/flower.md shows; or use --federation pool",
            )
        return FlowerTrainer(
            Simulation(self.workforce.workers, patience) if shared is None else shared,
            self.plan.local,
            self.problem,
            contents_of=contents_of,
            arithmetic=arithmetic_digest(),
            traffic=self.traffic,
            keep_nodes=shared is not None,
        )

    @contextlib.contextmanager
    def federation(self, clients: ClientMemory, sizes: Callable[[], dict[Id, int]]) -> Iterator[Federation]:
        """Yield the federation of the clients in this memory."""
        learner = self.learner()
        trainer = self.trainer(learner, sizes)
        with contextlib.closing(LocalFederation(self.plan, clients, learner, trainer=trainer)) as federation:
            yield federation

    @contextlib.contextmanager
    def measuring(self, run: OpenRun, every: int | None) -> Iterator[Callable[[int, Any], None] | None]:
        """Yield a function that evaluates a model during training: here, or in a process beside the pool."""
        if every is None or (tests := self._test_set()) is None:
            yield None
            return
        if not self.workforce.can_fork:
            yield lambda round_, model: self._note(run, round_, tests.counts(model))
            return
        with contextlib.closing(BackgroundJob(tests.counts, _one_thread, self.workforce.patience)) as job:

            def note(results: list[tuple[int, Any]]) -> None:
                for round_, counts in results:
                    self._note(run, round_, counts)

            yield lambda round_, model: note(job.start(round_, model))
            note(job.finish())

    def unmeasured(self, run: OpenRun, every: int | None = None) -> list[int]:
        """Return the round of the current model, and every so many of those that are kept, if not measured yet."""
        if self._test_set() is None or not len(run.server.roster):
            return []
        wanted = [
            round_
            for round_ in run.server.kept()
            if round_ == run.server.rounds_done or (every is not None and round_ % every == 0)
        ]
        return [round_ for round_ in wanted if self._measurable(run) - run.metrics.clients_of(round_)]

    def measure(self, run: OpenRun, rounds: Sequence[int]) -> None:
        """Measure the models of these rounds."""
        if (tests := self._test_set()) is not None:
            for round_ in rounds:
                self._note(run, round_, tests.counts(run.server.load(round_).model))

    def _measurable(self, run: OpenRun) -> set[Id | None]:
        """Return the clients in the run that have test samples; None for the server's test set."""
        owners = self.data.test_owners
        return {None} if owners is None else {client for client in set(owners) if client in run.server.roster}

    def _note(self, run: OpenRun, round_: int, counts: Mapping[Id | None, tuple[int, int]]) -> None:
        """Store the counts of clients that are in the run: an erased client leaves the evaluation, too."""
        present = self._measurable(run)
        run.metrics.measured(round_, {client: found for client, found in counts.items() if client in present})

    def _test_set(self) -> TestSet | None:
        if self._tests is None and self.data.test is not None:
            self._tests = TestSet(self.model.module, self.data.test, self.data.test_owners)
        return self._tests

    def check_data(self, run: OpenRun) -> None:
        """Raise DataChanged if a sample of the run is missing from the data, or has other content."""
        for number in range(PARTS):
            for clients, contents in run.clients.books.groups(number):
                self.data.require_all_unchanged(clients, contents)


def problem_of(model: Settings, dataset: Settings, data_dir: Path | None) -> dict[str, Any]:
    """Return what a node needs to build a model and find data that come with FedForget."""
    place = None if data_dir is None else str(data_dir.absolute())
    return {"model": dict(model), "dataset": dict(dataset), "data_dir": place}


def _one_thread() -> None:
    torch.set_num_threads(1)
