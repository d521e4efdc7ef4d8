"""Connections to SQLite for writing: the settings that make commits durable and deleted rows unreadable."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from fedforget.disk import read_only
from fedforget.disk.files import create_private

_ROOM = 2**17  # with less free space (bytes) the disk counts as full


def create(path: Path, schema: str, version: int) -> sqlite3.Connection:
    create_private(path)
    settings = "PRAGMA page_size=4096; PRAGMA journal_mode=MEMORY"
    return connect(path, f"{settings}; BEGIN; {schema}; PRAGMA user_version={version}; COMMIT;")


def _opened(path: Path) -> sqlite3.Connection:
    """Open a connection that two threads may use in turn (see ``write_behind``), never at the same time."""
    return sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)


def connect(path: Path, script: str = "") -> sqlite3.Connection:
    """Open a database for writing, after running a script that fills a new one."""
    connection = _opened(path)
    try:
        connection.executescript(script)
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    read_only.guard(connection)
    for setting in (
        "locking_mode=EXCLUSIVE",
        "secure_delete=ON",
        "synchronous=FULL",
        "wal_autocheckpoint=0",  # see ``Database.fold``
        "cache_spill=OFF",  # a commit writes each page once, see ``wal.largest_after``
        "journal_mode=WAL",
    ):
        connection.execute(f"PRAGMA {setting}").fetchall()


def disk_is_full(path: Path) -> bool:
    """Return whether the disk is full. SQLite reports "disk I/O error" when it cannot extend its WAL."""
    return shutil.disk_usage(path.parent).free < _ROOM
