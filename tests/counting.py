"""Counting calls: what a command opens, reads, builds and rebuilds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedforget.disk.database import Database
from fedforget.disk.lock import RunLock
from fedforget.store import run_directory
from fedforget.store.plan_file import PlanFile
from fedforget.training.local_sgd import TorchLearner

OPENINGS = (
    (run_directory, "_open", "opened"),
    (RunLock, "__enter__", "locked"),
    (TorchLearner, "__init__", "learner"),
    (PlanFile, "decode", "plan read"),
)


def counting(patch: pytest.MonkeyPatch, *more: tuple[Any, str, str]) -> Counter[str]:
    """Count the openings and ``more`` (owner, name of the function, label) from now on, and each rebuilt database."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, label: str) -> None:
        real = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            counts[label] += 1
            return real(*given, **named)

        patch.setattr(owner, name, counted)

    rebuild = Database._rebuilt

    def rebuilt(database: Database) -> Path:
        counts[f"rebuilt {database.path.name}"] += 1
        return rebuild(database)

    for each in (*OPENINGS, *more):
        count(*each)
    patch.setattr("fedforget.store.plan_file._decoded", PlanFile.decode)  # without its cache
    patch.setattr(Database, "_rebuilt", rebuilt)
    return counts
