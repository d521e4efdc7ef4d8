"""Result rows on disk: a CSV that grows by one finished cell at a time and survives a kill at any moment.

A cell is one unit of work. Its rows are appended by one write and made durable; each says how many rows its cell has.
A cell that was cut short by a crash, or a torn last line, is dropped when the file is opened again.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedforget.disk.files import storage_errors, sync_directory, write_durably
from fedforget.errors import InvalidInput

Row = dict[str, Any]
SMOKE, SMALL, PAPER = SCALES = ("smoke", "small", "paper")
CSV_COLUMNS = (
    "dataset", "scale", "method", "level", "seed", "M", "N", "K", "b", "E", "R", "rho_c", "rho_s", "requests",
    "rounds_computed", "round", "accuracy", "steps", "theory_steps", "bytes_up", "bytes_down", "model_digest",
)  # fmt: skip
MORE_COLUMNS = (
    "experiment", "cell", "cell_rows", "kind", "group", "count", "variance", "largest", "steps_from_first_use",
    "theory_from_first_use", "accuracy_full", "retrained_digest", "drop", "recovery", "seconds", "optimizer", "data",
)  # fmt: skip
COLUMNS = (*CSV_COLUMNS, *MORE_COLUMNS)
_OLDEST = COLUMNS.index("seconds") + 1  # columns of the first version; later ones are added at the end
_TEXT = {"dataset", "scale", "method", "level", "model_digest", "experiment", "cell", "kind", "group",
         "retrained_digest", "optimizer", "data"}  # fmt: skip


class ResultsFile:
    """The rows of one experiment. Opening it keeps every finished cell and nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        if path.exists():
            self._read()
        else:
            write_durably(path, _encoded([dict(zip(COLUMNS, COLUMNS, strict=True))]))
        self.finished = {row["cell"] for row in self.rows}

    def _read(self) -> None:
        with storage_errors(self.path):
            text = self.path.read_bytes().decode("utf-8", "replace")
        whole = text[: text.rfind("\n") + 1]
        self.rows = finished_rows(parse(whole, self.path))
        kept = _encoded([dict(zip(COLUMNS, COLUMNS, strict=True)), *self.rows])
        if kept.decode() != text:
            write_durably(self.path, kept)

    def drop(self, cells: Collection[str]) -> None:
        """Drop finished cells, durably."""
        self.rows = [row for row in self.rows if row["cell"] not in cells]
        self.finished -= set(cells)
        write_durably(self.path, _encoded([dict(zip(COLUMNS, COLUMNS, strict=True)), *self.rows]))

    def append(self, cell: str, rows: Sequence[Row]) -> None:
        """Add a finished cell, durably."""
        complete = [{**row, "cell": cell, "cell_rows": len(rows)} for row in rows]
        with storage_errors(self.path):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, _encoded(complete))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_directory(self.path.parent)
        self.rows += parse(_encoded([dict(zip(COLUMNS, COLUMNS, strict=True)), *complete]).decode(), self.path)
        self.finished.add(cell)


def parse(text: str, path: Path) -> list[Row]:
    """The rows of a CSV text: numbers as numbers, empty cells as None. Older rows lack the last columns."""
    reader = csv.reader(io.StringIO(text))
    header = next(reader, COLUMNS)
    if len(header) < _OLDEST or tuple(header) != COLUMNS[: len(header)]:
        raise InvalidInput(
            f"{path} has other columns than this version writes",
            hint="choose a new directory for --out, or move the file away",
        )
    absent = dict.fromkeys(COLUMNS[len(header) :], "")
    return [_typed({**dict(zip(header, row, strict=True)), **absent}) for row in reader if len(row) == len(header)]


def read_rows(path: Path) -> list[Row]:
    """The finished rows of a results file, without changing it."""
    with storage_errors(path):
        text = path.read_text(encoding="utf-8")
    return finished_rows(parse(text[: text.rfind("\n") + 1], path))


def finished_rows(rows: Iterable[Row]) -> list[Row]:
    """Drop cells with fewer rows than they state."""
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(row["cell"] or "", []).append(row)
    return [row for group in cells.values() if len(group) == group[0]["cell_rows"] for row in group]


def optimizers_of(rows: Iterable[Row]) -> dict[str, str | None]:
    """The optimiser that each cell was computed with; None if its rows lack it."""
    return {row["cell"]: row["optimizer"] for row in rows}


def real(results: Mapping[str, Sequence[Row]], name: str) -> list[Row]:
    """The rows of an experiment on real data: digits decide nothing."""
    return [row for row in results.get(name, ()) if row["dataset"] != "digits"]


def of_largest_scale(rows: Sequence[Row]) -> list[Row]:
    """Of each dataset the rows of its largest scale: means never mix scales."""
    largest: dict[str, int] = {}
    for row in rows:
        largest[row["dataset"]] = max(largest.get(row["dataset"], 0), SCALES.index(row["scale"]))
    return [row for row in rows if SCALES.index(row["scale"]) == largest[row["dataset"]]]


def _typed(row: Mapping[str, str]) -> Row:
    return {name: _value(name, text) for name, text in row.items()}


def _value(name: str, text: str) -> Any:
    if text == "":
        return None
    if name in _TEXT:
        return text
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() and "." not in text and "e" not in text else number


def _encoded(rows: Iterable[Mapping[str, Any]]) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([_text(row.get(name)) for name in COLUMNS] for row in rows)
    return buffer.getvalue().encode()


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.10g}" if isinstance(value, float) else str(value)
