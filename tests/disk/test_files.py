"""Model files, durable writes and the plan file: atomic, and refused when altered."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from fedforget.algorithm.plan import LocalOptimizer, Plan, ServerOptimizer
from fedforget.algorithm.ports import State
from fedforget.disk.files import digest, write_durably
from fedforget.errors import InvalidInput, NoSuchRun, RunDamaged, RunTooNew, RunTooOld, StorageFailed
from fedforget.store.model_files import ModelFiles, decode, encode
from fedforget.store.plan_file import PlanFile

STATE = State(
    {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array(3), "half": np.ones(2, np.float16)}
)
WITH_OPTIMIZER = State(STATE.model, {"m/weight": np.full((2, 3), 0.5)})


def equal(one: State, other: State) -> bool:
    pairs = [(one.model, other.model), (one.optimizer or {}, other.optimizer or {})]
    return all(
        a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)
        for a, b in pairs
    )


@pytest.fixture
def models(tmp_path: Path) -> ModelFiles:
    (tmp_path / "models").mkdir()
    return ModelFiles(tmp_path / "models")


@pytest.mark.parametrize("state", [STATE, WITH_OPTIMIZER])
def test_written_state_is_read_back_unchanged(models: ModelFiles, state: State) -> None:
    name = models.write(state)
    assert models.write(state) == name
    assert equal(models.read(name), state)
    assert models.path(name).name == f"{name}.safetensors"
    assert digest(models.path(name).read_bytes()) == name
    assert equal(decode(encode(state)), state)


def test_encoding_is_independent_of_memory_layout_and_order() -> None:
    turned = State({name: np.asarray(STATE.model[name], order="F") for name in reversed(list(STATE.model))})
    assert encode(turned) == encode(STATE)


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "altered", "another", "directory"])
def test_altered_model_file_raises_run_damaged(models: ModelFiles, damage: str) -> None:
    name = models.write(STATE)
    path = models.path(name)
    data = path.read_bytes()
    if damage in {"missing", "directory"}:
        path.unlink()
        if damage == "directory":
            path.mkdir()
    else:
        path.write_bytes({
            "empty": b"", "torn": data[:-1], "altered": data[:-1] + bytes([data[-1] ^ 1]),
            "another": encode(WITH_OPTIMIZER),
        }[damage])  # fmt: skip
    with pytest.raises(RunDamaged) as error:
        models.read(name)
    assert str(path) in error.value.message
    assert "backup" in error.value.hint
    assert f"`fedforget doctor {path.parent.parent} --rebuild`" in error.value.hint


def test_file_with_right_digest_but_no_tensors_raises_run_damaged(models: ModelFiles) -> None:
    data = b"these bytes have the right name"
    models.path(digest(data)).write_bytes(data)
    with pytest.raises(RunDamaged, match="its header cannot have"):
        models.read(digest(data))


def test_keep_only_unlinks_other_models_and_temporary_files(models: ModelFiles, tmp_path: Path) -> None:
    wanted, unwanted = models.write(STATE), models.write(WITH_OPTIMIZER)
    torn = tmp_path / "models" / "x.safetensors.tmp"
    torn.write_bytes(b"torn")
    models.keep_only([wanted])
    assert [path.name for path in (tmp_path / "models").iterdir()] == [f"{wanted}.safetensors"]
    assert not models.path(unwanted).exists()


def test_tensor_with_reserved_name_is_refused() -> None:
    with pytest.raises(InvalidInput):
        encode(State({"server-optimizer/m": np.zeros(1)}))


# Writing


def test_write_durably_replaces_the_file_and_leaves_no_temporary(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"old")
    write_durably(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_failed_fsync_keeps_the_old_file_and_raises_storage_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write_durably(tmp_path / "file", b"old")

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageFailed) as error:
        write_durably(tmp_path / "file", b"new")
    assert str(tmp_path / "file") in error.value.message
    assert ("space" in error.value.message) == (number != errno.EIO)
    assert "same command again" in error.value.hint
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# The plan

PLAN_FILE = PlanFile(
    Plan(3, 4, 5, 6, LocalOptimizer(0.1, 0.5), ServerOptimizer("fedadam"), keep=2),
    {"name": "mlp", "inputs": 64},
    {"name": "own", "note": 'quotes " and \\ and ünïcode\nlines', "beta": 0.5},
    bytes(range(32)),
    {"0.weight": "parameter float32 64x64", 'odd " \x7f é \U0001f600': "buffer int64 scalar"},
)


def test_encoded_plan_is_read_back_unchanged(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_bytes(PLAN_FILE.encode())
    read = PlanFile.read(tmp_path)
    assert read == PLAN_FILE
    assert read.digest == PLAN_FILE.digest
    assert read.differences(PLAN_FILE) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch_size = 4", "batch_size = 0"),
        ("batch_size = 4", "batch_size = 'x'"),
        ("batch_size = 4", "batch_size = 4\nsurprise = 1"),
        ("batch_size = 4\n", ""),
        ("format = 3\n", ""),
        ("format = 3", "format = 'x'"),
        ("[model]", "model"),
        ("[commitment]\n", ""),
        ('server = "00', 'server = "zz'),
        ("[plan]", "[plan"),
    ],
)
def test_malformed_plan_raises_run_damaged_with_reason(tmp_path: Path, old: str, new: str) -> None:
    text = PLAN_FILE.encode().decode()
    assert old in text
    (tmp_path / "plan.toml").write_text(text.replace(old, new))
    with pytest.raises(RunDamaged) as error:
        PlanFile.read(tmp_path)
    assert str(tmp_path / "plan.toml") in error.value.message
    assert len(error.value.message.split("damaged: ")[1]) > 10, "says more than the name of a key"


def test_missing_old_new_or_binary_plan_raises_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun):
        PlanFile.read(tmp_path)
    (tmp_path / "plan.toml").write_bytes(PLAN_FILE.encode().replace(b"format = 3", b"format = 2"))
    made_by = r"was made by FedForget 0\.2, or by a development version of 0\.3: make it anew"
    with pytest.raises(RunTooOld, match=made_by):
        PlanFile.read(tmp_path)
    (tmp_path / "plan.toml").write_bytes(PLAN_FILE.encode().replace(b"format = 3", b"format = 4"))
    with pytest.raises(RunTooNew):
        PlanFile.read(tmp_path)
    (tmp_path / "plan.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RunDamaged):
        PlanFile.read(tmp_path)
