"""Cells that compare methods: train, carry out requests, continue; every computed round is evaluated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.baselines.catalogue import METHODS
from fedforget.baselines.fats import Fats
from fedforget.baselines.method import Cost, Method, Problem
from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.family import law_of_time
from fedforget.experiments.lives import Life, Meter
from fedforget.experiments.presets import described
from fedforget.experiments.problems import (
    Training,
    build_problem,
    bytes_of_rounds,
    choose_requests,
    data_of,
    datasets_of,
    halved,
    leaving_clients,
    training_of,
)
from fedforget.experiments.rows import Row
from fedforget.experiments.timing import seconds_of
from fedforget.planner.costs import forgetting_cost
from fedforget.planner.round_law import Withdrawal

LEVELS = ("sample", "client")
Scheduled = tuple[Training, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method on one training: it trains once, and both kinds of requests continue from there.

    ``arrivals``: the rounds computed when requests come, whatever the method has reached by then. After a single
    arrival every method goes on to the model of round R, the plan's horizon, however many rounds it has to compute,
    and FATS is compared with a training from scratch. With several, all end when R rounds have been computed.
    """

    experiment: str
    training: Training
    arrivals: tuple[int, ...]
    method: type[Method]
    seed: int
    choice: Choice

    @property
    def seconds(self) -> float:
        rounds = 2 * self.training.plan.rounds
        if self._alone:
            rounds += self.arrivals[0] + (rounds if self.method is Fats else 0)
        return seconds_of(self.training, rounds, self.choice)

    @property
    def disk(self) -> int:
        """Return the bytes of the kept states: FATS keeps every round of all three trainings."""
        trainings = 3 if self._alone else 2
        return bytes_of_rounds(self.training, trainings * self.training.plan.rounds) if self.method is Fats else 0

    @property
    def _alone(self) -> bool:
        return len(self.arrivals) == 1

    def rows(self) -> list[Row]:
        started = time.monotonic()
        problem = build_problem(self.training, self.seed, self.choice)
        shared = Life(
            self.method(problem), Meter(problem, leaving_clients(self._requests(problem, "client"))),
            heartbeat=self.choice.heartbeat,
        )  # fmt: skip
        shared.learn(computed=self.arrivals[0])
        whole = shared.meter.whole(shared.method.state.model)
        part = (time.monotonic() - started) / len(LEVELS)  # of the common training, so that a cell's seconds add up
        return [row for level in LEVELS for row in self._level(problem, shared.fork(), level, whole, part)]

    def _requests(self, problem: Problem, level: str) -> list[Request]:
        """Return the requests of all arrivals, in order."""
        return choose_requests(problem, level, self.training.requests * len(self.arrivals), self.seed)

    def _level(self, problem: Problem, life: Life, level: str, whole_before: float, shared: float) -> list[Row]:
        """``shared``: seconds of the common training that count for this level."""
        started, per_arrival = time.monotonic() - shared, self.training.requests
        asked = self._requests(problem, level)
        law = self._law(problem, life, asked[:per_arrival])
        for number, until in enumerate((*self.arrivals[1:], self.training.plan.rounds)):
            life.unlearn(asked[number * per_arrival : (number + 1) * per_arrival], None if self._alone else until)
            life.learn(computed=None if self._alone else until)
        cost = sum((done.cost for done in life.unlearnings), Cost())
        facts = facts_of(self.experiment, self.training, problem, level, self.seed, self.choice.scale, len(asked))
        facts["method"] = self.method.name
        arrivals = [] if self._alone else arrival_rows(facts, life, law)
        return [*curve_rows(facts, life), *key_rows(facts, life, whole_before), *arrivals, {
            **facts, **(law if self._alone else {}), "kind": "summary", "rounds_computed": life.computed,
            "round": life.method.rounds_done, "accuracy": life.before, "steps": cost.steps, "bytes_up": cost.bytes_up,
            "bytes_down": cost.bytes_down, "drop": life.drop, "recovery": life.recovery,
            "model_digest": life.method.model_digest, "retrained_digest": self._retrained(problem, life),
            "seconds": time.monotonic() - started,
        }]  # fmt: skip

    def _law(self, problem: Problem, life: Life, requests: Sequence[Request]) -> Row:
        """Return the law of the time of the first arrival. Those of later arrivals depend on the round reached."""
        done = life.method.rounds_done
        if self.method is Fats:
            return law_of_requests(problem, requests, done)
        return {"theory_steps": float(done * problem.plan.local_steps)}

    def _retrained(self, problem: Problem, life: Life) -> str | None:
        """The digest of FATS trained from scratch without the data, under the same seeds, to the same round."""
        if self.method is not Fats or not self._alone:
            return None
        scratch = Fats(problem, life.method.gone)
        scratch.learn(life.method.rounds_done)
        return scratch.model_digest


