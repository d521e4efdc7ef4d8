"""Databases: canonical when closed, and refused when damaged."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from fedforget.disk.database import VERSION, Database
from fedforget.disk.pages import PAGE
from fedforget.errors import FedForgetError, RunDamaged, RunTooNew, StorageFailed
from tests.store.hostile import log_of

SCHEMA = """
CREATE TABLE things (name PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE rounds (round INTEGER PRIMARY KEY, model TEXT NOT NULL);
"""


def made(path: Path) -> Database:
    return Database(path, SCHEMA, create=True)


def put(database: Database, names: list[int]) -> None:
    with database.transaction():
        database.run_many("INSERT INTO things VALUES (?, ?)", ((name, bytes([name % 251]) * 90) for name in names))


def take(database: Database, names: list[int]) -> None:
    with database.transaction():
        database.run_many("DELETE FROM things WHERE name = ?", ((name,) for name in names))


def test_equal_content_gives_equal_bytes_after_any_history(tmp_path: Path) -> None:
    chance, stay, come_and_go = np.random.default_rng(3), list(range(300)), list(range(300, 900))
    direct = made(tmp_path / "direct")
    put(direct, stay)
    direct.run("INSERT INTO rounds VALUES (1, 'one')")
    direct.close_canonical()
    for history in range(4):
        path = tmp_path / f"history{history}"
        database = made(path)
        database.run("INSERT INTO rounds VALUES (9, 'nine')")
        order = chance.permutation(stay + come_and_go).tolist()
        for start in range(0, len(order), 200):
            put(database, order[start : start + 200])
            if history % 2:
                database.close_canonical()
                database = Database(path, SCHEMA, writable=True)
        take(database, come_and_go)
        database.run("UPDATE things SET content = zeroblob(500) WHERE name = 7")
        database.run("DELETE FROM rounds")
        database.run("INSERT INTO rounds VALUES (1, 'one')")
        database.run("UPDATE things SET content = ? WHERE name = 7", (bytes([7]) * 90,))
        database.close_canonical()
        for _ in range(history):
            Database(path, SCHEMA, writable=True).close_canonical()
        assert path.read_bytes() == (tmp_path / "direct").read_bytes()


def test_different_content_gives_different_bytes(tmp_path: Path) -> None:
    for name, content in (("one", [1, 2, 3]), ("other", [1, 2, 4])):
        database = made(tmp_path / name)
        put(database, content)
        database.close_canonical()
    assert (tmp_path / "one").read_bytes() != (tmp_path / "other").read_bytes()


def test_deleted_rows_leave_no_bytes_in_any_file(tmp_path: Path) -> None:
    marker = b"the-patient-in-bed-four"
    database = made(tmp_path / "db")
    database.run("INSERT INTO things VALUES ('keep', x'00')")
    with database.transaction():
        database.run("INSERT INTO things VALUES (?, ?)", (marker.decode(), marker * 400))
    database.run("DELETE FROM things WHERE name = ?", (marker.decode(),))
    database.close_canonical()
    assert not [path for path in tmp_path.iterdir() if marker in path.read_bytes()]
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


def test_first_write_calls_begin_writing_and_a_reader_calls_nothing(tmp_path: Path) -> None:
    made(tmp_path / "db").close_canonical()
    database, begun = Database(tmp_path / "db", SCHEMA), []

    def begin() -> None:
        begun.append(database.changed)
        database.begin_writing()

    database.before_first_write = begin
    assert database.rows("SELECT name FROM things") == []
    assert begun == []
    put(database, [1])
    put(database, [2])
    assert (begun, database.changed) == ([False], True)
    database.close_canonical()
    database.reopen()
    assert database.rows("SELECT name FROM things ORDER BY name") == [(1,), (2,)]
    assert not database.is_writing
    database.close()


def test_failed_transaction_is_rolled_back(tmp_path: Path) -> None:
    database = made(tmp_path / "db")
    put(database, [1])

    def fail_by_itself() -> None:
        with database.transaction():
            database.run("INSERT INTO things VALUES (2, x'00')")
            raise KeyError

    def fail_in_sqlite() -> None:
        with database.transaction():
            database.run("INSERT INTO things VALUES (3, x'00')")
            database.run("INSERT INTO things VALUES (1, x'00')")

    with pytest.raises(KeyError):
        fail_by_itself()
    with pytest.raises(FedForgetError):
        fail_in_sqlite()
    assert database.rows("SELECT name FROM things") == [(1,)]
    database.close()


def test_committed_rows_survive_without_closing(tmp_path: Path) -> None:
    database = made(tmp_path / "db")
    put(database, [1, 2])
    for suffix in ("", "-wal"):
        (tmp_path / f"copy{suffix}").write_bytes((tmp_path / f"db{suffix}").read_bytes())
    copied = Database(tmp_path / "copy", SCHEMA)
    assert copied.rows("SELECT name FROM things ORDER BY name") == [(1,), (2,)]
    copied.close()
    database.close()


def test_database_of_newer_format_raises_run_too_new(tmp_path: Path) -> None:
    made(tmp_path / "db").close_canonical()
    connection = sqlite3.connect(tmp_path / "db")
    connection.execute(f"PRAGMA user_version={VERSION + 1}")
    connection.close()
    for writable in (False, True):
        before = (tmp_path / "db").read_bytes()
        with pytest.raises(RunTooNew, match=r"db was written by a newer version") as error:
            Database(tmp_path / "db", SCHEMA, writable=writable)
        assert error.value.hint == "upgrade fedforget"
        assert (tmp_path / "db").read_bytes() == before


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "text", "header", "middle"])
def test_damaged_database_raises_run_damaged_and_is_not_changed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "db"
    database = made(path)
    put(database, list(range(500)))
    database.close_canonical()
    data = path.read_bytes()
    harmed = {
        "empty": b"",
        "short": data[: len(data) // 2],
        "text": b"not a database at all" * 200,
        "header": bytes(100) + data[100:],
        "middle": data[:4096] + bytes(4096) + data[8192:],
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(harmed[damage])
    for writable in (False, True):
        with pytest.raises(RunDamaged) as error:
            Database(path, SCHEMA, writable=writable)
        assert str(path) in error.value.message
        assert "backup" in error.value.hint
    assert damage == "missing" or path.read_bytes() == harmed[damage]
    assert damage != "missing" or not path.exists(), "nothing is made in place of what is lost"


def test_missing_table_or_column_raises_run_damaged(tmp_path: Path) -> None:
    database = made(tmp_path / "db")
    with pytest.raises(RunDamaged, match="no such table"):
        database.rows("SELECT * FROM elsewhere")
    with pytest.raises(RunDamaged, match="no such column"):
        database.rows("SELECT colour FROM things")
    database.close()


def test_database_locked_by_another_program_raises_storage_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "db").close_canonical()
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **more: connect(path, **{**more, "timeout": 0.05}))
    with pytest.raises(StorageFailed, match="locked by another program"):
        Database(tmp_path / "db", SCHEMA, writable=True)
    other.close()


@pytest.mark.parametrize("beyond", [5000, 2**17])
def test_log_with_more_frames_than_the_files_is_damage(tmp_path: Path, beyond: int) -> None:
    """Otherwise a few kilobytes could take a gigabyte of memory."""
    database = Database(tmp_path / "x.db", SCHEMA, create=True)
    database.close_canonical()
    data = (tmp_path / "x.db").read_bytes()
    (tmp_path / "x.db-wal").write_bytes(log_of([(1, len(data) // PAGE + beyond, data[:PAGE])]))
    with pytest.raises(RunDamaged, match="its log says that it is larger than both of them"):
        Database(tmp_path / "x.db", SCHEMA)
