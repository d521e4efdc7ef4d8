"""A write-behind queue: one thread writes to disk, in order, while the next round is computed.

The order makes crashes safe: a round's first uses are on disk before its commit, so a crash at any moment leaves the
state after some round, as with synchronous writes. The first failure stops the queue: later writes are dropped, and the
next call of ``flush`` or ``finish`` raises it.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue

from fedforget.errors import OutOfMemory

_NICENESS = 10
_PATIENCE = 20.0  # seconds to wait for the thread to start


def _lower_priority() -> None:
    """Lower the writer's priority below the workers': a round waits for its slowest worker, its writes can wait longer.

    Not useful when writes and rounds are short: then the writer itself becomes the bottleneck.
    """
    if sys.platform == "linux":  # the only system with a priority per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


class WriteBehind:
    """A queue of writes. Each belongs to an owner (a database), which has at most one pending write.

    An owner waits only for its own write, so clients can be queried while a model is being written. Any other caller
    waits for all of them, so the record never claims more than is on disk.
    """

    def __init__(self, *, low_priority: bool = False) -> None:
        self._low_priority = low_priority
        self._queue: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        self._pending: dict[object, Future[None]] = {}
        self._failure: BaseException | None = None
        self._writer: int | None = None  # the id of the writing thread, which starts with the first write
        self._ended = threading.Event()

    def submit(self, owner: object, write: Callable[[], None]) -> None:
        """Queue a write, after flushing the owner's previous one."""
        if owner in self._pending:
            self.flush(owner)
        if self._writer is None:
            self._start()
        done: Future[None] = Future()
        self._queue.put((write, done))
        self._pending[owner] = done

    def _start(self) -> None:
        """Start the thread. ``threading.Thread.start`` hangs if the new thread dies at once for lack of memory."""
        began = threading.Event()
        try:
            start_new_thread(self._serve, (began,))
        except RuntimeError as error:
            raise _no_thread() from error
        if not began.wait(_PATIENCE):
            raise _no_thread()

    def _serve(self, began: threading.Event) -> None:
        self._writer = threading.get_ident()
        if self._low_priority:
            _lower_priority()
        began.set()
        while (job := self._queue.get()) is not None:
            write, done = job
            self._write(write)
            done.set_result(None)
        self._ended.set()

    def _write(self, write: Callable[[], None]) -> None:
        if self._failure is None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001 (raised for the next caller)
                self._failure = error

    def flush(self, owner: object = None) -> None:
        """Wait for the pending write of ``owner``, or for all writes if it has none. Returns at once inside a write."""
        if threading.get_ident() == self._writer:
            return
        wait([self._pending[owner]] if owner in self._pending else list(self._pending.values()))
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Wait for all writes and end the thread. Raises nothing."""
        if self._writer is not None and not self._ended.is_set():
            self._queue.put(None)
            self._ended.wait()

    def finish(self) -> None:
        """Wait for all writes, end the thread, and raise the first failure."""
        self.stop()
        if self._failure is not None:
            raise self._failure


def _no_thread() -> OutOfMemory:
    return OutOfMemory("there is not enough memory to start a thread", hint="free some and give the same command again")
