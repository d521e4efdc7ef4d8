"""Writes on their way to disk while the next round is computed: one thread, strictly in order.

Order is what durability needs: a round's first uses are on disk before its commit is, so a crash at any moment leaves
the state after some round, as if every write had been waited for. A failure stops the queue: nothing that comes after
it is written, and whoever touches the store next is told.
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
_PATIENCE = 20.0  # seconds for a thread to start


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
        self._gives_way = gives_way
        self._queue: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        self._under_way: dict[object, Future[None]] = {}
        self._failure: BaseException | None = None
        self._writer: int | None = None  # the thread that writes; it starts with the first write
        self._ended = threading.Event()

    def submit(self, owner: object, write: Callable[[], None]) -> None:
        """Write after everything that was submitted before."""
        if owner in self._under_way:
            self.settle(owner)
        if self._writer is None:
            self._start()
        done: Future[None] = Future()
        self._queue.put((write, done))
        self._under_way[owner] = done

    def _start(self) -> None:
        """``threading.Thread.start`` would wait for ever where memory is so short that the thread ends as it begins."""
        began = threading.Event()
        try:
            start_new_thread(self._serve, (began,))
        except RuntimeError as error:
            raise _no_thread() from error
        if not began.wait(_PATIENCE):
            raise _no_thread()

    def _serve(self, began: threading.Event) -> None:
        self._writer = threading.get_ident()
        if self._gives_way:
            _give_way()
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

    def settle(self, party: object = None) -> None:
        """Wait until everything that this party relies on is on disk. Inside a write there is nothing to wait for."""
        if threading.get_ident() == self._writer:
            return
        wait([self._under_way[party]] if party in self._under_way else list(self._under_way.values()))
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Wait for everything, and end."""
        if self._writer is not None and not self._ended.is_set():
            self._queue.put(None)
            self._ended.wait()

    def finish(self) -> None:
        """The same, and say what went wrong."""
        self.stop()
        if self._failure is not None:
            raise self._failure


def _no_thread() -> OutOfMemory:
    return OutOfMemory("there is not enough memory to start a thread", hint="free some and give the same command again")
