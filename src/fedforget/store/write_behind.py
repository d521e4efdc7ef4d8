"""Writes on their way to disk while the next round is computed: one thread, strictly in order.

Order is what durability needs: a round's first uses are on disk before its commit is, so a crash at any moment leaves
the state after some round, as if every write had been waited for. A failure stops the queue: nothing that comes after
it is written, and whoever touches the store next is told.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

_NICENESS = 10


def _give_way() -> None:
    """Let the writer use what the workers leave: a round ends with its slowest one, and writes have until then.

    Where writes and rounds are short, whoever gives way is late instead.
    """
    if sys.platform == "linux":  # where each thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class WriteBehind:
    """A queue of writes. Each belongs to an owner, who has at most one under way.

    An owner waits for its own writes only, so that clients can be looked up while a model is written. Everybody else
    waits for all of them: what the record says was done is done.
    """

    def __init__(self, *, gives_way: bool = False) -> None:
        start = _give_way if gives_way else None
        self._thread = ThreadPoolExecutor(1, "fedforget-writer", start)  # starts with the first write
        self._under_way: dict[object, Future[None]] = {}
        self._failure: BaseException | None = None
        self._writer: int | None = None

    def submit(self, owner: object, write: Callable[[], None]) -> None:
        """Write after everything that was submitted before."""
        if owner in self._under_way:
            self.settle(owner)
        self._under_way[owner] = self._thread.submit(self._write, write)

    def _write(self, write: Callable[[], None]) -> None:
        self._writer = threading.get_ident()
        if self._failure is None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001 (told to whoever comes next)
                self._failure = error

    def settle(self, party: object = None) -> None:
        """Wait until everything that this party relies on is on disk. Inside a write there is nothing to wait for."""
        if threading.get_ident() == self._writer:
            return
        wait([self._under_way[party]] if party in self._under_way else list(self._under_way.values()))
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Wait for everything, and end."""
        self._thread.shutdown(wait=True)

    def finish(self) -> None:
        """The same, and say what went wrong."""
        self.stop()
        if self._failure is not None:
            raise self._failure
