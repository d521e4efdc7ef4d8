"""Runs of older formats: brought up to date when they are opened, whole or not at all, with nothing lost."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedforget.algorithm.forget import Decision, Request
from fedforget.errors import FedForgetError
from fedforget.store import record as record_module
from fedforget.store import story
from fedforget.store.chain import EventChain
from fedforget.store.database import Database
from fedforget.store.record import Record
from fedforget.store.requests import Intent

FORMAT_1 = """
CREATE TABLE record (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE requests (
    id TEXT PRIMARY KEY, batch_id TEXT NOT NULL, place INTEGER NOT NULL, level TEXT NOT NULL, basis TEXT NOT NULL,
    state TEXT NOT NULL, received TEXT NOT NULL, first_changed_step INTEGER, recomputed_steps INTEGER NOT NULL,
    guarantee TEXT NOT NULL, model_round INTEGER, model_digest TEXT, model_mac BLOB
) WITHOUT ROWID;
CREATE TABLE erased (pseudonym BLOB PRIMARY KEY, request TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE intents (batch_id TEXT PRIMARY KEY, stage TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, hash BLOB NOT NULL
);
CREATE TABLE seals (file TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE metrics (
    round INTEGER NOT NULL, client NOT NULL, correct INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (round, client)
) WITHOUT ROWID;
"""
INTENT = Intent("b-2", ("r-2",), Decision((Request("ben", 3),), (4,), (), 5, 1))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A record of format 1: one request that is purged, one that was interrupted."""
    path = tmp_path / "record.db"
    database = Database(path, FORMAT_1, create=True)
    record, chain = Record(database), EventChain(database)
    database.run("INSERT INTO record VALUES ('key', ?)", (secrets.token_bytes(32),))
    database.run("INSERT INTO record VALUES ('tainted', 1)")
    chain.append("created", {"seed_origin": "system"})
    for identifier, batch, target, state in (
        ("r-1", "b-1", Request("anna"), "purged"),
        ("r-2", "b-2", Request("ben", 3), "accepted"),
    ):
        now, told = "2026-01-01T00:00:00.000+00:00", {"basis": "unknown", "guarantee": "path"}
        database.run(
            "INSERT INTO requests VALUES (?, ?, 0, ?, 'unknown', ?, ?, 4, 8, 'path', 5, NULL, NULL)",
            (identifier, batch, target.level, state, now),
        )
        chain.append("received", {"request": identifier, "received": now, "level": target.level, **told})
        chain.append("accepted", {"request": identifier, "first_changed_step": 4, "recomputed_steps": 8})
        if state == "purged":
            for kind in ("removed", "recomputed", "completed", "purged"):
                chain.append(kind, {"request": identifier})
            database.run("INSERT INTO erased VALUES (?, ?)", (record.pseudonyms.of(target), identifier))
    database.run("INSERT INTO intents VALUES ('b-2', 'accepted', ?)", (INTENT.encode(),))
    database.run("INSERT INTO metrics VALUES (3, -1, 7, 9)")
    database.run("INSERT INTO seals VALUES ('record', 'of the old format')")
    database.close_canonical()
    return path


def opened(path: Path) -> Record:
    return Record(Database(path, version=record_module.VERSION, migrations=record_module.MIGRATIONS))


def test_a_record_of_format_1_tells_the_same_story(old: Path) -> None:
    record = opened(old)
    assert [(r.id, r.state, r.recomputed_steps) for r in record.book.receipts()] == [
        ("r-1", "purged", 8),
        ("r-2", "accepted", 8),
    ]
    found = record.book.find(Request("anna", "anything"))
    assert found is not None
    assert found.id == "r-1"
    assert record.batches.pending() == [INTENT], "what was interrupted is still to be finished"
    assert story.problem_of(record, "system") is None
    assert record.metrics.accuracies() == {3: 7 / 9}
    assert record.seals.all() == {}, "seals of the old bytes say nothing about the new ones"
    assert record.book.tainted
    record.database.close()
    again = opened(old)
    assert [r.id for r in again.book.receipts()] == ["r-1", "r-2"]
    again.database.close()


def test_the_new_format_is_that_of_a_new_record(old: Path, tmp_path: Path) -> None:
    opened(old).database.close()
    Database(tmp_path / "new.db", record_module.SCHEMA, version=record_module.VERSION, create=True).close()

    def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
        with closing(sqlite3.connect(path)) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            return {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in sorted(names)}

    assert tables(old) == tables(tmp_path / "new.db")


def test_a_migration_that_is_cut_off_leaves_the_old_format(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = old.read_bytes()
    broken = {1: record_module.MIGRATIONS[1] + "; INSERT INTO nowhere VALUES (1)"}
    with pytest.raises(FedForgetError):
        Database(old, version=record_module.VERSION, migrations=broken)
    assert old.read_bytes() == before
    assert [r.id for r in opened(old).book.receipts()] == ["r-1", "r-2"]
