"""A SQLite database of a run: write-ahead log, durable commits, secure delete.

``close_canonical`` rebuilds the file with ``VACUUM INTO``: equal content gives equal bytes, and free pages hold no
deleted rows. ``close_folded`` only folds the log in, so that its cost does not grow with the file.
The header selects WAL mode, so SQLite never writes a rollback journal. The writing process holds the file exclusively,
so SQLite keeps no WAL index in shared memory (on a full disk, that index would kill the process with SIGBUS). Readers
go through ``read_only`` and take no SQLite lock.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedforget.disk import connections, page_sum, read_only, wal
from fedforget.disk.door import Door
from fedforget.disk.files import (
    TEMPORARY,
    create_private,
    storage_errors,
    sync_directory,
    sync_file,
    unlink_leftover,
)
from fedforget.disk.lock import exclusive_section
from fedforget.disk.pages import PAGE, canonical_header
from fedforget.disk.write_behind import WriteBehind
from fedforget.errors import InvalidInput, RunDamaged, StorageFailed, quoted

VERSION = 5  # format version of every database of a run
_AT_ONCE = 500  # values in one query
_FOLD_AT = 2**24  # checkpoint the log when it grows beyond this (bytes)


class Database:
    """One database file of a run, open for reading or for writing."""

    def __init__(
        self,
        path: Path,
        schema: str,
        *,
        version: int = VERSION,
        create: bool = False,
        writable: bool = False,
        trusted: bool = False,
    ) -> None:
        """Create the file, or open and validate an existing one; ``writable`` also calls ``begin_writing``.

        ``trusted``: the file is known to be as FedForget wrote it. It is opened when it is first read, and only its
        tables are compared.
        """
        self.path = path
        self.behind: WriteBehind | None = None
        self.before_first_write: Callable[[], None] | None = None  # calls ``begin_writing``
        self.changed = create  # since it was opened or rebuilt
        self._created = create  # by this process: after a crash it is made anew, and its log is not read
        self._writing = create
        self._bound: read_only.Bound | None = None
        self.page_sum: int | None = None  # of the file without its log, where it is known; see ``page_sum``
        self._connected: sqlite3.Connection | None = None
        self._connect: Callable[[], sqlite3.Connection] = partial(
            self._validated, schema, version, trusted
        )  # when it is first read
        with self.errors():
            if create:
                self._connected = connections.create(path, schema, version)
            elif trusted:
                read_only.refuse_journal(path)
            else:
                self._connected = self._connect()
        if writable and not create:
            self.begin_writing()

    def _validated(self, schema: str, version: int, trusted: bool) -> sqlite3.Connection:
        connection, self._bound = read_only.connect(self.path, schema, version, trusted=trusted)
        return connection

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def begin_writing(self) -> None:
        """Reopen the file for writing. Commits go to a write-ahead log until it is closed."""
        if self._writing:
            return
        Door(self.path.parent).require_own(self.path.name)
        with self.errors():
            _ = self._connection  # compared with its schema before it is written
        self.close()
        self._writing, self._bound = True, None
        with self.errors():
            self._connected = connections.connect(self.path)

    @property
    def is_writing(self) -> bool:
        """Whether the file is open for writing."""
        return self._writing

    def _require_writing(self) -> None:
        if not self._writing and self.before_first_write is not None:
            self.before_first_write()
            self.begin_writing()

    def make_private(self) -> None:
        """Continue on a copy in memory. Changes never reach the file."""
        self.close()
        with self.errors():
            self._connected = read_only.private(self.path)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Flush this database's pending writes, then turn SQLite's errors into ours, which name the file."""
        if self.behind is not None:
            self.behind.flush(self)
        try:
            yield
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{quoted(error.object)} is not valid text", hint="encode it in UTF-8") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if self._writing and isinstance(error, sqlite3.OperationalError):
                raise self._not_written(error) from error
            raise read_only.as_own_error(self.path, error) from error

    def _not_written(self, error: sqlite3.OperationalError) -> StorageFailed | RunDamaged:
        text = str(error)
        if "locked" in text:
            return StorageFailed(f"{self.path} is locked by another program", hint="close that program and try again")
        if "full" in text or ("disk I/O error" in text and connections.disk_is_full(self.path)):
            return StorageFailed(
                f"no space left to write {self.path}",
                hint="free some space and give the same command again; nothing was lost",
            )
        if any(sign in text for sign in ("malformed", "no such table", "no such column", "decode to UTF-8")):
            return RunDamaged(f"{self.path} is damaged: {text[:200]}")
        return StorageFailed(f"cannot use {self.path}: {text}", hint="check the disk and permissions")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one transaction, after flushing all pending writes."""
        self._require_writing()
        if self.behind is not None:
            self.behind.flush()
        self._fold_if_large()
        with self.errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._require_room_in_log()
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            try:
                self._connection.execute("COMMIT")
            except sqlite3.Error:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
        self._fold_if_large()

    def _fold_if_large(self) -> None:
        if self._writing and self._log_size() > _FOLD_AT:
            self.fold()

    def _require_room_in_log(self) -> None:
        """Refuse a transaction that could make the log longer than a reader takes after a crash."""
        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        if self._created or pages * PAGE > wal.LARGEST_IMAGE:
            return
        with storage_errors(self.path):
            most = wal.largest_log(self.path.stat().st_size)
        if wal.largest_after(self._log_size(), pages) > most:
            raise InvalidInput(f"this changes too much of {self.path} at once", hint="give fewer requests at once")

    def _log_size(self) -> int:
        try:
            return self.path.with_name(self.path.name + wal.SUFFIX).stat().st_size
        except OSError:
            return 0

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.errors():
            connection = self._connection
            if self._bound is not None:
                self._bound.ticks = 0
            return connection.execute(sql, values).fetchall()

    def rows_in(self, sql: str, column: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query, without WHERE, whose column has one of these values."""
        found = []
        for start in range(0, len(values), _AT_ONCE):
            some = values[start : start + _AT_ONCE]
            found += self.rows(f"{sql} WHERE {column} IN ({', '.join('?' * len(some))})", some)
        return found

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement and return the number of changed rows."""
        self._require_writing()
        self.changed = True
        with self.errors():
            return self._connection.execute(sql, values).rowcount

    def run_many(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        self._require_writing()
        self.changed = True
        with self.errors():
            self._connection.executemany(sql, values)

    def write(self, job: Callable[[], None]) -> None:
        """Run a job that writes to this database: on the write-behind thread if there is one, else now."""
        self._require_writing()
        if self.behind is None:
            job()
        else:
            self.behind.submit(self, job)

    def fold(self) -> None:
        """Checkpoint the log into the database file.

        This is the only place where the file changes while the run is open for writing. It waits for readers, so that
        none sees a half-written file. Callers use it for data that exists nowhere else and must not depend on a log.
        """
        if not self._writing:
            return
        with exclusive_section(self.path.parent):
            self._fold()

    def _fold(self) -> None:
        before, self.page_sum = self.page_sum, None
        after = None if before is None else page_sum.after_log(before, self.path)
        with self.errors():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.page_sum = after

    def close_folded(self) -> None:
        """Fold the log in and close. The caller holds ``exclusive_section``."""
        try:
            self._fold()
        finally:
            self.close()
        with storage_errors(self.path):
            sync_directory(self.path.parent)  # the log's removal must be durable before a seal relies on it

    def close(self) -> None:
        """Close without rebuilding. The next opening recovers a log that is left."""
        if self._connected is not None:
            self._connected.close()

    def reopen(self) -> None:
        """Read the file again from now on, after this process has closed it in canonical form."""
        self._connected, self._connect = None, partial(read_only.reopened, self.path)
        self._writing = self.changed = False

    def close_canonical(self) -> None:
        """Checkpoint the log, rebuild the file from its content alone, and close."""
        with storage_errors(self.path), self.errors():
            try:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                rebuilt = self._rebuilt()
            finally:
                self.close()
        with storage_errors(self.path):
            sync_directory(self.path.parent)  # the log's removal must be durable before the file is replaced
            rebuilt.replace(self.path)
            sync_directory(self.path.parent)

    def _rebuilt(self) -> Path:
        """Write a canonical copy next to the file, fsync it, and return its temporary path."""
        rebuilt = self.path.with_name(self.path.name + TEMPORARY)
        discard(rebuilt)
        create_private(rebuilt)  # seeds are secret
        try:
            self._connection.execute("PRAGMA synchronous=OFF")  # the log is folded in, and the copy is synced below
            self._connection.execute("VACUUM INTO ?", (str(rebuilt),))
            descriptor = os.open(rebuilt, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, canonical_header(os.pread(descriptor, PAGE, 0)), 0)
            finally:
                os.close(descriptor)
            sync_file(rebuilt)
        except (sqlite3.Error, OSError):
            with contextlib.suppress(StorageFailed):
                discard(rebuilt)
            raise
        return rebuilt


def discard(rebuilt: Path) -> None:
    """Delete an unfinished copy and the journal that SQLite keeps while writing one."""
    for path in (rebuilt.with_name(rebuilt.name + read_only.JOURNAL), rebuilt):
        unlink_leftover(path)
