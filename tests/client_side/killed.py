"""Runs a function in a forked process that is killed before its n-th call that touches the disk."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from tests.cli.zygote import Touches

PATIENCE = 120  # seconds


def run_killed(work: Callable[[], object], kill_at: int = 0) -> int | None:
    """Return how often the work touches the disk, or None if it was killed before the ``kill_at``-th time."""
    with tempfile.NamedTemporaryFile() as told:
        pid = os.fork()
        if not pid:
            _child(work, kill_at, Path(told.name))
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return None
        found = Path(told.name).read_text()
    assert found.isdigit(), found
    return int(found)


def _child(work: Callable[[], object], kill_at: int, told: Path) -> None:
    signal.alarm(PATIENCE)
    touches = Touches(kill_at)
    try:
        threading.setprofile(touches)
        sys.setprofile(touches)
        try:
            work()
        finally:
            sys.setprofile(None)
        told.write_text(str(touches.seen))
    except BaseException as error:  # noqa: BLE001 (told to the parent)
        told.write_text(repr(error))
    finally:
        os._exit(0)
