"""Figures 4 and 7: accuracy and unlearning time of FATS against ρ_S (through b) and ρ_C (through K).

ρ_C is varied with b fixed, so that ρ_S grows with it, and with b ∝ 1/ρ_C as in the first line of Algorithm 1, so that
ρ_S stays. Times come from the first uses that the trained clients noted: the mean over clients of the mean over their
samples, and the mean over clients.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedforget.baselines.fats import Fats
from fedforget.baselines.method import Problem
from fedforget.data.registry import DIGITS
from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.comparison import LEVELS, facts_of
from fedforget.experiments.family import law_of_time
from fedforget.experiments.lives import LAST, Life, Meter
from fedforget.experiments.presets import described
from fedforget.experiments.problems import (
    Training,
    build_problem,
    bytes_of_rounds,
    data_of,
    datasets_of,
    halved,
    training_of,
)
from fedforget.experiments.rows import SMOKE, Row
from fedforget.experiments.simulate import steps_from_round
from fedforget.experiments.timing import seconds_of
from fedforget.planner.costs import forgetting_cost, sample_change
from fedforget.planner.round_law import Withdrawal, client_change

NAME = "tradeoff"
DATASETS = ("mnist", "fashion-mnist")
BATCH, SLOTS, SLOTS_SAME_RHO_S = "rho_S by b", "rho_C by K, b fixed", "rho_C by K, rho_S fixed"
_BATCHES = {"mnist": range(5, 41, 5), "fashion-mnist": (3, 6, 9, 12, 15, 18, 21, 24), DIGITS: (1, 2, 4, 6)}
_SLOTS = {"mnist": range(2, 11), "fashion-mnist": range(2, 7), DIGITS: (1, 2, 4)}


def points_of(training: Training) -> list[tuple[str, int, int]]:
    """(which curve, K, b) of every point."""
    plan = training.plan
    K, b, dataset = plan.clients_per_round, plan.batch_size, training.dataset
    points = [(BATCH, K, batch) for batch in _BATCHES[dataset]]
    points += [(SLOTS, slots, b) for slots in _SLOTS[dataset]]
    return points + [(SLOTS_SAME_RHO_S, slots, max(1, b * K // slots)) for slots in _SLOTS[dataset]]


def cells(choice: Choice) -> Iterator[Cell]:
    """A cell for each point and seed: one training up to the round of the requests."""
    for dataset in datasets_of(choice, DATASETS):
        training = halved(training_of(dataset), choice.scale)
        points = points_of(training)[:: 2 if choice.scale == SMOKE else 1]
        for kind, slots, batch in points:
            plan = replace(training.plan, clients_per_round=slots, batch_size=batch, rounds=training.request_round)
            for seed in choice.seeds(NAME, dataset):
                work = _Work(replace(training, plan=plan), kind, seed, choice)
                name = f"{NAME}/{choice.scale}/{dataset}/{kind}/K={slots}/b={batch}/{seed}"
                used = described(plan.local)
                yield Cell(name, work.seconds, work.rows, seed, work.disk, used, data_of(dataset))


@dataclass(frozen=True, slots=True)
class _Work:
    """One training of FATS at one point."""

    training: Training
    kind: str
    seed: int
    choice: Choice

    @property
    def disk(self) -> int:
        return bytes_of_rounds(self.training, self.training.plan.rounds)

    @property
    def seconds(self) -> float:
        return seconds_of(self.training, self.training.plan.rounds, self.choice)

    def rows(self) -> list[Row]:
        started = time.monotonic()
        problem = build_problem(self.training, self.seed, self.choice)
        method = Fats(problem)
        life = Life(method, Meter(problem), heartbeat=self.choice.heartbeat)
        life.learn()
        accuracy = float(np.mean([moment.accuracy for moment in life.moments[-LAST:]]))
        facts = {"accuracy": accuracy, "accuracy_full": life.meter.whole(method.state.model),
                 "model_digest": method.model_digest, "seconds": time.monotonic() - started}  # fmt: skip
        return [{**self._facts(problem, level), **facts, **times(problem, method, level)} for level in LEVELS]

    def _facts(self, problem: Problem, level: str) -> Row:
        facts = facts_of(NAME, self.training, problem, level, self.seed, self.choice.scale, 1)
        plan = problem.plan
        return {**facts, "method": Fats.name, "kind": self.kind, "rounds_computed": plan.rounds, "round": plan.rounds}


def times(problem: Problem, method: Fats, level: str) -> Row:
    """Mean unlearning time of one request over every target of a training, and its exact expectation."""
    plan, members = problem.plan, problem.data.members()
    uses = method.first_steps() if level == "sample" else {}
    rounds = method.first_rounds()
    means, laws = [], {size: _law(problem, size, level) for size in {len(ids) for ids in members.values()}}
    for client, ids in members.items():
        if level == "client":
            first = np.array([rounds.get(client, 0)])
        else:
            used = uses.get(client, {})
            first = np.array([-(-used.get(sample, 0) // plan.local_steps) for sample in ids])
        means.append(float(steps_from_round(first, plan.rounds, plan.local_steps).mean()))
    theory, variance = np.mean([laws[len(ids)] for ids in members.values()], axis=0)
    return {
        "steps": float(np.mean(means)), "theory_steps": float(theory), "variance": float(variance),
        "count": len(means), "largest": plan.steps,
    }  # fmt: skip


def _law(problem: Problem, size: int, level: str) -> tuple[float, float]:
    """Return mean and variance of the time of one request, for a client of this size."""
    plan, clients = problem.plan, len(problem.data.members())
    world = {"clients": clients, "clients_per_round": plan.clients_per_round, "batch_size": plan.batch_size,
             "local_steps": plan.local_steps}  # fmt: skip
    lost = None if level == "client" else 1
    change = client_change(clients, plan.clients_per_round) if lost is None else sample_change(size, **world)
    cost = forgetting_cost([Withdrawal(size, lost)], rounds=plan.rounds, **world)
    return cost.expected_steps, law_of_time(float(change), plan.rounds, plan.local_steps)[1]
