"""Table 2 beside our values: samples, M, N, and the ρ that K, b, E and R realise at the round of the requests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.rows import Row
from fedforget.experiments.table2 import Numbers, table2
from fedforget.experiments.table2 import Row as TableRow

NAME = "datasets"
PRINTED = "printed"
_SECONDS = 20.0  # reading all six


def cells(choice: Choice) -> Iterator[Cell]:
    """One cell: the whole table, or the chosen datasets."""
    name = "/".join((NAME, choice.scale, *(choice.datasets or ("all",))))
    yield Cell(name, _SECONDS, partial(rows, choice))


def rows(choice: Choice) -> list[Row]:
    """Return the printed values, and those that the present data realise."""
    found = [each for each in table2(choice.data_dir) if choice.wants(each.preset)]
    return [_row(each, numbers, choice.scale) for each in found for numbers in (each.printed, each.ours) if numbers]


def _row(each: TableRow, numbers: Numbers, scale: str) -> Row:
    """``largest`` is ρ_S of the worst client."""
    return {
        "experiment": NAME, "group": each.preset, "dataset": each.preset, "scale": scale,
        "kind": numbers.which, "count": numbers.samples, "M": numbers.clients, "N": numbers.mean_size,
        "K": each.clients_per_round, "b": each.batch_size, "E": each.local_steps, "R": each.rounds,
        "rho_c": numbers.rho_c, "rho_s": numbers.rho_s, "largest": numbers.worst_rho_s, "data": numbers.checksum,
    }  # fmt: skip