def comparison_cells(
    experiment: str, datasets: tuple[str, ...], choice: Choice, schedule: Callable[[Training], Scheduled]
) -> Iterator[Cell]:
    """A cell for each dataset, seed and method; both levels continue one common training.

    ``schedule`` returns the training up to its horizon, and the arrivals.
    """
    for dataset in datasets_of(choice, datasets):
        for seed in choice.seeds(experiment, dataset):
            for name, method in METHODS.items():
                training, arrivals = schedule(halved(training_of(dataset, method), choice.scale))
                work = Comparison(experiment, training, arrivals, method, seed, choice)
                cell = f"{experiment}/{choice.scale}/{dataset}/{name}/{seed}"
                used = described(training.plan.local)
                yield Cell(cell, work.seconds, work.rows, seed, work.disk, used, data_of(dataset))


def law_of_requests(problem: Problem, requests: Sequence[Request], rounds: int) -> Row:
    """Return the exact law of FATS's time for these requests at once, after so many rounds."""
    sizes = {client: len(ids) for client, ids in problem.data.members().items()}
    lost: dict[Any, int | None] = {}
    for request in requests:
        lost[request.client] = None if request.sample is None else (lost.get(request.client) or 0) + 1
    plan = problem.plan
    withdrawals = [Withdrawal(sizes[client], count) for client, count in lost.items()]
    world = {"clients": len(sizes), "clients_per_round": plan.clients_per_round, "batch_size": plan.batch_size,
             "local_steps": plan.local_steps}  # fmt: skip
    change = forgetting_cost(withdrawals, rounds=1, **world).probability
    return {
        "theory_steps": forgetting_cost(withdrawals, rounds=rounds, **world).expected_steps,
        "variance": law_of_time(change, rounds, plan.local_steps)[1],
        "count": 1,
        "largest": rounds * plan.local_steps,
    }


def facts_of(
    experiment: str, training: Training, problem: Problem, level: str | None, seed: int, scale: str, requests: int
) -> Row:
    """Return the fields of every row of a life; ρ is that of the horizon."""
    plan, sizes = problem.plan, problem.data.sizes()
    return {
        "experiment": experiment, "group": training.dataset, "dataset": training.dataset, "scale": scale,
        "level": level, "seed": seed, "M": len(sizes), "N": sum(sizes) / len(sizes), "K": plan.clients_per_round,
        "b": plan.batch_size, "E": plan.local_steps, "R": plan.rounds, "rho_c": plan.realised_rho_c(len(sizes)),
        "rho_s": plan.clients_per_round * plan.steps * plan.batch_size / sum(sizes), "requests": requests,
        "optimizer": described(plan.local),
    }  # fmt: skip


def curve_rows(facts: Row, life: Life) -> list[Row]:
    return [
        {**facts, "kind": moment.phase, "rounds_computed": moment.rounds_computed, "round": moment.round,
         "accuracy": moment.accuracy}
        for moment in life.moments
    ]  # fmt: skip


def arrival_rows(facts: Row, life: Life, first: Row) -> list[Row]:
    """Return a row with the cost of each arrival until the next one; the first has an exact law."""
    return [
        {**facts, **(first if number == 0 else {}), "kind": f"arrival {number + 1}", "requests": done.requests,
         "rounds_computed": done.at, "round": done.goal, "steps": done.cost.steps, "bytes_up": done.cost.bytes_up,
         "bytes_down": done.cost.bytes_down}
        for number, done in enumerate(life.unlearnings)
    ]  # fmt: skip


def key_rows(facts: Row, life: Life, whole_before: float) -> list[Row]:
    """Accuracy on the whole test set before the requests, at the lowest point, and at the end; which model it is."""
    lowest = life.lowest[1] if life.lowest else life.method.state.model
    first = life.unlearnings[0]
    at: dict[str, Row] = {
        "before": {"accuracy": life.before, "accuracy_full": whole_before,
                   "rounds_computed": first.at, "round": first.goal},
        "lowest": {"accuracy": life.lowest[0] if life.lowest else None, "accuracy_full": life.meter.whole(lowest)},
        "end": {"accuracy": life.moments[-1].accuracy, "accuracy_full": life.meter.whole(life.method.state.model),
                "rounds_computed": life.computed, "round": life.method.rounds_done},
    }  # fmt: skip
    return [{**facts, "kind": kind, **values, "count": len(life.unlearnings)} for kind, values in at.items()]
