"""One process at a time works on a run; others may look at it meanwhile.

A process that works holds a POSIX record lock on ``RUN/lock``: child processes don't inherit it, and it ends with its
holder. A process that looks holds a shared lock on the run directory for that time; the working one waits for them, and
keeps new ones out, while it changes or replaces a database file. The way in leads past a second lock, on ``models/``,
so that those who look can't follow one another so closely that the working process never gets its turn. A process that
needs the run at rest for long (``verify``) also shares ``RUN/lock``, so that no other begins to work. Looking writes
nothing.
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

_held: set[str] = set()  # record locks don't exclude the process that holds them,
_shared: dict[str, tuple[int, int]] = {}  # and closing one descriptor of a file ends all of them: one for all who share
_guard = threading.Lock()


class RunLock:
    """A context manager that holds ``RUN/lock``."""

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
        with contextlib.suppress(OSError):  # a full disk has no room for a number; the lock holds all the same
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
def at_rest(run: Path) -> Iterator[None]:
    """While this lasts, no process begins to work on the run; refused with RunBusy if one does.

    Where there is no file ``lock`` no process has ever worked; one that begins now waits for ``looking``.
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
    """Whether a process, this one included, works on the run now."""
    try:
        with at_rest(run):
            return False
    except RunBusy:
        return True


def _share(run: Path) -> int | None:
    """A descriptor of ``RUN/lock`` that is locked together with others; None if there is no such file."""
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
def looking(run: Path) -> Iterator[None]:
    """While this lasts, no process changes or replaces a database file of the run."""
    with _locked(Door(run, _MODELS), fcntl.LOCK_EX), contextlib.ExitStack() as inside:
        inside.enter_context(_locked(Door(run), fcntl.LOCK_SH))
        leave = inside.pop_all()
    with leave:
        yield


@contextlib.contextmanager
def undisturbed(run: Path) -> Iterator[None]:
    """While this lasts, no process looks at the run."""
    with _locked(Door(run, _MODELS), fcntl.LOCK_EX), _locked(Door(run), fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def _locked(directory: Door, kind: int) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            with storage_errors(directory.path, but=FileNotFoundError):
                descriptor = held.enter_context(directory.directory())
        except FileNotFoundError:  # the caller that needs it says so
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
