"""Own data: mappings and datasets, and digests that notice when content changes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import IdSet
from fedforget.data.federated import FederatedData
from fedforget.errors import DataChanged, InvalidId, InvalidInput, UnknownTarget

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def one(x: Any, y: Any = 0) -> FederatedData:
    return FederatedData({0: {0: (x, y)}})


def content(x: Any, y: Any = 0) -> bytes:
    return one(x, y)[0].content(0)


def some() -> FederatedData:
    return FederatedData({"b": {"x": (X, 1), 7: (X + 1, 2)}, 3: {0: (X + 2, 0)}, "empty": {}})


# --------------------------------------------------------------------------------------------------------------- shapes


def test_decimal_string_and_number_are_the_same_id() -> None:
    data = FederatedData({"3": {"0": (1.0, 0), "a": (2.0, 1)}, "ward-7": {np.int64(5): (3.0, 0)}})
    assert set(data.roster) == {3, "ward-7"}
    assert set(data[3].ids) == {0, "a"}
    assert data[3].sample(0)[0] == 1.0
    assert data["ward-7"].sample(5)[0] == 3.0


@pytest.mark.parametrize(
    "clients", [{3: {}, "3": {}}, {0: {1: (0, 0), "1": (0, 0)}}, {0: {np.int64(1): (0, 0), "1": (0, 0)}}]
)
def test_two_spellings_of_one_id_raise_invalid_id(clients: Any) -> None:
    with pytest.raises(InvalidId, match="duplicate"):
        FederatedData(clients)


@pytest.mark.parametrize("identifier", [True, 1.5, -1, None, b"a"])
def test_impossible_id_raises_invalid_id(identifier: Any) -> None:
    with pytest.raises(InvalidId):
        FederatedData({identifier: {}})
    with pytest.raises(InvalidId):
        FederatedData({0: {identifier: (0, 0)}})


class Squares(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[list[float], int]:
        return [float(index), float(index**2)], index % 2


@pytest.mark.parametrize(
    "dataset",
    [
        Squares(),
        TensorDataset(torch.tensor([[float(i), float(i**2)] for i in range(4)]), torch.arange(4) % 2),
        [([float(i), float(i**2)], i % 2) for i in range(4)],
    ],
    ids=["made on demand", "tensors", "a list"],
)
def test_dataset_index_is_the_sample_id(dataset: Any) -> None:
    data = FederatedData({"k": dataset})
    assert list(data["k"].ids) == [0, 1, 2, 3]
    pairs = [data.sample("k", index) for index in range(4)]
    assert [x.tolist() for x, _ in pairs] == [[0, 0], [1, 1], [2, 4], [3, 9]]
    assert [y.tolist() for _, y in pairs] == [0, 1, 0, 1]
    assert data.sizes() == [4]


def test_tensors_and_arrays_of_equal_content_are_the_same_sample() -> None:
    assert content(torch.tensor(X), torch.tensor(1)) == content(X, 1) == content(X.copy(order="F"), np.int64(1))


@pytest.mark.parametrize("samples", [5, None, iter(()), object()], ids=["5", "nothing", "iterator", "object"])
def test_client_without_samples_container_is_refused_by_name(samples: Any) -> None:
    with pytest.raises(InvalidInput, match="client ward-7"):
        FederatedData({"ward-7": samples})


@pytest.mark.parametrize("sample", [5, (1,), (1, 2, 3), None])
def test_sample_that_is_not_a_pair_is_refused_by_name(sample: Any) -> None:
    with pytest.raises(InvalidInput, match="sample 4 of client 3 is not a pair"):
        FederatedData({3: {4: sample}})[3].sample(4)


def test_sample_that_is_not_numeric_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot be made an array"):
        one(object())[0].sample(0)


def test_test_set_must_be_a_pair_of_equally_long_arrays() -> None:
    data = FederatedData({0: {}}, test=([[1.0]], [2]))
    assert data.test is not None
    assert (data.test[0].tolist(), data.test[1].tolist()) == ([[1.0]], [2])


# -------------------------------------------------------------------------------------------------------------- members


def test_members_are_all_clients_with_samples() -> None:
    assert some().members() == {"b": IdSet(["x", 7]), 3: IdSet([0])}


def test_members_exclude_the_left_out_targets() -> None:
    assert some().members([Request("b", "x"), Request("b", "x")]) == {"b": IdSet([7]), 3: IdSet([0])}
    assert some().members([Request(3)]) == {"b": IdSet(["x", 7])}
    assert some().members([Request(3, 0)]) == {"b": IdSet(["x", 7])}  # nothing is left of it
    assert some().members([Request("b"), Request("b", 7)]) == {3: IdSet([0])}
    assert some().members([Request("b"), Request(3)]) == {}


@pytest.mark.parametrize("unknown", [Request("nobody"), Request("nobody", 0), Request("b", 8), Request(3, "x")])
def test_leaving_out_an_unknown_target_raises_unknown_target(unknown: Request) -> None:
    with pytest.raises(UnknownTarget):
        some().members([unknown])


# -------------------------------------------------------------------------------------------------------------- content


@pytest.mark.parametrize(
    "changed",
    [
        (X + 1, 0),
        (np.where(X == 5, -5, X), 0),
        (X.astype(np.float64), 0),
        (X.astype(np.int32), 0),
        (X.reshape(3, 2), 0),
        (X.reshape(6), 0),
        (X[None], 0),
        (X.T, 0),
        (X, 1),
        (X, 0.0),
        (X, np.int32(0)),
        (X, [0]),
        (X, False),
        (-0.0 * X, 0),
    ],
    ids=str,
)
def test_any_change_of_value_type_or_shape_changes_the_digest(changed: Any) -> None:
    assert content(*changed) != content(X, 0)


def test_digest_distinguishes_zero_and_negative_zero() -> None:
    assert content(np.float32(0.0)) != content(np.float32(-0.0))


def test_digest_distinguishes_where_x_ends_and_y_begins() -> None:
    assert content(np.array([1, 2]), np.array([3])) != content(np.array([1]), np.array([2, 3]))


def test_the_digest_of_a_sample_is_fixed() -> None:
    """Runs hold these digests, so they may never change."""
    assert content(X, 1).hex() == "92b981ade17ca9ab7af2d789e83379ec"
    assert content(np.float64(0.5), np.zeros(0)).hex() == "45d8fba9e8a8f3046563ca4d4844019d"
    written_out = b"<f4(2, 3);" + X.tobytes() + b"<i8();" + (1).to_bytes(8, "little")
    assert content(X, 1) == hashlib.blake2b(written_out, digest_size=16, person=b"fedforget/sample").digest()


VALUES = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4)


@given(VALUES, st.integers(0, 3), st.data())
def test_digests_are_equal_exactly_for_equal_content(values: list[float], y: int, data: st.DataObject) -> None:
    other = data.draw(st.one_of(st.just(values), VALUES))
    one_array, other_array = np.array(values, np.float32), np.array(other, np.float32)
    equal = one_array.tobytes() == other_array.tobytes()
    assert (content(one_array, y) == content(other_array, y)) == equal


def test_changed_content_raises_data_changed_with_its_name() -> None:
    data: dict[Any, dict[Any, Any]] = {3: {0: (X, 0), 1: (X, 1)}, "a": {5: (X, 0)}}
    known = {client: dict(FederatedData(data).contents(client, data[client])) for client in data}
    for client in data:
        FederatedData(data).require_unchanged(client, known[client])
    data[3][1] = (X + 1, 1)
    FederatedData(data).require_unchanged("a", known["a"])
    FederatedData(data).require_unchanged(3, {0: known[3][0]})  # what is not asked for may be anything
    with pytest.raises(DataChanged, match="sample 1 of client 3"):
        FederatedData(data).require_unchanged(3, known[3])


@pytest.mark.parametrize(("client", "sample", "message"), [("gone", 0, "client gone"), (3, 9, "sample 9 of client 3")])
def test_missing_client_or_sample_raises_data_changed_with_its_name(client: Any, sample: Any, message: str) -> None:
    with pytest.raises(DataChanged, match=message):
        some().require_unchanged(client, {sample: b""})
