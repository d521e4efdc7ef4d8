"""Run a method of ``Run`` in another process while this one holds the run.

The process comes from a fork server. In a direct fork of this process, a lock of SQLite's that one of its threads
holds would stay locked in the child for ever.
"""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

from fedforget import Request, Run
from fedforget.errors import FedForgetError, RunBusy
from tests.requests.world import opened

_POLLING = 4.0  # seconds
_TIMEOUT = 120.0  # seconds
BUSY, REFUSED = 5, 9

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.requests.world", "fedforget.requests.processor", "fedforget.training.local_sgd"])


def poll_status(run: Run) -> None:
    """Read the status repeatedly; every answer must be consistent."""
    end = time.monotonic() + _POLLING
    while time.monotonic() < end:
        status = run.status()
        assert status.rounds_done <= status.rounds
        assert status.model_digest is not None


def _call(path: Path, command: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    try:
        if command == "poll_status":
            poll_status(opened(path))
        else:
            getattr(opened(path), command)(*arguments, **options)
    except RunBusy:
        raise SystemExit(BUSY) from None
    except FedForgetError:
        raise SystemExit(REFUSED) from None


class OtherProcess:
    """A method of ``Run`` that another process is executing."""

    def __init__(self, path: Path, command: str, *arguments: Any, **options: Any) -> None:
        self._process = _server.Process(target=_call, args=(path, command, arguments, options), daemon=True)
        self._process.start()

    def exit_code(self) -> int:
        """Return 0 for success, ``BUSY`` for RunBusy, ``REFUSED`` for another FedForgetError."""
        self._process.join(_TIMEOUT)
        if self._process.exitcode is None:
            self._process.kill()
            raise AssertionError(f"the other process has not ended after {_TIMEOUT:g} s")
        return self._process.exitcode


def forget_in_other_process(path: Path, request: Request, **options: Any) -> int:
    return OtherProcess(path, "forget", request, **options).exit_code()
