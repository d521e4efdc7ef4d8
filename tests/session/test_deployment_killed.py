"""The server of a deployment is killed at every write of a life: no request is lost, none is carried out twice."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedforget import Request
from fedforget.disk.database import Database
from fedforget.errors import ClientUnreachable, FedForgetError
from fedforget.requests.lifecycle import Basis
from fedforget.store import run_directory
from tests.requests.world import opened
from tests.session.deployed import Deployed

KINDS = ("withdrawal", "addition", "leaving", "silent", "silent with a request")


class Killed(BaseException):
    """The process ends."""


class Killer:
    """Ends the server after a number of durable writes, as ``kill -9`` would: what is on disk then stays."""

    def __init__(self, patch: pytest.MonkeyPatch, run: Path, copy: Path, after: int | None) -> None:
        self.writes, self._run, self._copy, self._after = 0, run, copy, after
        transaction, fsync = Database.transaction, os.fsync

        @contextlib.contextmanager
        def spied(database: Database) -> Iterator[None]:
            with transaction(database):
                yield
            self._written()

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            self._written()

        patch.setattr(Database, "transaction", spied)
        patch.setattr(os, "fsync", synced)

    def _written(self) -> None:
        if self.dead:
            raise Killed
        self.writes += 1
        if self.writes == self._after:
            shutil.copytree(self._run, self._copy)
            (self._copy / "lock").unlink(missing_ok=True)
            raise Killed

    @property
    def dead(self) -> bool:
        return self._after is not None and self.writes >= self._after


def lived(there: Deployed, act: Callable[[], Any], copy: Path, after: int | None) -> int:
    """Let the server act, and kill it after some writes. Return how many there were."""
    with pytest.MonkeyPatch.context() as patch:
        killer = Killer(patch, there.path, copy, after)
        with contextlib.suppress(Killed, FedForgetError):
            act()
    if killer.dead:
        shutil.rmtree(there.path)
        copy.rename(there.path)
    return killer.writes


class Life:
    """A deployment before something happens, what happens, and the state it should come to."""

    def __init__(self, kind: str, path: Path) -> None:
        later = [7, 8] if kind == "addition" else []
        self.there = there = Deployed(path / "run", later={4: later})
        there.train(3)
        self.without: list[Request] = []
        if kind == "withdrawal":
            steps = there.memory.first_steps(4)
            sample = min(steps, key=lambda each: steps[each])
            there.withdraw(4, sample)
            self.without = [Request(4, sample)]
        elif kind == "addition":
            there.ledger(4).add("a" * 32, later)
        elif kind == "leaving":
            there.withdraw(2, whole=True)
            self.without = [Request(2)]
        elif kind == "silent":
            there.silence(3)
            self.without = [Request(3)]
        else:
            self._wait_for_a_removal(4)
            self.without = [Request(4)]
        self.kind = kind

    def _wait_for_a_removal(self, client: int) -> None:
        """Begin a request of a client that falls silent before it removes the sample."""
        there = self.there
        there.withdraw(client, next(iter(there.memory.first_steps(client))))

        there.silence_at_removal(client)
        with pytest.raises(ClientUnreachable):
            there.run_pending()
        there.silence(client)

    @property
    def _erases_silent(self) -> bool:
        return self.kind.startswith("silent")

    def act(self) -> None:
        if self._erases_silent:
            self.there.forget(*self.without, basis=Basis.MODEL_INFORMED)
        self.there.train(4)

    def require_end(self, path: Path) -> None:
        there = self.there
        if self._erases_silent and "client" not in [receipt.level for receipt in there.receipts()]:
            there.forget(*self.without, basis=Basis.MODEL_INFORMED)  # killed before the request was durable
        there.train(4)
        assert there.digest() == expected(path, self.kind, self.without)
        requests = len(self.without) + (self.kind == "silent with a request")
        assert [receipt.state for receipt in there.receipts()] == ["purged"] * requests
        for client in {2, 4} - {request.client for request in self.without if self._erases_silent}:
            assert there.ledger(client).standing().withdrawals == ()
        if self.kind in ("withdrawal", "leaving"):
            assert len(there.ledger(self.without[0].client).finished) == 1
        there.silence()
        there.train(4)
        assert there.status().undelivered == 0
        if self._erases_silent:
            assert self.without[0].client not in there.memory.commitments()
        with run_directory.reading(there.path) as run:
            assert set(run.remote.contacts.enrolled()) == set(run.server.roster)


_expected: dict[str, str] = {}


def expected(path: Path, kind: str, without: list[Request]) -> str:
    if kind not in _expected:
        run = opened(path / f"never {kind}", without=without)
        run.train(4)
        _expected[kind] = run.state_digest()
    return _expected[kind]


def places(kind: str, path: Path, every: int) -> Iterator[int]:
    life = Life(kind, path / "whole")
    count = lived(life.there, life.act, path / "copy", None)
    life.require_end(path)
    assert count > 20
    yield from range(1 + count % every, count + 1, every)


@pytest.mark.parametrize("kind", KINDS)
def test_server_killed_at_some_writes_comes_to_the_same_state(kind: str, tmp_path: Path) -> None:
    for after in places(kind, tmp_path, 9):
        life = Life(kind, tmp_path / str(after))
        assert lived(life.there, life.act, tmp_path / "copy", after) >= after
        life.require_end(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_server_killed_at_every_write_comes_to_the_same_state(kind: str, tmp_path: Path) -> None:
    for after in places(kind, tmp_path, 1):
        life = Life(kind, tmp_path / str(after))
        lived(life.there, life.act, tmp_path / "copy", after)
        life.require_end(tmp_path)
