"""SQLite as the run directory uses it: WAL, every commit on disk, nothing deleted left readable, canonical at rest.

At rest a database is rebuilt by ``VACUUM INTO``, so that equal content is equal bytes and no trace of deleted rows
stays in free pages. Schema versions live in ``user_version``; a newer one is refused, an older one migrated.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedforget.errors import FedForgetError, InvalidInput, RunDamaged, RunTooNew, StorageFailed
from fedforget.store.files import TEMPORARY, storage_errors, sync_directory, sync_file
from fedforget.store.lock import undisturbed
from fedforget.store.write_behind import WriteBehind

_ROOM = 2**17  # bytes below which a database cannot work


class Database:
    """One database file of a run, opened for reading or for writing."""

    def __init__(
        self,
        path: Path,
        schema: str = "",
        *,
        version: int = 1,
        migrations: Mapping[int, str] = MappingProxyType({}),
        create: bool = False,
        writable: bool = False,
    ) -> None:
        """``migrations`` lead from a version to the next."""
        self.path = path
        self._version, self._migrations = version, migrations
        if not create and not path.is_file():
            raise RunDamaged(f"{path} is missing", hint="restore it from a backup; it cannot be derived again")
        self._writable = writable
        self.behind: WriteBehind | None = None
        with self.errors():
            self._connection = _connect(path)
            try:
                self._prepare(schema, create)
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self, schema: str, create: bool) -> None:
        run = self._connection.execute
        run("PRAGMA secure_delete=ON")
        run("PRAGMA synchronous=FULL")
        run("PRAGMA trusted_schema=OFF")
        if create:
            run("PRAGMA page_size=4096")
            self._connection.executescript(f"BEGIN; {schema}; PRAGMA user_version={self._version}; COMMIT;")
        version = run("PRAGMA user_version").fetchone()[0]
        if version > self._version:
            raise RunTooNew(
                f"{self.path} was written by a newer version of FedForget (format {version}, this one knows "
                f"{self._version})",
                hint="upgrade fedforget",
            )
        verdict = run("PRAGMA quick_check(1)").fetchone()[0]
        if version < 1 or verdict != "ok":
            raise self._damaged(verdict if version else "it is empty")
        while version < self._version:
            version = self._migrate(version)
        if create or self._writable:
            self.begin_writing()

    def _migrate(self, version: int) -> int:
        """To the next version, or not at all; another process may have done it meanwhile."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            if run("PRAGMA user_version").fetchone()[0] == version:
                for statement in self._migrations[version].split(";"):
                    run(statement)
                run(f"PRAGMA user_version={version + 1}")
            run("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                run("ROLLBACK")
            raise
        return version + 1

    def begin_writing(self) -> None:
        """From here on the file changes: commits go to a write-ahead log until it is closed."""
        self._writable = True
        with self.errors():
            self._connection.execute("PRAGMA journal_mode=WAL")

    def begin_reading(self) -> None:
        """From here on everything is read as it is now, whatever is committed meanwhile."""
        with self.errors():
            self._connection.execute("BEGIN")
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, which name the file. What was written before is on disk by then."""
        if self.behind is not None:
            self.behind.settle(self)
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text:
                raise StorageFailed(f"{self.path} is locked by another program", hint="close it, try again") from error
            if "full" in text or ("disk I/O error" in text and _disk_is_full(self.path)):
                raise StorageFailed(
                    f"no space left to write {self.path}",
                    hint="free some space and give the same command again; nothing was lost",
                ) from error
            if "malformed" in text or "no such table" in text or "no such column" in text:
                raise self._damaged(text) from error
            raise StorageFailed(f"cannot use {self.path}: {text}", hint="check the disk and permissions") from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{error.object!r} is no text", hint="write it in UTF-8") from error
        except UnicodeDecodeError as error:  # SQLite quotes what it cannot read
            raise self._damaged("it holds what is no text") from error

    def _damaged(self, detail: str) -> FedForgetError:
        return RunDamaged(f"{self.path} is damaged: {detail}", hint="restore it from a backup; see `fedforget doctor`")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, after everything that is still being written."""
        if self.behind is not None:
            self.behind.settle()
        with self.errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
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

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.errors():
            return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Execute a statement; returns how many rows it changed."""
        with self.errors():
            return self._connection.execute(sql, values).rowcount

    def run_many(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        with self.errors():
            self._connection.executemany(sql, values)

    def write(self, job: Callable[[], None]) -> None:
        """Do a job that writes here: behind the computation if the run is open for it, else at once."""
        if self.behind is None:
            job()
        else:
            self.behind.submit(self, job)

    def fold(self) -> None:
        """Bring the log into the file now: what stands nowhere else must not hang on a log that a crash leaves."""
        with undisturbed(self.path.parent), self.errors():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rebuild(self) -> None:
        """Make the file canonical now, and go on."""
        with undisturbed(self.path.parent):
            self.close_canonical()
            with self.errors():
                self._connection = _connect(self.path)
                self._prepare("", create=False)

    def close(self) -> None:
        """Close as it is (a WAL that is left is recovered by the next opening)."""
        self._connection.close()

    def canonical_bytes(self) -> bytes:
        """What the file would be if it were rebuilt from its content alone, as it is whenever it is closed."""
        with storage_errors(self.path), self.errors():
            rebuilt = self._rebuilt()
            try:
                return rebuilt.read_bytes()
            finally:
                rebuilt.unlink(missing_ok=True)

    def _rebuilt(self) -> Path:
        rebuilt = self.path.with_name(self.path.name + TEMPORARY)
        rebuilt.unlink(missing_ok=True)
        try:
            self._connection.execute("VACUUM INTO ?", (str(rebuilt),))
            _forget_schema_changes(rebuilt)
        except sqlite3.Error:
            with contextlib.suppress(OSError):
                rebuilt.unlink(missing_ok=True)
            raise
        return rebuilt

    def close_canonical(self) -> None:
        """Fold the WAL in, rebuild the file from its content alone, and close."""
        with storage_errors(self.path), self.errors():
            self._connection.execute("PRAGMA journal_mode=DELETE")
            try:
                rebuilt = self._rebuilt()
            finally:
                self._connection.close()
        with storage_errors(self.path):
            rebuilt.chmod(0o600)  # seeds are secret
            sync_file(rebuilt)
            rebuilt.replace(self.path)
            sync_directory(self.path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    """Two threads may use it in turns (see ``write_behind``), never at once."""
    return sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)


def _disk_is_full(path: Path) -> bool:
    """SQLite says "I/O error" where it could not make room for its WAL."""
    return shutil.disk_usage(path.parent).free < _ROOM


def _forget_schema_changes(path: Path) -> None:
    """The schema's change counter grows with every rebuild: the one thing in the file that content doesn't fix."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA schema_version=1")
