"""A run directory of this format that was made earlier, by 0.3.0.dev0, opens, is what it was, and goes on.

The run is that of ``tests.requests.world``: trained for five rounds, two requests purged, a sample added, one request
pending, a receipt signed. When the format changes, this archive stays and is migrated (docs/run-directory.md);
``python -m tests.store.test_older_runs`` makes one of the new format, for which there is then another file.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from fedforget import Request, Run
from fedforget.health.doctor import examine
from fedforget.store import run_directory
from fedforget.training.environment import arithmetic, numeric_environment
from tests.helpers import function_files
from tests.requests.world import DATA, model, opened

STATE = "798b0dd187095c3d3ff6585951889cd4e3c58bce3888ccf1f123389ac847b730"
MODEL = "35051e9f527593f8cbb949e63022160ad371b836f8163d3f26dbf4751968cce0"


ARCHIVE = Path(__file__).with_name("run-of-0.3.tar.xz")
BATCH, ADDED, PENDING = [Request(2), Request(3, 1)], Request(4, 6), Request(1, 0)


def live(path: Path) -> Run:
    """Everything that the run in the archive went through."""
    run = opened(path, without=[ADDED])
    run.train(until=5)
    run.forget(BATCH, basis="exogenous")
    run.add(ADDED)
    run.forget(PENDING, defer=True, deadline="2999-01-01")
    run.signed_receipt(run.receipts()[0].id)
    return run


@pytest.fixture
def older(tmp_path: Path) -> Run:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    for path in (tmp_path / "run").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return Run(tmp_path / "run", model=model(), data=DATA)


def made_here(run: Run) -> bool:
    with run_directory.reading(run.path, only_idle=False) as found:
        trained = found.record.environments.of_rounds(found.server.rounds_done)
    return {arithmetic(each.environment) for each in trained} == {arithmetic(numeric_environment())}


def test_older_run_has_the_state_it_had(older: Run) -> None:
    assert older.state_digest() == STATE
    status = older.status()
    assert (status.model_digest, status.rounds_done, status.clients) == (MODEL, 5, 4)
    assert sorted(receipt.state for receipt in older.receipts()) == ["accepted", "purged", "purged"]
    assert all(check.ok for check in examine(older.path))


def test_older_run_verifies(older: Run) -> None:
    found = older.verify()
    assert found.chain_ok
    assert found.ok or not made_here(older)


def test_older_run_resumes_to_the_bytes_of_a_new_run(older: Run, tmp_path: Path) -> None:
    if not made_here(older):
        pytest.skip("the run was made by another processor or other libraries")
    older.run_pending()
    older.train()
    new = Run(
        tmp_path / "new",
        older.plan,
        model=model(),
        data=DATA,
        seed=1,
        without=[*BATCH, PENDING],
    )
    new.train()
    assert function_files(older.path) == function_files(new.path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        made = live(Path(directory) / "run")
        with tarfile.open(ARCHIVE, "w:xz") as new_archive:
            new_archive.add(made.path, "run")
        sys.stdout.write(f'STATE = "{made.state_digest()}"\nMODEL = "{made.status().model_digest}"\n')
