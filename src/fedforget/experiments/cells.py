"""The unit of work of every experiment, and the caller's choice of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedforget.experiments.rows import SMALL, SMOKE, Row
from fedforget.experiments.settings import runs_of
from fedforget.session.workforce import Workforce

_INLINE = Workforce()


@dataclass(frozen=True, slots=True)
class Choice:
    """The datasets, scale and runs to reproduce."""

    scale: str
    runs: int | None = None  # seeds; None: those of ``settings.runs_of``
    datasets: tuple[str, ...] = ()  # empty: all of the experiment
    data_dir: Path | None = None
    workforce: Workforce = _INLINE
    heartbeat: Callable[[str], None] | None = None  # hears about rounds inside a long cell
    check_data: bool = True  # refuse datasets that are not here
    accept_data: bool = False  # take data that are not the published ones
    checksums: Mapping[str, str] = field(default_factory=dict)  # of the data that were found at the start, by name

    def seeds(self, experiment: str, dataset: str) -> range:
        """Return the seeds, one per run: half of them at ``small``, one at ``smoke``."""
        wanted = runs_of(experiment, dataset) if self.runs is None else self.runs
        runs = {SMOKE: 1, SMALL: -(-wanted // 2)}.get(self.scale, wanted)
        return range(1, runs + 1)

    def wants(self, dataset: str) -> bool:
        return not self.datasets or dataset in self.datasets


@dataclass(frozen=True, slots=True)
class Cell:
    """A unit of work, computed as a whole: its name, an estimate of its seconds, and the function of its rows."""

    name: str
    seconds: float
    compute: Callable[[], Sequence[Row]]
    seed: int | None = None
    disk: int = 0  # at most, of states in temporary files at the same time
    optimizer: str | None = None  # the optimiser of its training; rows of another one are computed again
    data: str | None = None  # the dataset whose files it reads
