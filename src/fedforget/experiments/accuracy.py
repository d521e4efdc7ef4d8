"""Accuracy before unlearning: FATS against FedAvg, paired by seed, with linear models beside them.

Each training ends at the round of the requests. A comparison of two methods says little where a linear
model does better, so two are trained: one centrally on all training samples, and one by FATS with the same
plan and optimiser.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from fedforget.algorithm.ports import State
from fedforget.baselines.fats import Fats
from fedforget.baselines.fedavg import FedAvg
from fedforget.baselines.method import Method, digest_of
from fedforget.data.registry import DIGITS
from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.comparison import facts_of
from fedforget.experiments.lives import Life, Meter
from fedforget.experiments.performance import DATASETS
from fedforget.experiments.presets import described
from fedforget.experiments.problems import (
    Training,
    build_linear_problem,
    build_problem,
    bytes_of_rounds,
    data_of,
    datasets_of,
    halved,
    training_of,
    training_samples,
)
from fedforget.experiments.rows import Row
from fedforget.experiments.timing import seconds_of
from fedforget.training.linear import train_linear

NAME = "accuracy"
LINEAR, LINEAR_BY_FATS = "linear, central", "linear, FATS"
_CENTRAL_SEED = 1  # of the partition only: training on all samples draws nothing
_LINEAR_ROUND = 0.5  # seconds
_CENTRAL_SECONDS = 240.0


def cells(choice: Choice) -> Iterator[Cell]:
    """A cell for each dataset, method and seed, and one for the central linear model."""
    for dataset in datasets_of(choice, DATASETS):
        start = f"{NAME}/{choice.scale}/{dataset}"
        seconds = 1.0 if dataset == DIGITS else _CENTRAL_SECONDS
        yield Cell(f"{start}/{LINEAR}", seconds, partial(central_rows, dataset, choice), data=data_of(dataset))
        for seed in choice.seeds(NAME, dataset):
            for method, linear in ((Fats, False), (FedAvg, False), (Fats, True)):
                work = _Work(up_to_requests(dataset, method, choice), method, seed, choice, linear)
                used = described(work.training.plan.local)
                yield Cell(
                    f"{start}/{work.name}/{seed}", work.seconds, work.rows, seed, work.disk, used, data_of(dataset)
                )


def up_to_requests(dataset: str, method: type[Method], choice: Choice) -> Training:
    """A method's training up to the round of the requests."""
    training = halved(training_of(dataset, method), choice.scale)
    return training.with_plan(rounds=training.request_round)


@dataclass(frozen=True, slots=True)
class _Work:
    """One training: of the dataset's model, or of a linear one."""

    training: Training
    method: type[Method]
    seed: int
    choice: Choice
    linear: bool = False

    @property
    def name(self) -> str:
        return LINEAR_BY_FATS if self.linear else self.method.name

    @property
    def disk(self) -> int:
        """FATS keeps every round; states of the linear model are small."""
        keeps = self.method is Fats and not self.linear
        return bytes_of_rounds(self.training, self.training.plan.rounds) if keeps else 0

    @property
    def seconds(self) -> float:
        rounds = self.training.plan.rounds
        return rounds * _LINEAR_ROUND if self.linear else seconds_of(self.training, rounds, self.choice)

    def rows(self) -> list[Row]:
        started = time.monotonic()
        build = build_linear_problem if self.linear else build_problem
        problem = build(self.training, self.seed, self.choice)
        life = Life(self.method(problem), Meter(problem), heartbeat=self.choice.heartbeat)
        cost = life.learn()
        return [{
            **facts_of(NAME, self.training, problem, None, self.seed, self.choice.scale, 0),
            "method": self.name, "kind": NAME,
            "rounds_computed": life.computed, "round": life.method.rounds_done, "accuracy": life.before,
            "accuracy_full": life.meter.whole(life.method.state.model), "steps": cost.steps,
            "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down, "model_digest": life.method.model_digest,
            "seconds": time.monotonic() - started,
        }]  # fmt: skip


def central_rows(dataset: str, choice: Choice) -> list[Row]:
    """A linear model trained centrally on all training samples."""
    started = time.monotonic()
    problem = build_linear_problem(training_of(dataset), _CENTRAL_SEED, choice)
    x, y = training_samples(dataset, _CENTRAL_SEED, choice)
    with problem.engine().computing():
        found = train_linear(problem.model.module, x, y)
    meter = Meter(problem)
    return [{
        "experiment": NAME, "group": dataset, "dataset": dataset, "scale": choice.scale, "method": LINEAR, "kind": NAME,
        "seed": _CENTRAL_SEED, "M": 1, "N": len(y), "requests": 0, "count": len(y),
        "accuracy": meter.few(found.weights), "accuracy_full": meter.whole(found.weights),
        "model_digest": digest_of(State(found.weights)), "seconds": time.monotonic() - started,
        "optimizer": f"L-BFGS, L2 {found.penalty:g}",
    }]  # fmt: skip
