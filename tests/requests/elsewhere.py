"""Asking in another process while this one works.

The process comes from a fork server, not from this one: here a thread may hold a lock of SQLite's at the moment of the
fork, and nobody would ever release it in the child.
"""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

from fedforget import Request, Run
from fedforget.errors import FedForgetError, RunBusy
from tests.requests.world import opened

_LOOKING = 4.0  # seconds
_PATIENCE = 120.0  # seconds; one that takes longer hangs
BUSY, OURS = 5, 9

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.requests.world", "fedforget.requests.processor", "fedforget.training.local_sgd"])


def look_often(run: Run) -> None:
    """What it shows must be true at some moment."""
    end = time.monotonic() + _LOOKING
    while time.monotonic() < end:
        status = run.status()
        assert status.rounds_done <= status.rounds
        assert status.model_digest is not None


def _ask(path: Path, command: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    try:
        if command == "look_often":
            look_often(opened(path))
        else:
            getattr(opened(path), command)(*arguments, **options)
    except RunBusy:
        raise SystemExit(BUSY) from None
    except FedForgetError:
        raise SystemExit(OURS) from None


class Asking:
    """A command of ``Run`` that another process is busy with."""

    def __init__(self, path: Path, command: str, *arguments: Any, **options: Any) -> None:
        self._process = _server.Process(target=_ask, args=(path, command, arguments, options), daemon=True)
        self._process.start()

    def outcome(self) -> int:
        """0 if it worked, ``BUSY`` if the run was, ``OURS`` for another of our errors."""
        self._process.join(_PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            raise AssertionError(f"a process that only asks has not ended after {_PATIENCE:g} s")
        return self._process.exitcode


def forget_elsewhere(path: Path, request: Request, **options: Any) -> int:
    return Asking(path, "forget", request, **options).outcome()
