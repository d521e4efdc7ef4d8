"""One process at a time.

The lock is a POSIX record lock: child processes don't inherit it, and it ends with its holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

from fedforget.errors import RunBusy
from fedforget.store.files import storage_errors

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
