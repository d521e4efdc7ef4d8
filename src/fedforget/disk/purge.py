"""Rewrite a SQLite database of another program, so that no deleted row can be read from its file or its log."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from fedforget.disk.door import Door
from fedforget.errors import InvalidInput, StorageFailed

_PATIENCE = 60.0  # seconds that the other program may hold its database


def purge_database(path: Path) -> tuple[int, int]:
    """Rewrite a database, and return the bytes of its files before and after. Safe while its program runs."""
    if Door(path.parent).status(path.name) is None:
        raise InvalidInput(f"there is no file {path}", hint="name the file that the SuperLink's --database names")
    before = _size(path)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE)) as connection:
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute("VACUUM")
            [(is_busy, *_)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if is_busy:
                raise StorageFailed(f"{path} is in use, and its log was not truncated", hint="give the command again")
    except sqlite3.DatabaseError as error:
        raise InvalidInput(
            f"{path} cannot be purged: {error}", hint="check that it is a SuperLink's database"
        ) from error
    return before, _size(path)


def _size(path: Path) -> int:
    files = (path, path.with_name(path.name + "-wal"))
    return sum(each.stat().st_size for each in files if each.exists())
