"""Finished cells that have to be computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedforget.experiments.cells import Cell
from fedforget.experiments.laws import with_laws
from fedforget.experiments.rows import Row, optimizers_of


def stale_cells(cells: Sequence[Cell], rows: Sequence[Row]) -> dict[str, list[str]]:
    """The finished cells that are to be computed again, by reason."""
    used, names = optimizers_of(rows), {cell.name for cell in cells}
    tuned = [cell.name for cell in cells if _is_stale(cell, used)]
    lawless = [name for name in with_laws(rows)[1] if name in names and name not in tuned]
    found = {"another optimiser was tuned since": tuned, "their rows lack the law of their times": lawless}
    return {why: stale for why, stale in found.items() if stale}


def _is_stale(cell: Cell, used: Mapping[str, str | None]) -> bool:
    """Return whether a finished cell was computed with another optimiser than the present one."""
    return None not in (cell.optimizer, used.get(cell.name)) and used[cell.name] != cell.optimizer
