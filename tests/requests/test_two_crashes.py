"""A batch of requests is interrupted after its receipt, and the next batch is killed before both are finished."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedforget import Request
from fedforget.requests.batches import Batches
from tests.helpers import function_files
from tests.requests.test_state_machine import killed_at
from tests.requests.world import opened
from tests.tally import exhaustive

FIRST, SECOND = Request(2), Request(3)  # both take part in round 1


def run_with_unpurged_batch(path: Path) -> None:
    """Make a run with a batch that is completed and not purged, and with a pending request."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    run = opened(path)
    run.train()
    run.forget(SECOND, defer=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batches, "purged", stop)
        with pytest.raises(KeyboardInterrupt):
            run.forget(FIRST)
    assert run.status().pending


@pytest.mark.parametrize("step", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_batch_killed_after_an_unpurged_batch_is_finished_by_run_pending(tmp_path: Path, step: int) -> None:
    never = opened(tmp_path / "never", without=[FIRST, SECOND])
    never.train()
    expected = function_files(never.path)
    run_with_unpurged_batch(tmp_path / "interrupted")
    write, killed = 1, True
    while killed:
        path = tmp_path / f"copy-{write}"
        shutil.copytree(tmp_path / "interrupted", path)
        killed = killed_at(write, opened(path, plan=None, seed=None).run_pending)
        run = opened(path, plan=None, seed=None)
        run.run_pending()
        assert function_files(path) == expected, write
        assert {receipt.state for receipt in run.receipts()} == {"purged"}, write
        write += 1 if step == 0 or exhaustive() else 7
    assert write > 20
