"""Read-only access to a database that may be hostile. Nothing is ever written, not even by SQLite.

A closed database is opened as immutable: SQLite then looks for no log or journal, and takes no lock. If a log holds
commits (a process is writing, or was killed), the file and the committed frames of the log are combined in memory.
Header, B-trees, schema and rows are validated before any query runs. The caller holds ``lock.shared_lock``, so no
process checkpoints the log meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fedforget.disk import pages, wal
from fedforget.disk.door import Door
from fedforget.disk.pages import PAGE
from fedforget.disk.parsing import LONGEST
from fedforget.disk.wal import LARGEST_IMAGE
from fedforget.errors import FedForgetError, RunDamaged, RunTooNew, RunTooOld, StorageFailed

JOURNAL = "-journal"
_PADDING = 2**24  # bytes of a database that neither its file nor its log holds: pages that were freed before a commit
_TICK = 100_000  # virtual machine instructions between two calls of ``Bound``
_TICKS, _BYTES_A_TICK = 1000, 2000  # ticks allowed for an empty file, and bytes that allow one more
Page = Callable[[int], bytes]  # the bytes of a page, counted from 1
_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"


@dataclass(slots=True)
class Bound:
    """A progress handler that interrupts a statement which runs far longer than the file size explains."""

    most: int
    ticks: int = field(default=0)

    def __call__(self) -> bool:
        self.ticks += 1
        return self.ticks > self.most


def connect(path: Path, schema: str, version: int, *, trusted: bool = False) -> tuple[sqlite3.Connection, Bound]:
    """Open a validated connection: on the immutable file if it was closed properly, else on a copy in memory.

    ``trusted``: the file is known to be as FedForget wrote it, so its pages and rows are not read now.
    """
    door = Door(path.parent)
    if door.status(path.name) is None:
        raise RunDamaged(f"{path} is missing", hint="restore it from a backup; it cannot be derived again")
    refuse_journal(path)
    image = _image(door, path)
    with contextlib.ExitStack() as reading:
        page, size = _in_memory(image) if image is not None else _on_disk(reading.enter_context(door.opened(path.name)))
        _check_header(path, page(1), size, version)
        if not trusted:
            require(path, pages.tree_problem(page, size // PAGE, [1]))
        connection, bound = _open(path, image), Bound(_TICKS + size // _BYTES_A_TICK)
        try:
            connection.set_progress_handler(bound, _TICK)
            guard(connection)
            _check_schema(path, connection, schema)
            if not trusted:
                _check_content(path, connection, schema, page, size)
        except BaseException:
            connection.close()
            raise
    return connection, bound


def _check_content(path: Path, connection: sqlite3.Connection, schema: str, page: Page, size: int) -> None:
    roots = [root for (root,) in connection.execute("SELECT rootpage FROM sqlite_schema")]
    require(path, pages.tree_problem(page, size // PAGE, [1, *roots]))
    verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    require(path, None if verdict == "ok" else verdict)
    require(path, _constraint_problem(connection, schema))


def _in_memory(image: bytearray) -> tuple[Page, int]:
    return lambda number: bytes(image[(number - 1) * PAGE : number * PAGE]), len(image)


def _on_disk(descriptor: int) -> tuple[Page, int]:
    return lambda number: os.pread(descriptor, PAGE, (number - 1) * PAGE), os.fstat(descriptor).st_size


def refuse_journal(path: Path) -> None:
    """Refuse a rollback journal. FedForget writes none, and SQLite would replay it and delete files that it names."""
    journal = path.with_name(path.name + JOURNAL)
    if os.path.lexists(journal):
        raise RunDamaged(
            f"{journal} is not a file of a run", hint="don't rely on this directory; restore it from a backup"
        )


def private(path: Path) -> sqlite3.Connection:
    """Open a copy of an already validated database in memory, where the caller may change it."""
    door = Door(path.parent)
    return _open(path, _image(door, path) or bytearray(door.read(path.name, LARGEST_IMAGE)))


def reopened(path: Path) -> sqlite3.Connection:
    """Open a database that this process has just written and closed."""
    return _open(path, None)


def _image(door: Door, path: Path) -> bytearray | None:
    """Return the database with the commits of its log applied, or None if there are none."""
    if not door.size(path.name + wal.SUFFIX):
        return None
    with door.opened(path.name + wal.SUFFIX) as log_file, door.opened(path.name) as file:
        size = os.fstat(file).st_size
        if size > LARGEST_IMAGE and os.fstat(log_file).st_size > wal.largest_log(size):
            raise _too_large(path)
        log = wal.read(log_file, path)
        if not log.pages:
            return None
        if log.pages * PAGE > LARGEST_IMAGE:
            raise _too_large(path)
        if log.pages * PAGE > size + os.fstat(log_file).st_size + _PADDING:
            raise RunDamaged(f"{path} is damaged: its log says that it is larger than both of them")
        image = bytearray(os.pread(file, log.pages * PAGE, 0))
        image += bytes(log.pages * PAGE - len(image))
        for number, place in log.places.items():
            if number <= log.pages:
                image[(number - 1) * PAGE : number * PAGE] = os.pread(log_file, PAGE, place)
    return image


def _too_large(path: Path) -> StorageFailed:
    return StorageFailed(
        f"{path} is too large to read while its log holds commits",
        hint="wait until no process uses the run; after a crash give `fedforget train` first",
    )


def _check_header(path: Path, head: bytes, size: int, version: int) -> None:
    require(path, pages.header_problem(head, size))
    require_version(path, pages.version_of(head), version)


def require_version(path: Path, found: int, version: int) -> None:
    """Refuse a file of a newer or an older format than this version reads."""
    if found > version:
        raise RunTooNew(
            f"{path} was written by a newer version of FedForget (format {found}, this one knows {version})",
            hint="upgrade fedforget",
        )
    if found < version:
        raise too_old(path)


def too_old(path: Path) -> RunTooOld:
    return RunTooOld(
        f"{path.parent} was made by FedForget 0.2, or by a development version of 0.3: make it anew",
        hint="this version reads no older runs; make it with `fedforget train --out`, or use the version that made it",
    )


def _open(path: Path, image: bytearray | None) -> sqlite3.Connection:
    """Open a connection that two threads may use in turn (see ``write_behind``), never at the same time."""
    if image is None:
        where = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        return sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)
    image[:PAGE] = pages.without_log(bytes(image[:PAGE]))
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.deserialize(image)
    return connection


def guard(connection: sqlite3.Connection) -> None:
    """Apply SQLite's settings for untrusted content."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    for setting in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
        connection.execute(f"PRAGMA {setting}").fetchall()


