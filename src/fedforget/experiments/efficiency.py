"""Figures 2 and 6: the mean time of one request against K, for several b (samples) and several M (clients)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedforget.algorithm.seeds import SeedSource
from fedforget.algorithm.streams import numpy_stream
from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.family import law_of_time
from fedforget.experiments.problems import natural_sizes
from fedforget.experiments.rows import SMOKE, Row
from fedforget.experiments.settings import EFFICIENCY, Grid
from fedforget.experiments.simulate import BatchRanks, Whole, draw_slots, first_rounds, rank_target, steps_from_round
from fedforget.planner.costs import forgetting_cost, sample_change
from fedforget.planner.round_law import Withdrawal, client_change

NAME = "efficiency"
_TARGETS_SMOKE = 40  # clients that withdraw a sample; otherwise each of them does
_PER_DRAW = 5e-5  # seconds, among a few thousand ids


def cells(choice: Choice) -> Iterator[Cell]:
    """A cell for each panel, M and seed; panels with natural sizes only if the data are present."""
    for name, grid in EFFICIENCY.items():
        if not choice.wants(grid.dataset):
            continue
        known = () if grid.sizes == "equal" else tuple(natural_sizes(grid.dataset, choice))
        if grid.sizes != "equal" and not known:
            continue
        for clients in grid.clients[:: 3 if choice.scale == SMOKE else 1]:
            for seed in choice.seeds(NAME, grid.dataset):
                work = _Work(name, grid, clients, seed, choice.scale, known)
                data = grid.dataset if known else None
                yield Cell(f"{NAME}/{choice.scale}/{name}/M={clients}/{seed}", work.seconds, work.rows, data=data)


@dataclass(frozen=True, slots=True)
class _Work:
    """The draws of one training: every K and b of a panel at one M."""

    name: str
    grid: Grid
    clients: int
    seed: int
    scale: str
    known: tuple[int, ...]  # natural sizes; empty: all are equal

    @property
    def targets(self) -> int:
        return _TARGETS_SMOKE if self.scale == SMOKE else self.clients

    @property
    def seconds(self) -> float:
        slots = max((slots for slots, _ in self.grid.points(self.clients)), default=0)
        draws = slots * self.grid.rounds
        if self.grid.level == "sample":
            draws += round(self.targets * draws / self.clients * self.grid.local_steps)
        return draws * _PER_DRAW

    def rows(self) -> list[Row]:
        seeds = SeedSource(f"{NAME}/{self.name}/{self.clients}/{self.seed}")
        points = self.grid.points(self.clients)
        slots = draw_slots(seeds, self.clients, self.grid.rounds, max(slots for slots, _ in points))
        made = partial(self._client_row, slots) if self.grid.level == "client" else self._sample_rows(seeds, slots)
        return [made(count, batch) for count, batch in points] + [self._frs(points[-1][0])]

    def _client_row(self, drawn: Whole, slots: int, batch: int) -> Row:
        """Every client is a target."""
        first = first_rounds(drawn, self.clients, (slots,))[slots]
        steps = steps_from_round(first, self.grid.rounds, self.grid.local_steps)
        _, variance = law_of_time(float(client_change(self.clients, slots)), self.grid.rounds, self.grid.local_steps)
        mean = float(steps.mean())
        cost = forgetting_cost([Withdrawal(self.grid.samples, None)], **self.world(slots, batch))
        theory = cost.expected_steps
        return self.row(slots, batch, len(steps), mean, theory, variance, mean, theory)

    def _sample_rows(self, seeds: SeedSource, drawn: Whole) -> _SampleRows:
        """One sample of each client is a target."""
        stream = numpy_stream(seeds.partition())
        sizes = np.full(self.targets, self.grid.samples)
        if self.known:
            known = np.array(self.known)
            sizes = known[: self.targets] if len(known) >= self.clients else stream.choice(known, self.targets)
        ranked = [
            rank_target(seeds, drawn, client, int(size), int(stream.integers(size)), self.grid.local_steps)
            for client, size in enumerate(sizes)
        ]
        return _SampleRows(self, ranked, sizes)

    def world(self, slots: int, batch: int) -> dict[str, int]:
        return {
            "clients": self.clients,
            "clients_per_round": slots,
            "batch_size": batch,
            "local_steps": self.grid.local_steps,
            "rounds": self.grid.rounds,
        }

    def row(
        self, slots: int, batch: int, count: int, mean: float, theory: float, variance: float, from_use: float,
        theory_from_use: float,
    ) -> Row:  # fmt: skip
        return {
            **self._facts(slots, batch), "method": "FATS", "rho_c": self.grid.rho_c(slots, self.clients),
            "rho_s": self.grid.rho_s(slots, batch, self.clients), "steps": mean, "theory_steps": theory,
            "steps_from_first_use": from_use, "theory_from_first_use": theory_from_use, "count": count,
            "variance": variance, "largest": self.grid.rounds * self.grid.local_steps,
        }  # fmt: skip

    def _frs(self, slots: int) -> Row:
        steps = self.grid.rounds * self.grid.local_steps
        return {**self._facts(slots, None), "method": "FRS", "steps": steps, "theory_steps": steps}

    def _facts(self, slots: int, batch: int | None) -> Row:
        return {
            "experiment": NAME, "group": self.name, "dataset": self.grid.dataset, "scale": self.scale,
            "level": self.grid.level, "seed": self.seed, "M": self.clients, "N": self.grid.samples, "K": slots,
            "b": batch, "E": self.grid.local_steps, "R": self.grid.rounds, "requests": 1, "kind": self.grid.sizes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _SampleRows:
    """Rows of the sample level, from the ranks of the targets."""

    work: _Work
    ranked: Sequence[BatchRanks]
    sizes: Whole

    def __call__(self, slots: int, batch: int) -> Row:
        grid = self.work.grid
        first = np.array([target.first_step(slots, batch) for target in self.ranked])
        total = grid.rounds * grid.local_steps
        in_round = steps_from_round(-(-first // grid.local_steps), grid.rounds, grid.local_steps)
        from_use = np.where(first == 0, 0, total - first + 1)
        laws = {int(size): self._law(int(size), slots, batch) for size in np.unique(self.sizes)}
        theory, variance, theory_from_use = np.mean([laws[int(size)] for size in self.sizes], axis=0)
        return self.work.row(
            slots, batch, len(first), float(in_round.mean()), float(theory), float(variance), float(from_use.mean()),
            float(theory_from_use),
        )  # fmt: skip

    def _law(self, size: int, slots: int, batch: int) -> tuple[float, float, float]:
        """Expected steps, their variance, and the expected steps from the first use, for a client of this size."""
        world = self.work.world(slots, batch)
        cost = forgetting_cost([Withdrawal(size, 1)], **world)
        change = sample_change(size, **{key: value for key, value in world.items() if key != "rounds"})
        _, variance = law_of_time(float(change), self.work.grid.rounds, self.work.grid.local_steps)
        return cost.expected_steps, variance, cost.expected_steps_from_first_use
