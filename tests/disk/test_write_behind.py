"""The write-behind queue: in order, stopped by a failure, and never behind what the record states."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedforget import Plan, Request, Run
from fedforget.algorithm.ports import State
from fedforget.disk.write_behind import WriteBehind
from fedforget.errors import StorageFailed
from fedforget.store import run_directory
from fedforget.store.names import SERVER, USES
from fedforget.store.server_store import ServerStore


def test_writes_run_in_order_of_submission() -> None:
    behind, done, go = WriteBehind(), list[str](), threading.Event()

    def slowly(what: str) -> None:
        assert go.wait(10)
        done.append(what)

    behind.submit(USES, lambda: slowly("note 1"))
    behind.submit(SERVER, lambda: done.append("commit 1"))
    assert done == []
    go.set()
    behind.submit(USES, lambda: done.append("note 2"))
    behind.finish()
    assert done == ["note 1", "commit 1", "note 2"]


def test_flush_waits_for_the_owners_write_or_for_all() -> None:
    behind, done, go = WriteBehind(), list[str](), threading.Event()

    def slowly(what: str) -> None:
        assert go.wait(10)
        done.append(what)

    behind.submit(USES, lambda: done.append("note"))
    behind.submit(SERVER, lambda: slowly("commit"))
    behind.flush(USES)
    assert done == ["note"]
    threading.Timer(0.1, go.set).start()
    behind.flush("record.db")
    assert done == ["note", "commit"]
    behind.finish()


def test_failed_write_drops_later_writes_and_every_flush_raises() -> None:
    behind, done = WriteBehind(), list[str]()

    def fail() -> None:
        raise StorageFailed("no space left", hint="")

    behind.submit(USES, fail)
    behind.submit(SERVER, lambda: done.append("a commit without its first uses"))
    for party in (USES, SERVER, "record.db"):
        with pytest.raises(StorageFailed):
            behind.flush(party)
    with pytest.raises(StorageFailed):
        behind.finish()
    assert done == []


def events_of(path: Path, kind: str) -> list[dict[str, Any]]:
    with run_directory.reading(path, only_idle=False) as run:
        return [event for event in run.record.events() if event["kind"] == kind]


@pytest.mark.parametrize("forgetting", [False, True])
def test_record_has_no_trained_event_when_the_last_commit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetting: bool
) -> None:
    """The commit of the last round fails after its computation: no event is recorded, and the run can be resumed."""
    plan = Plan(clients_per_round=2, batch_size=2, local_steps=1, rounds=4)
    x = np.eye(6, dtype=np.float32)
    data = {client: {row: (x[row], row % 2) for row in range(6)} for client in range(4)}

    def model() -> nn.Module:
        made = nn.Linear(6, 2)
        with torch.no_grad():
            made.weight.fill_(0.5)
            made.bias.zero_()
        return made

    run = Run(tmp_path / "run", plan, model=model(), data=data, seed=1)
    gone = [Request(client) for client in (0, 1)]
    whole = Run(tmp_path / "whole", plan, model=model(), data=data, seed=1, without=gone if forgetting else ())
    whole.train()
    if forgetting:
        run.train()
    before = len(events_of(run.path, "trained"))
    real = ServerStore._commit

    def fail(store: ServerStore, round_: int, state: State, fresh: Any, *also: Any) -> None:
        if round_ == plan.rounds:
            raise StorageFailed("no space left", hint="")
        real(store, round_, state, fresh, *also)

    monkeypatch.setattr(ServerStore, "_commit", fail)
    with pytest.raises(StorageFailed):
        run.forget(gone) if forgetting else run.train()
    assert len(events_of(run.path, "trained")) == before
    assert run.status().rounds_done == plan.rounds - 1
    monkeypatch.undo()
    run.train()
    assert run.state_digest() == whole.state_digest()