def _check_schema(path: Path, connection: sqlite3.Connection, schema: str) -> None:
    """Require exactly our tables, character by character: no views, triggers, other indexes or extra columns."""
    if connection.execute(_SCHEMA).fetchall() != _as_made(schema):
        raise RunDamaged(f"{path} is damaged: its tables are not those of a run")


@cache
def _as_made(schema: str) -> list[tuple[str, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as expected:
        expected.executescript(schema)
        return expected.execute(_SCHEMA).fetchall()


def _constraint_problem(connection: sqlite3.Connection, schema: str) -> str | None:
    """Evaluate our CHECK constraints, which SQLite skips on read-only files. Returns a problem, or None."""
    for table, conditions in _constraints(schema):
        if connection.execute(f"SELECT 1 FROM {table} WHERE NOT ({conditions}) LIMIT 1").fetchone():  # noqa: S608 (ours)
            return f"its table {table} holds an invalid value"
    return None


@cache
def _constraints(schema: str) -> list[tuple[str, str]]:
    """Return each table with the conjunction of its CHECK constraints."""
    return [(name, " AND ".join(_checks(sql)) or "1") for kind, name, _, sql in _as_made(schema) if kind == "table"]


def _checks(sql: str) -> Iterator[str]:
    for found in re.finditer(r"CHECK \(", sql):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(sql[end], 0)
            end += 1
        yield f"({sql[found.end() : end - 1]})"


def require(path: Path, problem: str | None) -> None:
    if problem is not None:
        raise RunDamaged(f"{path} is damaged: {problem}")


def as_own_error(path: Path, error: Exception) -> FedForgetError:
    """Return our error for an error of SQLite while reading: StorageFailed or RunDamaged."""
    text = str(error)
    if isinstance(error, sqlite3.OperationalError) and ("unable to open" in text or "disk I/O" in text):
        return StorageFailed(f"cannot read {path}: {text}", hint="check the disk and permissions")
    if isinstance(error, UnicodeError) or "decode to UTF-8" in text:
        text = "it holds invalid UTF-8"
    if text == "interrupted":
        text = "reading it takes far longer than its size explains"
    return RunDamaged(f"{path} is damaged: {text[:200]}")
