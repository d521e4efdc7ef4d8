"""Seals: set last and broken first, so that no crash leaves a wrong one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedforget import Plan, Policy, Run
from fedforget.disk.files import write_durably
from fedforget.errors import RunDamaged
from fedforget.requests.batches import Batches
from fedforget.requests.intents import Intent
from fedforget.store import run_directory
from fedforget.store.names import BOOKS, BROKEN_SEALS, SEALS
from fedforget.store.seals import SEALED, Seals


@pytest.fixture
def run(tmp_path: Path) -> Run:
    chance = np.random.default_rng(1)
    data = {c: {s: (chance.normal(size=3).astype(np.float32), np.int64(s % 2)) for s in range(6)} for c in range(4)}
    made = Run(tmp_path / "run", Plan(2, 2, 2, 4), model=nn.Linear(3, 2), data=data, seed=1)
    made.train(until=2)
    return made


def bytes_of(run: Run) -> dict[str, bytes]:
    return {name: (run.path / name).read_bytes() for name in SEALED}


def test_seals_are_broken_before_any_byte_changes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a process killed in between leaves files that their seals call damaged, for ever."""
    before, seen, really = bytes_of(run), [], Seals.break_all

    def break_all(seals: Seals) -> None:
        seen.append(bytes_of(run))
        really(seals)

    monkeypatch.setattr(Seals, "break_all", break_all)
    run.train(until=3)
    run.forget(client=1)
    assert seen[0] == before
    assert len(seen) == 2


def test_seals_exist_when_closed_and_not_while_writing(run: Run) -> None:
    assert Seals(run.path).all().keys() == set(SEALED)
    with run_directory.writing(run.path) as opened:
        opened.record.set_policy(Policy())
        assert Seals(run.path).all() == {}
        assert Seals(run.path).broken().keys() == set(SEALED)
    assert Seals(run.path).all().keys() == set(SEALED)
    assert Seals(run.path).broken() == {}


def test_sealed_run_has_no_seals_of_before_beside_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kill between the two leaves a file that the next command does not find wrong."""
    seen, really = list[bool](), write_durably

    def write(path: Path, data: bytes, mode: int = 0o666) -> None:
        if path.name == SEALS:
            seen.append((run.path / BROKEN_SEALS).exists())
        really(path, data, mode=mode)

    monkeypatch.setattr("fedforget.store.seals.write_durably", write)
    run.train(until=3)
    assert seen == [False]


def test_earlier_seals_are_deleted_before_purged_is_recorded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold digests of the books with what is erased: a kill must not leave them beside that word."""
    seen, really = list[bool](), Batches.purged

    def purged(batches: Batches, intent: Intent) -> None:
        seen.append(any(run.path.glob(BROKEN_SEALS)))
        really(batches, intent)

    monkeypatch.setattr(Batches, "purged", purged)
    run.forget(client=1)
    assert seen == [False]


def test_seals_hold_the_root_of_each_book_and_of_nothing_else(run: Run) -> None:
    run.forget(client=1)
    seals = Seals(run.path).all()
    with run_directory.reading(run.path) as opened:
        roots = {name: opened.clients.books.part(number).header.root for number, name in enumerate(BOOKS)}
    assert {name: seal.root for name, seal in seals.items() if seal.root is not None} == roots


def test_broken_seal_raises_run_damaged(run: Run) -> None:
    data = bytearray((run.path / "server.db").read_bytes())
    data[-1] ^= 1
    (run.path / "server.db").write_bytes(data)
    with pytest.raises(RunDamaged, match=r"server\.db is damaged"):
        run.status()


@pytest.mark.parametrize("where", ["note", "commit"])
def test_interrupted_round_leaves_nothing_in_the_state(run: Run, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """After the uses of the round are noted and before it is committed: they are not part of the state."""
    before = run.state_digest()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "commit":
            patch.setattr("fedforget.store.server_store.ServerStore.commit", stop)
        else:
            patch.setattr("fedforget.algorithm.aggregate.TakeAverage.__call__", stop)
        with pytest.raises(KeyboardInterrupt):
            run.train()
    assert run.state_digest() == before
    assert run.verify().ok
