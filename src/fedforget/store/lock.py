"""One process at a time works on a run; others may look at it meanwhile.

Who works holds a POSIX record lock: child processes don't inherit it, and it ends with its holder. Who looks holds a
shared lock on the run directory for that time, and whoever works waits for them, and keeps new ones out, while it
replaces the databases' files. The way in leads past a second lock, on ``models/``, so that those who look can't follow
one another so closely that nobody gets to work.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fedforget.errors import RunBusy
from fedforget.store.files import storage_errors

PATIENCE = 60.0  # seconds
_PAUSE = 0.002

_held: set[str] = set()  # record locks don't exclude the process that holds them
_guard = threading.Lock()


class RunLock:
    """A context manager that holds ``RUN/lock``."""

    def __init__(self, run: Path) -> None:
        self._path = run / "lock"
        self._descriptor = -1

    def __enter__(self) -> RunLock:
        key = str(self._path.resolve())
        with _guard:
            if key in _held:
                raise self._busy("this process")
            with storage_errors(self._path):
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(descriptor, 32).decode(errors="replace").strip()
                os.close(descriptor)
                raise self._busy(f"process {holder}" if holder else "another process") from error
            _held.add(key)
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # a full disk has no room for a number; the lock holds all the same
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        with _guard:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            _held.discard(str(self._path.resolve()))

    def _busy(self, holder: str) -> RunBusy:
        return RunBusy(
            f"the run {self._path.parent} is in use by {holder}", hint="wait until it has finished, then try again"
        )


def somebody_works(run: Path) -> bool:
    """Whether a process, this one included, holds ``RUN/lock`` now."""
    path = run / "lock"
    with _guard:
        if str(path.resolve()) in _held:
            return True  # opening and closing it once more would end the lock
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EACCES, errno.EAGAIN)
        finally:
            os.close(descriptor)
    return False


@contextlib.contextmanager
def looking(run: Path) -> Iterator[None]:
    """While this lasts, nobody replaces a file of the run."""
    with _locked(run / "models", fcntl.LOCK_EX, run), contextlib.ExitStack() as inside:
        inside.enter_context(_locked(run, fcntl.LOCK_SH, run))
        leave = inside.pop_all()
    with leave:
        yield


@contextlib.contextmanager
def undisturbed(run: Path) -> Iterator[None]:
    """While this lasts, nobody looks at the run."""
    with _locked(run / "models", fcntl.LOCK_EX, run), _locked(run, fcntl.LOCK_EX, run):
        yield


@contextlib.contextmanager
def _locked(directory: Path, kind: int, run: Path) -> Iterator[None]:
    if not directory.is_dir():
        yield  # told by whoever needs it
        return
    with storage_errors(directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _wait_for(descriptor, kind, run)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, kind: int, run: Path) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                return  # a file system without such locks
        else:
            return
        if time.monotonic() > end:
            raise RunBusy(f"the run {run} is looked at without end", hint="end the other process, then try again")
        time.sleep(_PAUSE)
