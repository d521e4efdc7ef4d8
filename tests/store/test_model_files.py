"""Model files: what is written is what is read, and a file that cannot be right is refused before it is read."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from fedforget.algorithm.ports import State
from fedforget.errors import InvalidInput, RunDamaged
from fedforget.store.model_files import SUFFIX, ModelFiles, decode, encode
from fedforget.store.tensor_header import require_header, state_layouts
from tests.helpers import comparable

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "seen": np.array([3], np.int64)}
MOMENTS = {"m/w": np.ones((2, 3)), "v/w": np.full((2, 3), 0.5)}
# From the specification of safetensors.
SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    "BOOL": 1,
}  # fmt: skip


@pytest.fixture
def models(tmp_path: Path) -> ModelFiles:
    (tmp_path / "models").mkdir()
    return ModelFiles(tmp_path / "models")


@pytest.mark.parametrize("optimizer", [None, MOMENTS])
def test_state_is_read_as_it_was_written(models: ModelFiles, optimizer: Any) -> None:
    state = State(MODEL, optimizer)
    name = models.write(state)
    models.check(name)
    assert comparable(models.read(name)) == comparable(state)
    assert models.path(name).stat().st_mode & 0o777 == 0o600
    assert models.size_of_one() == models.path(name).stat().st_size


def test_optimizer_tensors_are_stored_under_a_prefix() -> None:
    data = encode(State(MODEL, MOMENTS))
    assert set(load(data)) == {"w", "seen", "server-optimizer/m/w", "server-optimizer/v/w"}
    assert decode(encode(State(MODEL))).optimizer is None


def test_transposed_tensor_is_stored_in_row_order() -> None:
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    state = decode(encode(State({"w": turned}, {"m/w": turned})))
    assert np.array_equal(state.model["w"], turned)
    assert np.array_equal((state.optimizer or {})["m/w"], turned)


def test_tensor_with_the_reserved_prefix_is_refused() -> None:
    with pytest.raises(InvalidInput, match="server-optimizer/w"):
        encode(State({"server-optimizer/w": np.zeros(1)}))


@pytest.mark.parametrize("damage", [lambda data: data[:-1] + b"\1", lambda data: data[:-1]], ids=["altered", "cut"])
def test_damaged_file_is_refused_and_written_again(models: ModelFiles, damage: Any) -> None:
    name = models.write(State(MODEL))
    whole = models.path(name).read_bytes()
    models.path(name).write_bytes(damage(whole))
    for look in (models.read, models.check):
        with pytest.raises(RunDamaged, match="torn or altered"):
            look(name)
    assert models.write(State(MODEL)) == name
    assert models.path(name).read_bytes() == whole


def test_directory_without_models_has_no_size(models: ModelFiles) -> None:
    assert models.size_of_one() == 0


def test_file_with_other_tensors_than_the_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    described = {"w": "parameter float32 2x3", "seen": "buffer int64 1"}
    plain, with_moments = (
        ModelFiles(tmp_path / "models", state_layouts(described, moments=moments)) for moments in (False, True)
    )
    initial, later = plain.write(State(MODEL)), plain.write(State(MODEL, MOMENTS))
    other = plain.write(State({**MODEL, "more": np.zeros(1)}))
    for models, name, fits in (
        (plain, initial, True),
        (plain, later, False),
        (with_moments, initial, True),
        (with_moments, later, True),
        (plain, other, False),
        (with_moments, other, False),
    ):
        if fits:
            models.require_layout(name)
        else:
            with pytest.raises(RunDamaged, match="its tensors are not those of the plan"):
                models.require_layout(name)
    plain.require_layout("0" * 64)  # missing: reading it reports that


def test_layout_follows_from_the_descriptions_in_the_plan() -> None:
    described = {"w": "parameter float32 2x3", "f": "frozen float64 4", "n": "buffer int64 scalar"}
    model = {"w": ("F32", (2, 3)), "f": ("F64", (4,)), "n": ("I64", ())}
    moments = {
        f"server-optimizer/{moment}/{name}": ("F64", shape)
        for name, shape in (("w", (2, 3)), ("f", (4,)))
        for moment in "mv"
    }
    assert state_layouts(described, moments=False) == (model,)
    assert state_layouts(described, moments=True) == (model, model | moments)
    for text in (
        "parameter float32",
        "weight float32 2",
        "parameter complex64 2",
        "parameter float32 2x",
        "buffer int64 -1",
    ):
        with pytest.raises(ValueError, match="a tensor cannot be"):
            state_layouts({"w": text}, moments=False)


def test_keep_only_and_drop_delete_the_other_models(models: ModelFiles) -> None:
    kept, dropped, other = (models.write(State({"w": np.full(2, value)})) for value in range(3))
    (models.path(kept).parent / "half.tmp").touch()
    (models.path(kept).parent / "notes.txt").touch()
    models.keep_only([kept, dropped])
    left = {kept + SUFFIX, dropped + SUFFIX, "notes.txt"}
    assert {path.name for path in models.path(kept).parent.iterdir()} == left
    models.drop([dropped, other])
    assert {path.name for path in models.path(kept).parent.iterdir()} == left - {dropped + SUFFIX}


# -------------------------------------------------------------------------------------------------------------- headers


def problem(path: Path, header: Any, data: int, length: int | None = None) -> str | None:
    """What is wrong with a file of this header and so many bytes of tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))
    file = os.open(path, os.O_RDONLY)
    try:
        require_header(file, path)
    except RunDamaged as error:
        return error.message.removeprefix(f"{path} is torn or altered: ")
    finally:
        os.close(file)
    return None


