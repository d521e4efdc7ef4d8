"""What the authors published beside Table 2 (``presets``): horizons, requests, grids of the figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """The horizon of a dataset's published plots, and the number of requests at once (Section 6.2.1)."""

    horizon: int  # rounds in Figures 1 and 5
    requests: int
    streaming_horizon: int = 0  # rounds in Figure 8; 0: not in it


SCHEDULES: Mapping[str, Schedule] = {
    "mnist": Schedule(50, 10, 100),
    "fashion-mnist": Schedule(75, 5),
    "cifar-10": Schedule(70, 5),
    "cifar-100": Schedule(70, 5),
    "femnist": Schedule(500, 10, 120),
    "femnist-writers": Schedule(51, 10, 120),  # 51 is our choice: the ratio of 500 to 350, for requests at round 36
    "shakespeare": Schedule(50, 5),
}
STREAMING_ROUNDS = (20, 40, 60)

RUNS = 5  # seeds of an experiment, unless the caller says how many or the next table does
FEWER_OR_MORE: Mapping[tuple[str, str], int] = {
    ("accuracy", "mnist"): 20,  # five did not decide it
    ("tradeoff", "mnist"): 3,
    ("tradeoff", "fashion-mnist"): 3,
    **{(experiment, "femnist"): 1 for experiment in ("accuracy", "performance", "streaming")},  # minutes a training
}


def runs_of(experiment: str, dataset: str) -> int:
    """Return the number of seeds of an experiment on a dataset at the scale ``paper``."""
    return FEWER_OR_MORE.get((experiment, dataset), RUNS)


@dataclass(frozen=True, slots=True)
class Grid:
    """A panel of Figures 2 and 6: one request, every K, and either several b or several M."""

    dataset: str
    level: str  # "sample" or "client"
    rounds: int
    local_steps: int
    slots: tuple[int, ...]  # K
    batches: tuple[int, ...]  # b; one for clients, whose time does not depend on it
    clients: tuple[int, ...]  # M
    samples: int  # N
    sizes: str = "equal"  # or "natural": those of the real clients, resampled where there are fewer

    def points(self, clients: int) -> list[tuple[int, int]]:
        """The (K, b) of a line's points: it ends where ρ reaches 1."""
        return [
            (slots, batch)
            for batch in self.batches
            for slots in self.slots
            if self.rho_c(slots, clients) <= 1 and (self.level == "client" or self.rho_s(slots, batch, clients) <= 1)
        ]

    def rho_c(self, slots: int, clients: int) -> float:
        return slots * self.rounds / clients

    def rho_s(self, slots: int, batch: int, clients: int) -> float:
        return batch * slots * self.local_steps * self.rounds / (self.samples * clients)


_EVEN = tuple(range(2, 13, 2))
FEMNIST_BATCHES = (5, 10, 15, 20, 30, 50)
SHAKESPEARE_BATCHES = tuple(range(40, 181, 20))
SHAKESPEARE_CLIENTS = tuple(range(390, 631, 30))
# Figure 2's grid is not published: this one is ours. Figure 6's is read off the published drawing.
EFFICIENCY: Mapping[str, Grid] = {
    "femnist sample": Grid("femnist", "sample", 350, 20, tuple(range(1, 11)), FEMNIST_BATCHES, (3_556,), 228),
    "femnist client": Grid("femnist", "client", 350, 20, tuple(range(1, 11)), (10,), (1_400, 2_100, 2_800, 3_556), 228),
    "femnist sample, natural": Grid(
        "femnist", "sample", 350, 20, tuple(range(1, 11)), FEMNIST_BATCHES, (3_556,), 228, "natural"
    ),
    "shakespeare sample R=50": Grid("shakespeare", "sample", 50, 100, _EVEN, SHAKESPEARE_BATCHES, (660,), 5_573),
    "shakespeare client R=50": Grid("shakespeare", "client", 50, 100, _EVEN, (60,), SHAKESPEARE_CLIENTS, 5_573),
    "shakespeare sample, natural R=50": Grid(
        "shakespeare", "sample", 50, 100, _EVEN, SHAKESPEARE_BATCHES, (660,), 5_573, "natural"
    ),
    "shakespeare sample R=30": Grid("shakespeare", "sample", 30, 100, _EVEN, SHAKESPEARE_BATCHES, (660,), 5_573),
    "shakespeare client R=30": Grid("shakespeare", "client", 30, 100, _EVEN, (60,), SHAKESPEARE_CLIENTS, 5_573),
}


@dataclass(frozen=True, slots=True)
class RequestsGrid:
    """A panel of Figure 3: 1 to 10 client requests for every K."""

    dataset: str
    clients: int
    rounds: int
    local_steps: int
    slots: tuple[int, ...] = tuple(range(2, 11))
    requests: tuple[int, ...] = tuple(range(1, 11))


REQUESTS: Mapping[str, RequestsGrid] = {
    "femnist": RequestsGrid("femnist", 3_550, 350, 20),
    "shakespeare R=50": RequestsGrid("shakespeare", 630, 50, 100),
    "shakespeare R=30": RequestsGrid("shakespeare", 630, 30, 100),
}
