"""A batch that is interrupted after its receipt, and a second one that is interrupted on top of it."""

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


def interrupted_after_its_receipt(path: Path) -> None:
    """A run with a batch that is completed and not purged, and with a request that waits."""

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
def test_second_batch_after_an_unpurged_one_survives_a_kill_at_any_write(tmp_path: Path, step: int) -> None:
    never = opened(tmp_path / "never", without=[FIRST, SECOND])
    never.train()
    wanted = function_files(never.path)
    interrupted_after_its_receipt(tmp_path / "interrupted")
    moment, killed = 1, True
    while killed:
        path = tmp_path / f"copy-{moment}"
        shutil.copytree(tmp_path / "interrupted", path)
        killed = killed_at(moment, opened(path, plan=None, seed=None).run_pending)
        run = opened(path, plan=None, seed=None)
        run.run_pending()
        assert function_files(path) == wanted, moment
        assert {receipt.state for receipt in run.receipts()} == {"purged"}, moment
        moment += 1 if step == 0 or exhaustive() else 7
    assert moment > 20
