"""Figure 3: the time of 1 to 10 client requests, all at once and one after another, for every K."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedforget.algorithm.forget import Request
from fedforget.algorithm.seeds import SeedSource
from fedforget.algorithm.streams import numpy_stream
from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.family import law_of_time
from fedforget.experiments.rows import SMOKE, Row
from fedforget.experiments.settings import REQUESTS, RequestsGrid
from fedforget.experiments.simulate import (
    Whole,
    draw_slot_orders,
    first_rounds,
    steps_from_round,
    stream_first_rounds,
)
from fedforget.planner.costs import expected_stream_cost, forgetting_cost
from fedforget.planner.round_law import Withdrawal, client_change

NAME = "requests"
AT_ONCE, IN_A_STREAM = "at once", "one after another"
_STREAMS_SMOKE = 4  # streams in a run; otherwise as many as are disjoint
_SAMPLES = 1  # N does not matter for clients


def cells(choice: Choice) -> Iterator[Cell]:
    """A cell for each panel and seed."""
    for name, grid in REQUESTS.items():
        if choice.wants(grid.dataset):
            for seed in choice.seeds(NAME, grid.dataset):
                work = _Work(name, grid, seed, choice.scale)
                yield Cell(f"{NAME}/{choice.scale}/{name}/{seed}", work.seconds, work.rows)


@dataclass(frozen=True, slots=True)
class _Work:
    """One training's slots: every K and number of requests of a panel."""

    name: str
    grid: RequestsGrid
    seed: int
    scale: str

    @property
    def seconds(self) -> float:
        return self.grid.rounds * max(self.grid.slots) * 5e-5 + 0.2

    def rows(self) -> list[Row]:
        grid = self.grid
        seeds = SeedSource(f"{NAME}/{self.name}/{self.seed}")
        most = max(grid.requests)
        orders = draw_slot_orders(seeds, grid.clients, grid.rounds, max(grid.slots), most + 1)
        shuffled = numpy_stream(seeds.partition()).permutation(grid.clients)
        firsts = first_rounds(orders[..., 0], grid.clients, grid.slots)
        rows = [
            self._at_once(firsts[slots], shuffled, slots, requests)
            for slots in grid.slots
            for requests in grid.requests
        ]
        return rows + self._streams(orders, shuffled, most) + [self._frs(requests) for requests in grid.requests]

    def _at_once(self, first: Whole, shuffled: Whole, slots: int, requests: int) -> Row:
        """Disjoint groups of clients leave together: the first round of a group is that of its earliest client."""
        grid, groups = self.grid, len(shuffled) // requests
        never = grid.rounds + 1
        of_groups = np.where(first == 0, never, first)[shuffled[: groups * requests]].reshape(groups, requests).min(1)
        steps = steps_from_round(np.where(of_groups == never, 0, of_groups), grid.rounds, grid.local_steps)
        cost = forgetting_cost([Withdrawal(_SAMPLES, None)] * requests, **self._world(slots))
        change = -math.expm1(slots * math.log1p(-requests / grid.clients))
        _, variance = law_of_time(change, grid.rounds, grid.local_steps)
        return self._row(AT_ONCE, slots, requests, groups, float(steps.mean()), cost.expected_steps, variance, 1)

    def _streams(self, orders: Whole, shuffled: Whole, most: int) -> list[Row]:
        """Disjoint streams of clients leave one by one; the cost of w requests is that of a stream's first w."""
        count = min(len(shuffled) // most, _STREAMS_SMOKE if self.scale == SMOKE else len(shuffled))
        groups = shuffled[: count * most].reshape(count, most)
        found = [stream_first_rounds(orders, group.tolist(), self.grid.slots) for group in groups]
        rows = []
        for slots in self.grid.slots:
            first = np.array([each[slots] for each in found])
            steps = steps_from_round(first, self.grid.rounds, self.grid.local_steps).cumsum(1)
            rows += [
                self._stream_row(slots, requests, count, float(steps[:, requests - 1].mean()))
                for requests in self.grid.requests
            ]
        return rows

    def _stream_row(self, slots: int, requests: int, count: int, mean: float) -> Row:
        """The deviations of a sum add up at most: (Σ σ_j)² bounds its variance."""
        grid = self.grid
        sizes = dict.fromkeys(range(requests), _SAMPLES)
        stream = [Request(client) for client in range(requests)]
        theory = expected_stream_cost(stream, sizes, **self._world(slots)).expected_steps  # type: ignore[arg-type]
        changes = [float(client_change(grid.clients - left, slots)) for left in range(requests)]
        deviation = sum(math.sqrt(law_of_time(change, grid.rounds, grid.local_steps)[1]) for change in changes)
        return self._row(IN_A_STREAM, slots, requests, count, mean, theory, deviation**2, requests)

    def _world(self, slots: int) -> dict[str, int]:
        return {
            "clients": self.grid.clients,
            "clients_per_round": slots,
            "batch_size": 1,
            "local_steps": self.grid.local_steps,
            "rounds": self.grid.rounds,
        }

    def _row(
        self, kind: str, slots: int, requests: int, count: int, mean: float, theory: float, variance: float, times: int
    ) -> Row:
        return {
            **self._facts(kind, requests), "method": "FATS", "K": slots,
            "rho_c": slots * self.grid.rounds / self.grid.clients, "steps": mean, "theory_steps": theory,
            "count": count, "variance": variance, "largest": times * self.grid.rounds * self.grid.local_steps,
        }  # fmt: skip

    def _frs(self, requests: int) -> Row:
        """Return the row of FRS: one retraining for requests at once. In a stream, each request would cost as much."""
        steps = self.grid.rounds * self.grid.local_steps
        return {**self._facts(AT_ONCE, requests), "method": "FRS", "steps": steps, "theory_steps": steps}

    def _facts(self, kind: str, requests: int) -> Row:
        return {
            "experiment": NAME, "group": self.name, "dataset": self.grid.dataset, "scale": self.scale,
            "level": "client", "seed": self.seed, "M": self.grid.clients, "E": self.grid.local_steps,
            "R": self.grid.rounds, "requests": requests, "kind": kind,
        }  # fmt: skip
