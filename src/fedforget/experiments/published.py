"""Curves that others published, read from a file of the caller's and drawn thin behind our own.

No published data come with FedForget. The file is a CSV with the columns ``figure``, ``line``, ``x_name``, ``x``,
``y_name`` and ``y``; the first word of ``figure`` is the paper's number of the panel, for instance ``5a``.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from pathlib import Path

from fedforget.errors import InvalidInput

VARIABLE = "FEDFORGET_PUBLISHED"
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
        """From the caller's file, else from the file that FEDFORGET_PUBLISHED names, else empty."""
        named = os.environ.get(VARIABLE)
        return cls(path or (Path(named) if named else None))

    def _read(self, path: Path) -> None:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    key = row["figure"].split()[0], row["line"], row["y_name"]
                    self._curves[key].append((float(row["x"]), float(row["y"])))
        except OSError as error:
            raise InvalidInput(f"cannot read {path}: {error.strerror}", hint="correct --published") from error
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
