"""Forks one child per line of stdin; each child runs one command of FedForget. Started by the tests as a program."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from sklearn import datasets

import fedforget
from fedforget.disk.write_behind import WriteBehind

TOUCHES = {os.fsync, os.replace, os.unlink, os.mkdir, os.rmdir, os.ftruncate, os.pwrite, os.open, sqlite3.connect}


class Touches:
    """Counts the calls that touch the disk, in any thread, and ends the process before the n-th."""

    def __init__(self, kill_at: int) -> None:
        self.seen = 0
        self._one_at_a_time = threading.Lock()
        self._kill_at = kill_at

    def __call__(self, _frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call":
            return
        of_database = isinstance(getattr(function, "__self__", None), sqlite3.Connection)
        if of_database or function in TOUCHES:
            with self._one_at_a_time:
                self.seen += 1
                if self.seen == self._kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)


def write_at_once() -> None:
    """No writer beside the main thread, for tracers that look at one thread; the order of writes is the same."""

    def submit(self: WriteBehind, owner: object, write: Callable[[], None]) -> None:
        self._write(write)
        self._writer = None
        self.flush(owner)

    WriteBehind.submit = submit  # type: ignore[method-assign]


def child(order: dict[str, Any], gate: int) -> None:
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    if order.get("gated"):
        os.read(gate, 1)
    if "file_limit" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"], order["file_limit"]))
    if "memory" in order:  # bytes beyond what is mapped already; and it may take 10 s
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + order["memory"], mapped + order["memory"]))
        signal.setitimer(signal.ITIMER_PROF, 10)  # seconds of processor: the machine may be busy
        signal.alarm(60)  # what waits without end takes none
    touches = Touches(order.get("kill_at", 0))
    if order.get("write_at_once"):
        write_at_once()
    if "kill_at" in order:
        threading.setprofile(touches)
        sys.setprofile(touches)
    code = 1
    try:
        importlib.import_module("fedforget.cli").main(order["arguments"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        sys.setprofile(None)
    if "count_to" in order:
        Path(order["count_to"]).write_text(str(touches.seen))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def say(value: int) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def get_ready() -> None:
    """Import and read once what every child would."""
    for room in pkgutil.walk_packages(fedforget.__path__, "fedforget."):
        if not room.name.endswith("__main__"):
            importlib.import_module(room.name)
    importlib.import_module("fedforget.cli.app").commands()
    importlib.import_module("multiprocessing.popen_fork")
    datasets.load_digits = functools.cache(datasets.load_digits)
    datasets.load_digits()
    gc.freeze()  # a collection in a child would copy every page


def main() -> None:
    get_ready()
    while line := sys.stdin.readline():
        inside, outside = os.pipe()
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                child(order, inside)
            except BaseException:  # noqa: BLE001 (as the interpreter does: print it, end with 1)
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(1)
        say(pid)
        if order.get("gated"):
            sys.stdin.readline()
            os.write(outside, b"g")
        _, status = os.waitpid(pid, 0)
        os.close(inside)
        os.close(outside)
        say(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
