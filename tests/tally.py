"""Counts of what was tried, for ``make torture``: kept only where ``FEDFORGET_TALLY`` names a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

FILE = "FEDFORGET_TALLY"


def tally(what: str, count: int = 1) -> None:
    """Count something that was tried and came out as it must: call it after the check."""
    if FILE in os.environ:
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, count]) + "\n")


def exhaustive() -> bool:
    """Whether every point is to be tried instead of a choice of them."""
    return FILE in os.environ
