"""Curves that the paper's authors published, drawn thin behind our own.

``published.csv`` beside this file holds the curves of Figures 5 to 8 as numbers, read off the vector drawings in the
appendix that the authors published with their code (``Happy2Git/FATS_supplement``). They are exact to about the width
of a line (accuracy ± 0.005); of Figure 6 it has only the lines that can be told apart. A file of the caller's takes
its place. The columns are ``figure``, ``line``, ``x_name``, ``x``, ``y_name`` and ``y``; the first word of ``figure``
is the paper's number of the panel, for instance ``5a``.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from pathlib import Path

from fedforget.disk.door import unreadable_as
from fedforget.errors import InvalidInput

VARIABLE = "FEDFORGET_PUBLISHED"
OURS = Path(__file__).with_name("published.csv")
COLUMNS = ("figure", "line", "x_name", "x", "y_name", "y")
Curve = list[tuple[float, float]]


class Published:
    """Published curves by panel, line and quantity; empty without a file."""

    def __init__(self, path: Path | None = None) -> None:
        self._curves: dict[tuple[str, str, str], Curve] = defaultdict(list)
        if path is not None:
            self._read(path)

    @classmethod
    def found(cls, path: Path | None) -> Published:
        """Read the caller's file, else the one that FEDFORGET_PUBLISHED names, else the one beside this module."""
        named = os.environ.get(VARIABLE)
        return cls(path or (Path(named) if named else OURS))

    def _read(self, path: Path) -> None:
        try:
            with (
                unreadable_as(InvalidInput, path, "correct --published"),
                path.open(encoding="utf-8", newline="") as file,
            ):
                for row in csv.DictReader(file):
                    key = row["figure"].split()[0], row["line"], row["y_name"]
                    self._curves[key].append((float(row["x"]), float(row["y"])))
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise InvalidInput(
                f"{path} is not a file of published curves: {type(error).__name__}: {error}",
                hint=f"give a CSV with the columns {', '.join(COLUMNS)}",
            ) from error

    def curve(self, panel: str | None, line: str, quantity: str) -> Curve:
        return [] if panel is None else list(self._curves.get((panel, line, quantity), ()))

    def values(self, panel: str | None, quantity: str) -> list[float]:
        """Every value of a quantity in a panel."""
        found = [curve for key, curve in self._curves.items() if (key[0], key[2]) == (panel, quantity)]
        return [y for curve in found for _, y in curve]

    def has(self, panel: str) -> bool:
        return any(key[0] == panel for key in self._curves)