def tensor(dtype: str, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", SIZES)
def test_tensor_has_exactly_the_bytes_of_its_type_and_shape(tmp_path: Path, dtype: str) -> None:
    size = 6 * SIZES[dtype]
    assert problem(tmp_path / "f", {"w": tensor(dtype, [2, 3], 0, size)}, size) is None
    for wrong in (size - 1, size + 1):
        found = problem(tmp_path / "f", {"w": tensor(dtype, [2, 3], 0, wrong)}, wrong)
        assert found == "the size of a tensor does not match its shape"


GOOD = tensor("U8", [3], 0, 3)


@pytest.mark.parametrize(
    ("header", "data", "expected"),
    [
        ({}, 0, None),
        ({"a": GOOD, "b": tensor("U8", [2], 3, 5)}, 5, None),
        ({"b": tensor("U8", [2], 3, 5), "a": GOOD}, 5, None),
        ({"a": tensor("U8", [], 0, 1)}, 1, None),
        ({"a": tensor("U8", [1] * 32, 0, 1)}, 1, None),
        ({"a": tensor("U8", [1] * 33, 0, 1)}, 1, "impossible shape"),
        ({"a": tensor("U8", [-1], 1, 0)}, 0, "impossible shape"),
        ({"a": tensor("U8", [True], 0, 1)}, 1, "impossible shape"),
        ({"a": tensor("U8", [1.0], 0, 1)}, 1, "impossible shape"),
        ({"a": tensor("U8", 1, 0, 1)}, 1, "impossible shape"),
        ({"a": tensor("U8", [0], -1, -1)}, 0, "impossible shape"),
        ({"a": tensor("U8", [2**40], 0, 2**40)}, 0, "do not fill"),
        ({"a": tensor("U8", [2**40 + 1], 0, 2**40 + 1)}, 0, "impossible shape"),
        ({"a": tensor("C64", [1], 0, 8)}, 8, "unknown type"),
        ({"a": {**GOOD, "more": 1}}, 3, "needs exactly"),
        ({"a": 3}, 3, "needs exactly"),
        ({"a": tensor("U8", [1], 0, 1), "b": tensor("U8", [1], 2, 3)}, 3, "not contiguous"),
        ({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)}, 3, "not contiguous"),
        ({"a": tensor("U8", [1], 1, 2)}, 2, "not contiguous"),
        ({"a": GOOD}, 2, "do not fill"),
        ({"a": GOOD}, 4, "do not fill"),
        (b"no json", 3, ""),
        (b"[]", 0, ""),
    ],
)
def test_header_must_describe_the_whole_file(tmp_path: Path, header: Any, data: int, expected: str | None) -> None:
    found = problem(tmp_path / "f", header, data)
    assert found is None if expected is None else found is not None and expected in found


@pytest.mark.parametrize(("length", "expected"), [(0, "cannot have 0 bytes"), (3, "cannot have 3 bytes"), (2, None)])
def test_header_must_fit_into_the_file(tmp_path: Path, length: int, expected: str | None) -> None:
    found = problem(tmp_path / "f", b"{}", 0, length)
    assert found is None if expected is None else found is not None and expected in found


def test_header_has_at_most_four_mebibytes(tmp_path: Path) -> None:
    assert problem(tmp_path / "f", b"{}" + b" " * (2**22 - 2), 0) is None
    assert problem(tmp_path / "f", b"{}" + b" " * (2**22 - 1), 0) == f"its header cannot have {2**22 + 1} bytes"


@pytest.mark.parametrize("size", [0, 7, 2**40 + 1])
def test_file_that_is_too_short_or_too_long_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").touch()
    os.truncate(tmp_path / "f", size)
    file = os.open(tmp_path / "f", os.O_RDONLY)
    with pytest.raises(RunDamaged, match=f"it cannot have {size} bytes"):
        require_header(file, tmp_path / "f")
    os.close(file)
