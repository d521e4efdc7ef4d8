"""Make a series of byte strings in two processes: this one and a forked one, which take turns.

The forked process touches no file. If it dies, this one makes what is missing, so the result is the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Self

_LENGTH_BYTES = 8
_PR_SET_PDEATHSIG = 1

Make = Callable[[int], bytes]


def can_help() -> bool:
    """Return whether a second process can be forked and has a processor. With other threads a fork is not safe."""
    return hasattr(os, "fork") and (os.cpu_count() or 1) > 1 and threading.active_count() == 1


def made(make: Make, numbers: Sequence[int], *, helped: bool) -> Iterator[tuple[int, bytes]]:
    """Yield each number with what ``make`` returns for it. ``helped``: a second process makes every other one."""
    if not helped:
        yield from ((number, make(number)) for number in numbers)
        return
    with _Helper(make, numbers[1::2]) as helper:
        for place, number in enumerate(numbers):
            data = helper.next() if place % 2 else None
            yield number, make(number) if data is None else data


class _Helper:
    """A forked process that makes byte strings and sends them through a pipe."""

    def __init__(self, make: Make, numbers: Sequence[int]) -> None:
        self._make, self._numbers = make, numbers

    def __enter__(self) -> Self:
        reading, writing = os.pipe()
        parent = os.getpid()
        self._process = os.fork()
        if self._process == 0:
            self._work(reading, writing, parent)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb")
        return self

    def _work(self, reading: int, writing: int, parent: int) -> None:
        """Send everything, and end without running what the parent has registered for its own end."""
        code = 1
        try:
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                return  # the parent ended before it could be noticed
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                for number in self._numbers:
                    data = self._make(number)
                    pipe.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
                    pipe.flush()
            code = 0
        finally:
            os._exit(code)

    def next(self) -> bytes | None:
        """Return the next byte string, or None if the process has died."""
        head = self._pipe.read(_LENGTH_BYTES)
        size = int.from_bytes(head, "big") if len(head) == _LENGTH_BYTES else -1
        data = self._pipe.read(size) if size >= 0 else b""
        return data if len(data) == size else None

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
