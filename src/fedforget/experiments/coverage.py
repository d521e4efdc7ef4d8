"""Coverage: which cells of the paper's scale are finished, for every experiment that trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.reproduce import EXPERIMENTS
from fedforget.experiments.rows import PAPER, Row, optimizers_of
from fedforget.experiments.stale import stale_cells
from fedforget.experiments.tables import Table

COMPLETE, PARTLY, ABSENT = "complete", "partly", "not measured"


def coverage_table(results: Mapping[str, Sequence[Row]]) -> Table:
    """A line for each dataset that an experiment trains on."""
    header = ("experiment", "figures", "dataset", "seeds", "of", "cells", "of", "state")
    lines = []
    for name, experiment in EXPERIMENTS.items():
        used = optimizers_of(results.get(name, ()))
        for dataset in experiment.trains:
            planned = list(experiment.cells(Choice(PAPER, None, (dataset,), check_data=False)))
            stale = {each for found in stale_cells(planned, results.get(name, ())).values() for each in found}
            finished = {cell.name for cell in planned if cell.name in used} - stale
            done = sum(cell.name in finished for cell in planned)
            state = COMPLETE if done == len(planned) else PARTLY if done else ABSENT
            seeds = _seeds(planned)
            whole = sum(_seeds(cell for cell in planned if cell.name in finished).get(seed) == count
                        for seed, count in seeds.items())  # fmt: skip
            lines.append((name, experiment.what, dataset, whole, len(seeds), done, len(planned), state))
    return Table(
        "What has run at the paper's scale",
        header,
        lines,
        "A seed counts when all of its cells are finished, with today's optimisers and with the laws of their times.",
    )


def _seeds(cells: Iterable[Cell]) -> dict[int, int]:
    """Cells of each seed."""
    found: dict[int, int] = {}
    for cell in cells:
        if cell.seed is not None:
            found[cell.seed] = found.get(cell.seed, 0) + 1
    return found
