"""A new run directory: private, started over after an interruption, and never in the place of something else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedforget import Request
from fedforget.errors import InvalidInput, RunDamaged
from tests.helpers import function_files
from tests.requests.world import opened


def test_new_run_can_be_entered_and_read_by_its_owner_only(tmp_path: Path) -> None:
    run = opened(tmp_path / "new" / "run").path
    modes = {path.name: path.stat().st_mode & 0o777 for path in (run, *run.iterdir(), *(run / "models").iterdir())}
    directories = {name for name in ("run", "models") if modes.pop(name) == 0o700}
    assert directories == {"run", "models"}
    modes.pop("lock")
    assert set(modes.values()) == {0o600}


def test_interrupted_creation_is_started_over(tmp_path: Path) -> None:
    whole = opened(tmp_path / "whole").path
    half = Path(shutil.copytree(whole, tmp_path / "half"))
    (half / "plan.toml").unlink()
    (half / "models" / "other.safetensors").touch()
    (half / "server.db-wal").touch()
    (half / "plan.toml.tmp").touch()
    assert function_files(opened(half).path) == function_files(whole)
    assert sorted(path.name for path in half.iterdir()) == sorted(path.name for path in whole.iterdir())


def test_foreign_directory_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(InvalidInput, match=r"is not a run \(it holds cat\.jpg\)"):
        opened(tmp_path / "photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


@pytest.mark.parametrize("used", ["rounds", "requests"])
def test_run_that_lost_its_plan_is_not_started_over(tmp_path: Path, used: str) -> None:
    run = opened(tmp_path / "run")
    if used == "rounds":
        run.train(until=1)
    else:
        run.forget(Request(2), defer=True)
    (run.path / "plan.toml").unlink()
    with pytest.raises(RunDamaged, match=r"plan\.toml is missing, but the run has rounds or requests"):
        opened(run.path)


def test_existing_run_is_opened_as_it_is(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    run.train(until=2)
    before = function_files(run.path)
    assert opened(run.path).status().rounds_done == 2
    assert function_files(run.path) == before
