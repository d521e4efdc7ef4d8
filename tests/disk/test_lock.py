"""The run lock: one process and one thread at a time. It ends with its holder, and children do not inherit it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedforget.disk.lock import RunLock, require_idle
from fedforget.errors import RunBusy, StorageFailed

HOLD = "import sys\nfrom pathlib import Path\nfrom fedforget.disk.lock import RunLock\n"
HOLD_FOR_EVER = HOLD + "with RunLock(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
HOLD_AND_FORK = HOLD + (
    "import os\nRunLock(Path(sys.argv[1])).__enter__()\npid = os.fork()\n"
    "if pid:\n    print(pid, flush=True)\nsys.stdin.read()\n"
)


@contextmanager
def holder(run: Path, program: str = HOLD_FOR_EVER) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", program, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_lock_held_by_another_process_raises_run_busy_with_its_pid(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert heard(process) == "held"
        with pytest.raises(RunBusy, match=f"in use by process {process.pid}") as error, RunLock(tmp_path):
            pass
        assert str(tmp_path) in error.value.message
        assert error.value.hint


def test_lock_is_released_when_its_holder_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert heard(process) == "held"
        process.send_signal(signal.SIGKILL)
        process.wait()
        with RunLock(tmp_path):
            pass


def test_lock_held_by_another_thread_raises_run_busy(tmp_path: Path) -> None:
    refused = []

    def other() -> None:
        try:
            with RunLock(tmp_path):
                pass
        except RunBusy as error:
            refused.append(error.message)

    with RunLock(tmp_path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(refused) == 1
        assert "this process" in refused[0]
        still_held(tmp_path)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(refused) == 1, "free again"


def still_held(run: Path) -> None:
    """Check that another process cannot take the lock: refusing a thread must not release it."""
    with holder(run) as process:
        assert heard(process) == ""
        process.wait()


def test_symlinked_path_uses_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with RunLock(tmp_path / "run"), pytest.raises(RunBusy), RunLock(tmp_path / "link" / ".." / "run"):
        pass
    with RunLock(tmp_path / "link"), pytest.raises(RunBusy), RunLock(tmp_path / "run"):
        pass


def test_forked_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path, HOLD_AND_FORK) as process:
        child = int(heard(process))
        with pytest.raises(RunBusy), RunLock(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(child, 0)  # it lives
        with RunLock(tmp_path):
            pass
        os.kill(child, signal.SIGKILL)


def test_require_idle_is_shared_and_excludes_a_writer(tmp_path: Path) -> None:
    with require_idle(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [], "nothing is written"
    with holder(tmp_path) as process:
        heard(process)
        with pytest.raises(RunBusy, match=f"in use by process {process.pid}"), require_idle(tmp_path):
            pass
        process.kill()
        process.wait()
    before = (tmp_path / "lock").stat()
    with require_idle(tmp_path):
        with require_idle(tmp_path):
            pass
        still_held(tmp_path)
        with pytest.raises(RunBusy), RunLock(tmp_path):
            pass
        still_held(tmp_path)
    assert (tmp_path / "lock").stat() == before
    with RunLock(tmp_path):
        with pytest.raises(RunBusy, match="this process"), require_idle(tmp_path):
            pass
        still_held(tmp_path)


def test_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), RunLock(tmp_path):
        raise KeyError
    with RunLock(tmp_path):
        pass


def test_lock_is_released_when_the_pid_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the pid cannot be written. The run must not stay locked."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with contextlib.suppress(StorageFailed), RunLock(tmp_path):  # refusing is right, and so is going on without
            pass
    with RunLock(tmp_path):
        pass
