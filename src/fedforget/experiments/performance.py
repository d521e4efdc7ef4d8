"""Figures 1 and 5: accuracy through training, requests at the published round, and the way back.

With exact unlearning the final accuracy is that of retraining by construction, and the drop measures only how far the
method went back. What is compared is how much it has to compute again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.baselines.catalogue import METHODS
from fedforget.baselines.fats import Fats
from fedforget.baselines.method import Method, Problem
from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.lives import Life, Meter
from fedforget.experiments.problems import (
    WRITERS,
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
from fedforget.planner.costs import Withdrawal, forgetting_cost

NAME = "performance"
DATASETS = ("mnist", "fashion-mnist", "femnist", WRITERS)
LEVELS = ("sample", "client")


def cells(choice: Choice) -> Iterator[Cell]:
    """A cell for each dataset, method and seed; both levels go on from one common training."""
    for dataset in datasets_of(choice, DATASETS):
        training = halved(training_of(dataset), choice.scale)
        for seed in choice.seeds:
            for method in METHODS:
                work = _Work(training, METHODS[method], seed, choice)
                yield Cell(f"{NAME}/{choice.scale}/{dataset}/{method}/{seed}", work.seconds, work.rows)


@dataclass(frozen=True, slots=True)
class _Work:
    """One method on one problem: learn once, then both kinds of requests from there."""

    training: Training
    method: type[Method]
    seed: int
    choice: Choice

    @property
    def seconds(self) -> float:
        rounds = 3 * self.training.plan.rounds + (2 * self.training.request_round if self.method is Fats else 0)
        return seconds_of(self.training, rounds, self.choice)

    def rows(self) -> list[Row]:
        problem = build_problem(self.training, self.seed, self.choice)
        leaving = leaving_clients(choose_requests(problem, "client", self.training.requests, self.seed))
        shared = Life(self.method(problem), Meter(problem, leaving), heartbeat=self.choice.heartbeat)
        shared.learn(computed=self.training.request_round)
        whole = shared.meter.whole(shared.method.state.model)
        return [row for level in LEVELS for row in self._level(problem, shared.fork(), level, whole)]

    def _level(self, problem: Problem, life: Life, level: str, whole_before: float) -> list[Row]:
        started = time.monotonic()
        requests = choose_requests(problem, level, self.training.requests, self.seed)
        done = life.unlearn(requests)
        life.learn(computed=self.training.plan.rounds)
        facts = facts_of(NAME, self.training, problem, level, self.seed, self.choice.scale, len(requests))
        facts["method"] = self.method.name
        rows = curve_rows(facts, life)
        rows += key_rows(facts, life, whole_before)
        rows.append({
            **facts, "kind": "summary", "rounds_computed": life.computed, "round": life.method.rounds_done,
            "accuracy": life.before, "steps": done.cost.steps,
            "theory_steps": self._theory(problem, requests), "bytes_up": done.cost.bytes_up,
            "bytes_down": done.cost.bytes_down, "drop": life.drop, "recovery": life.recovery,
            "model_digest": life.method.model_digest, "retrained_digest": self._retrained(problem, life),
            "seconds": time.monotonic() - started,
        })  # fmt: skip
        return rows

    def _theory(self, problem: Problem, requests: list[Request]) -> float:
        if self.method is Fats:
            return expected_steps(problem, requests, self.training.request_round)
        return float(self.training.request_round * self.training.plan.local_steps)

    def _retrained(self, problem: Problem, life: Life) -> str | None:
        """The digest of FATS trained from scratch without the data, under the same seeds, to the same round."""
        if self.method is not Fats:
            return None
        scratch = Fats(problem, life.method.gone)
        scratch.learn(life.method.rounds_done)
        return scratch.model_digest


def expected_steps(problem: Problem, requests: list[Request], rounds: int) -> float:
    """The exact expectation of FATS's time for these requests at once, when they come after so many rounds."""
    sizes = {client: len(ids) for client, ids in problem.data.members().items()}
    lost: dict[Any, int | None] = {}
    for request in requests:
        lost[request.client] = None if request.sample is None else (lost.get(request.client) or 0) + 1
    plan = problem.plan
    return forgetting_cost(
        [Withdrawal(sizes[client], count) for client, count in lost.items()],
        clients=len(sizes),
        clients_per_round=plan.clients_per_round,
        batch_size=plan.batch_size,
        local_steps=plan.local_steps,
        rounds=rounds,
    ).expected_steps


def facts_of(
    experiment: str, training: Training, problem: Problem, level: str, seed: int, scale: str, requests: int
) -> Row:
    """What every row of a life says; ρ is that of the horizon."""
    plan, sizes = problem.plan, problem.data.sizes()
    return {
        "experiment": experiment, "group": training.dataset, "dataset": training.dataset, "scale": scale,
        "level": level, "seed": seed, "M": len(sizes), "N": sum(sizes) / len(sizes), "K": plan.clients_per_round,
        "b": plan.batch_size, "E": plan.local_steps, "R": plan.rounds, "rho_c": plan.realised_rho_c(len(sizes)),
        "rho_s": plan.clients_per_round * plan.steps * plan.batch_size / sum(sizes), "requests": requests,
    }  # fmt: skip


def curve_rows(facts: Row, life: Life) -> list[Row]:
    return [
        {**facts, "kind": moment.phase, "rounds_computed": moment.rounds_computed, "round": moment.round,
         "accuracy": moment.accuracy}
        for moment in life.moments
    ]  # fmt: skip


def key_rows(facts: Row, life: Life, whole_before: float) -> list[Row]:
    """Accuracy on the whole test set before the requests, at the lowest point, and at the end."""
    lowest = life.lowest[1] if life.lowest else life.method.state.model
    at = {
        "before": (life.before, whole_before),
        "lowest": (life.lowest[0] if life.lowest else None, life.meter.whole(lowest)),
        "end": (life.moments[-1].accuracy, life.meter.whole(life.method.state.model)),
    }
    return [
        {**facts, "kind": kind, "accuracy": few, "accuracy_full": whole, "count": len(life.unlearnings)}
        for kind, (few, whole) in at.items()
    ]
