"""The roster on disk: whatever happened, its rows are those of a roster that always was what it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedforget.algorithm.ids import Id
from fedforget.disk.database import Database
from fedforget.errors import RunDamaged
from fedforget.store import roster as roster_module
from fedforget.store.roster import SCHEMA, Roster


def commitment(client: Id) -> bytes:
    return repr(client).encode().ljust(32, b".")[:32]


WORLD: dict[Id, bytes] = {client: commitment(client) for client in (*range(0, 70, 2), "ward", "zoo", 2**62)}


@pytest.fixture(autouse=True)
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "_IN_A_ROW", 8)


@contextlib.contextmanager
def stored(path: Path, found: Roster, before: Roster | None = None) -> Iterator[Database]:
    path.mkdir(exist_ok=True)
    with contextlib.closing(Database(path / "x.db", SCHEMA, create=True)) as database, database.transaction():
        if before is not None:
            before.write(database)
        found.write(database, before)
        yield database


def rows(database: Database) -> list[Any]:
    return [database.rows(f"SELECT * FROM {table}") for table in ("roster", "names")]


def test_roster_is_read_as_it_was_written(tmp_path: Path) -> None:
    with stored(tmp_path, Roster.of(WORLD)) as database:
        found = Roster.read(database)
        assert len(rows(database)[0]) == 5
        assert found.as_dict() == WORLD
        assert found.ids == Roster.of(WORLD).ids
        assert sorted(found.names()) == ["ward", "zoo"]


@pytest.mark.parametrize("gone", [[0], [30, "zoo"], [68, 2**62, "ward", "zoo"], ["unknown"], list(WORLD)])
def test_rows_after_a_removal_are_those_of_a_roster_that_never_had_the_clients(tmp_path: Path, gone: list[Id]) -> None:
    whole = Roster.of(WORLD)
    left = Roster.of({client: found for client, found in WORLD.items() if client not in gone})
    with stored(tmp_path / "a", whole.without(gone), whole) as removed, stored(tmp_path / "b", left) as never:
        assert rows(removed) == rows(never)
        assert Roster.read(removed).as_dict() == left.as_dict()


@pytest.mark.parametrize("new", [[1], ["a", 33, 35], [2**61], list(range(1, 200, 2))])
def test_rows_after_a_joining_are_those_of_a_roster_that_always_had_the_clients(tmp_path: Path, new: list[Id]) -> None:
    small, whole = Roster.of(WORLD), Roster.of({**WORLD, **{client: commitment(client) for client in new}})
    joined = small.joined_by({client: commitment(client) for client in new} | {0: bytes(32)})
    with stored(tmp_path / "a", joined, small) as grown, stored(tmp_path / "b", whole) as always:
        assert rows(grown) == rows(always)


def test_client_that_joins_again_keeps_its_commitment() -> None:
    assert Roster.of(WORLD).joined_by({0: bytes(32)}).as_dict() == WORLD


def test_new_commitments_are_of_the_named_clients() -> None:
    changed = Roster.of(WORLD).committed_to({"zoo": bytes(32), 4: b"x" * 32, "unknown": bytes(32)})
    assert changed.as_dict() == {**WORLD, "zoo": bytes(32), 4: b"x" * 32}


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM roster WHERE number = 1",
        "UPDATE roster SET number = 9 WHERE number = 4",
        "UPDATE roster SET clients = substr(clients, 1, 112) WHERE number = 1",
        "UPDATE roster SET clients = substr(clients, 1, 16), commitments = substr(commitments, 1, 32) WHERE number = 1",
        "UPDATE roster SET commitments = substr(commitments, 2)",
        "UPDATE roster SET clients = (SELECT clients FROM roster WHERE number = 0)",
        "UPDATE roster SET clients = zeroblob(128) WHERE number = 0",
        "DELETE FROM names WHERE client = 'zoo'",
        "INSERT INTO names VALUES ('stranger')",
    ],
)
def test_rows_that_are_no_roster_are_damage(tmp_path: Path, sql: str) -> None:
    with stored(tmp_path, Roster.of(WORLD)) as database:
        assert database.run(sql)
        with pytest.raises(RunDamaged, match="its roster is missing or invalid"):
            Roster.read(database)
