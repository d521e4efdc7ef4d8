"""Figure 8: requests that arrive again and again, at rounds 20, 40 and 60, while methods are still recovering."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedforget.algorithm.forget import Request
from fedforget.baselines.catalogue import METHODS
from fedforget.baselines.fats import Fats
from fedforget.baselines.method import Cost, Method, Problem
from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.lives import Life, Meter
from fedforget.experiments.performance import LEVELS, curve_rows, expected_steps, facts_of, key_rows
from fedforget.experiments.problems import (
    Training,
    build_problem,
    choose_requests,
    datasets_of,
    halved,
    leaving_clients,
    training_of,
)
from fedforget.experiments.rows import Row
from fedforget.experiments.timing import seconds_of

NAME = "streaming"
DATASETS = ("mnist", "femnist")


def cells(choice: Choice) -> Iterator[Cell]:
    """A cell for each dataset, method and seed; both levels go on from one common training."""
    for dataset in datasets_of(choice, DATASETS):
        training = halved(training_of(dataset), choice.scale)
        training = replace(training, plan=replace(training.plan, rounds=training.streaming_horizon))
        for seed in choice.seeds:
            for method in METHODS:
                work = _Work(training, METHODS[method], seed, choice)
                yield Cell(f"{NAME}/{choice.scale}/{dataset}/{method}/{seed}", work.seconds, work.rows)


@dataclass(frozen=True, slots=True)
class _Work:
    """One method: the requests of each arrival come after so many rounds computed, whatever it has reached."""

    training: Training
    method: type[Method]
    seed: int
    choice: Choice

    @property
    def seconds(self) -> float:
        return seconds_of(self.training, 2 * self.training.plan.rounds, self.choice)

    def rows(self) -> list[Row]:
        problem = build_problem(self.training, self.seed, self.choice)
        count = self.training.requests * len(self.training.streaming_rounds)
        leaving = leaving_clients(choose_requests(problem, "client", count, self.seed))
        shared = Life(self.method(problem), Meter(problem, leaving), heartbeat=self.choice.heartbeat)
        shared.learn(computed=self.training.streaming_rounds[0])
        whole = shared.meter.whole(shared.method.state.model)
        return [row for level in LEVELS for row in self._level(problem, shared.fork(), level, whole)]

    def _level(self, problem: Problem, life: Life, level: str, whole_before: float) -> list[Row]:
        started, arrivals = time.monotonic(), self.training.streaming_rounds
        per_arrival = self.training.requests
        asked = choose_requests(problem, level, per_arrival * len(arrivals), self.seed)
        theory = self._theory(problem, life, asked[:per_arrival])
        for number, _ in enumerate(arrivals):
            following = arrivals[number + 1] if number + 1 < len(arrivals) else problem.plan.rounds
            life.unlearn(asked[number * per_arrival : (number + 1) * per_arrival], following)
            life.learn(computed=following)
        cost = sum((done.cost for done in life.unlearnings), Cost())
        facts = facts_of(NAME, self.training, problem, level, self.seed, self.choice.scale, len(asked))
        facts["method"] = self.method.name
        rows = curve_rows(facts, life) + key_rows(facts, life, whole_before)
        rows.append({
            **facts, "kind": "summary", "rounds_computed": life.computed, "round": life.method.rounds_done,
            "accuracy": life.before, "steps": cost.steps, "theory_steps": theory, "bytes_up": cost.bytes_up,
            "bytes_down": cost.bytes_down, "drop": life.drop, "recovery": life.recovery,
            "model_digest": life.method.model_digest, "seconds": time.monotonic() - started,
        })  # fmt: skip
        return rows

    def _theory(self, problem: Problem, life: Life, requests: list[Request]) -> float:
        """The expectation for the first arrival; later ones depend on how far the method has come by then."""
        done = life.method.rounds_done
        if self.method is Fats:
            return expected_steps(problem, requests, done)
        return float(done * problem.plan.local_steps)
