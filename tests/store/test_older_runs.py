"""A run directory that was made by 0.3.0.dev0 opens, is what it was, and goes on.

The run is that of ``tests.requests.world``: trained for five rounds, two requests purged, a sample added, one request
pending, a receipt signed.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from fedforget import Request, Run
from fedforget.health.doctor import examine
from fedforget.store import run_directory
from fedforget.training.environment import arithmetic, numeric_environment
from tests.helpers import function_files
from tests.requests.world import DATA, model

STATE = "9cae032cd0f3d50d808b7feaf27810287236d51cf7e04a3a3c7eb4f4baec5e8a"
MODEL = "35051e9f527593f8cbb949e63022160ad371b836f8163d3f26dbf4751968cce0"


@pytest.fixture
def older(tmp_path: Path) -> Run:
    with tarfile.open(Path(__file__).with_name("run-of-0.3.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    for path in (tmp_path / "run").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return Run(tmp_path / "run", model=model(), data=DATA)


def made_here(run: Run) -> bool:
    with run_directory.reading(run.path, only_idle=False) as opened:
        trained = opened.record.environments.of_rounds(opened.server.rounds_done)
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
        without=[Request(2), Request(3, 1), Request(1, 0)],
    )
    new.train()
    assert function_files(older.path) == function_files(new.path)
