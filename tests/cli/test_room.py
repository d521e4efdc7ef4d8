"""A new run that does not fit is refused by one line, and leaves nothing."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedforget.algorithm.plan import Plan
from fedforget.cli import room
from fedforget.cli.room import free_memory, room_for
from fedforget.errors import InvalidInput, OutOfMemory, StorageFailed
from fedforget.training.evaluation import TestSet
from fedforget.training.weights import weights_of
from tests.cli.commandline import good_json, refused

TRAIN = ("train", "--clients", "4", "--clients-per-round", "2", "--batch-size", "3", "--local-steps", "1", "--rounds",
         "50", "--federation", "inline")  # fmt: skip


def disk_of(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_a_run_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of(500_000, monkeypatch)
    error = refused(StorageFailed.exit_code, StorageFailed.code, *TRAIN, "--out", tmp_path / "run")
    assert "the run needs about 1.0" in error["message"]
    assert not (tmp_path / "run").exists()
    assert good_json(*TRAIN, "--until-round", "1", "--out", tmp_path / "run")["rounds_done"] == 1


def test_femnist_does_not_fit_on_forty_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_of(40_000_000, monkeypatch)
    plan, sizes = Plan(5, 10, 20, 350), [228] * 3556
    with pytest.raises(StorageFailed, match=r"needs about 9\.3") as refusal:
        room_for(tmp_path / "run", None)(plan, sizes, 26_400_000)
    assert "--keep" in (refusal.value.hint or "")
    disk_of(10_000_000_000, monkeypatch)
    room_for(tmp_path / "run", None)(plan, sizes, 26_400_000)


def test_a_large_model_without_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda: 100_000_000)
    check = room_for(tmp_path / "run", 1)
    check(Plan(1, 1, 1, 1), [1], 10_000)  # a small model is never refused
    with pytest.raises(OutOfMemory, match="not enough memory: a training of this model needs about"):
        check(Plan(1, 1, 1, 1), [1], 26_400_000)


def test_free_memory_counts_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = free_memory()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, resource.RLIM_INFINITY))
    limited = free_memory()
    assert limited is not None
    assert limited < 0
    assert machine is None or machine > 0


class Broken(torch.nn.Linear):
    def __init__(self, message: str) -> None:
        super().__init__(2, 2)
        self.message = message

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(self.message)


@pytest.mark.parametrize(
    ("message", "error"), [("DefaultCPUAllocator: can't allocate memory", OutOfMemory), ("bad shape", InvalidInput)]
)
def test_lack_of_memory_while_measuring_is_named(message: str, error: type[Exception]) -> None:
    module = Broken(message)
    tests = TestSet(module, (torch.zeros(3, 2).numpy(), torch.zeros(3, dtype=torch.int64).numpy()))
    with pytest.raises(error):
        tests.count_correct(weights_of(module))
