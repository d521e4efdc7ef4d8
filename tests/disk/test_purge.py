"""A database of another program is rewritten: nothing deleted is left, and what is there stays."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from fedforget.disk.purge import purge_database
from fedforget.errors import InvalidInput

SECRET = b"an update of an erased client" * 50


def test_deleted_rows_are_gone_from_file_and_log_while_the_other_program_runs(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("CREATE TABLE objects (content BLOB)")
        other.executemany("INSERT INTO objects VALUES (?)", [(SECRET,)] * 100)
        other.execute("INSERT INTO objects VALUES (?)", (b"stays",))
        other.execute("DELETE FROM objects WHERE content <> ?", (b"stays",))
        files = [path, path.with_name("state.db-wal")]
        assert any(SECRET in file.read_bytes() for file in files)
        before, after = purge_database(path)
        assert after < before
        assert not any(SECRET in file.read_bytes() for file in files)
        assert other.execute("SELECT content FROM objects").fetchall() == [(b"stays",)]


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no file"):
        purge_database(tmp_path / "none.db")
    (tmp_path / "text").write_text("a text that is no database at all, " * 40)
    with pytest.raises(InvalidInput, match="cannot be purged"):
        purge_database(tmp_path / "text")
