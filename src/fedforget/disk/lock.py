"""Locks of a run: one writer at a time, any number of readers.

The writer holds a POSIX record lock on ``RUN/lock`` (``RunLock``). Child processes do not inherit it, and it ends with
its holder. A reader holds a shared lock on the run directory (``shared_lock``). While the writer changes or replaces a
database file it excludes readers (``exclusive_section``). Both first pass a gate, a lock on ``models/``, so that a
stream of overlapping readers cannot starve the writer. A reader that needs the run unchanged for long, such as
``verify``, also shares ``RUN/lock`` (``require_idle``), which keeps writers out. Readers write nothing.
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

from fedforget.disk.door import Door
from fedforget.disk.files import storage_errors
from fedforget.errors import RunBusy

PATIENCE = 60.0  # seconds
NAME, _MODELS = "lock", "models"
_PAUSE = 0.002
_TAKEN = (errno.EACCES, errno.EAGAIN)

# A record lock does not exclude its own process, and closing any descriptor of the file releases all of them. So this
# process keeps its own account: the runs it writes, and per run one shared descriptor with a count of its users.
_held: set[str] = set()
_shared: dict[str, tuple[int, int]] = {}
_guard = threading.Lock()
_sections = threading.local()  # the runs of which this thread excludes readers


class RunLock:
    """Holds ``RUN/lock`` exclusively. Raises RunBusy if another process or thread uses the run."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._descriptor = -1

    def __enter__(self) -> RunLock:
        key, door = _key(self._run), Door(self._run)
        with _guard:
            if key in _held or key in _shared:
                raise _busy(self._run, "this process")
            door.require_own(NAME)
            with storage_errors(self._run / NAME):
                descriptor = door.open(NAME, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(descriptor, 32).decode(errors="replace").strip()
                os.close(descriptor)
                raise _busy(self._run, f"process {holder}" if holder.isdigit() else "another process") from error
            _held.add(key)
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # the pid is only informative: on a full disk the lock holds without it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        with _guard:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            _held.discard(_key(self._run))


@contextlib.contextmanager
def require_idle(run: Path) -> Iterator[None]:
    """Keep writers out of the run for the block. Raises RunBusy if a process is writing it.

    Without a file ``lock`` the run has never been opened for writing; a first writer waits for ``shared_lock``.
    """
    key = _key(run)
    with _guard:
        if key in _held:
            raise _busy(run, "this process")
        if key in _shared:
            descriptor, count = _shared[key]
            _shared[key] = descriptor, count + 1
        elif (found := _share(run)) is not None:
            _shared[key] = found, 1
    try:
        yield
    finally:
        with _guard:
            descriptor, count = _shared.pop(key, (-1, 0))
            if count > 1:
                _shared[key] = descriptor, count - 1
            elif count:
                os.close(descriptor)


def is_at_work(run: Path) -> bool:
    """Return whether a process, including this one, has the run open for writing."""
    try:
        with require_idle(run):
            return False
    except RunBusy:
        return True


def _share(run: Path) -> int | None:
    """Take a shared lock on ``RUN/lock`` and return its descriptor; None if the file does not exist."""
    try:
        with storage_errors(run / NAME, but=FileNotFoundError):
            descriptor = Door(run).open(NAME)
    except FileNotFoundError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        if error.errno in _TAKEN:
            raise _busy(run, f"process {holder}" if holder.isdigit() else "another process") from error
        return None  # a file system without such locks
    return descriptor


def _key(run: Path) -> str:
    return str(run.resolve())


def _busy(run: Path, holder: str) -> RunBusy:
    return RunBusy(f"the run {run} is in use by {holder}", hint="wait until it has finished, then try again")


@contextlib.contextmanager
def shared_lock(run: Path) -> Iterator[None]:
    """Hold the readers' lock for the block: no process changes or replaces a database file of the run."""
    with _locked(Door(run, _MODELS), fcntl.LOCK_EX), contextlib.ExitStack() as inside:
        inside.enter_context(_locked(Door(run), fcntl.LOCK_SH))
        leave = inside.pop_all()
    with leave:
        yield


@contextlib.contextmanager
def exclusive_section(run: Path) -> Iterator[None]:
    """Exclude readers for the block, after waiting for those that are reading.

    A thread that is inside already goes on: a commit there may have to fold its log.
    """
    key, inside = _key(run), _sections.__dict__
    if key in inside:
        yield
        return
    with _locked(Door(run, _MODELS), fcntl.LOCK_EX), _locked(Door(run), fcntl.LOCK_EX):
        inside[key] = True
        try:
            yield
        finally:
            del inside[key]


@contextlib.contextmanager
def _locked(directory: Door, kind: int) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            with storage_errors(directory.path, but=FileNotFoundError):
                descriptor = held.enter_context(directory.directory())
        except FileNotFoundError:  # the caller reports a missing directory
            yield
            return
        _wait_for(descriptor, kind, directory.run)
        yield


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
            raise RunBusy(
                f"timed out after {PATIENCE:.0f} s waiting for the processes that read {run}",
                hint="end them, then try again",
            )
        time.sleep(_PAUSE)
