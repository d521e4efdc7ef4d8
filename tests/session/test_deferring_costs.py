"""What deferring a request reads does not depend on how many clients a run has."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedforget import LocalOptimizer, Plan, Run
from fedforget.algorithm.first_use import FirstUse
from fedforget.data.adapters import from_arrays
from fedforget.disk.database import Database
from fedforget.store.roster import Roster

SAMPLES, FEATURES = 3, 2


def trained(path: Path, clients: int) -> Run:
    owners = [client for client in range(clients) for _ in range(SAMPLES)]
    ids = list(range(SAMPLES)) * clients
    x = np.linspace(0, 1, clients * SAMPLES * FEATURES, dtype=np.float32).reshape(-1, FEATURES)
    data = from_arrays(x, np.arange(clients * SAMPLES) % 2, clients=owners, ids=ids)
    plan = Plan(2, 1, 2, 2, LocalOptimizer(lr=0.1))
    run = Run(path, plan, model=nn.Linear(FEATURES, 2), data=data, seed=1)
    run.train()
    run.forget(client=0, sample=0, basis="exogenous", defer=True)  # takes the first key of a group
    return run


def costs_of_deferring(run: Run, monkeypatch: pytest.MonkeyPatch, client: int) -> Counter[str]:
    found, opened, rows = Counter[str](), os.open, Database.rows

    def counted_open(*given: Any, **named: Any) -> int:
        found["files opened"] += 1
        return opened(*given, **named)

    def counted_rows(self: Database, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        read = rows(self, sql, values)
        found["statements"] += 1
        found["rows"] += len(read)
        return read

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", counted_open)
        patch.setattr(Database, "rows", counted_rows)
        [receipt] = run.forget(client=client, sample=1, basis="exogenous", defer=True)
    assert receipt.is_open
    return found


def test_deferring_reads_as_much_with_twenty_times_as_many_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (trained(tmp_path / str(clients), clients) for clients in (10, 200))
    assert costs_of_deferring(few, monkeypatch, 5) == costs_of_deferring(many, monkeypatch, 105)


def test_deferring_reads_neither_the_roster_nor_first_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was read")

    run = trained(tmp_path / "run", 10)
    monkeypatch.setattr(Roster, "read", never)
    monkeypatch.setattr(FirstUse, "__init__", never)
    [receipt] = run.forget(client=4, basis="exogenous", defer=True)
    assert receipt.is_open
