"""Federations on arrays with integer ids: what they give is what samples given one by one give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.data.adapters import from_arrays
from fedforget.data.federated import FederatedData
from fedforget.data.tables import OwnRows
from fedforget.errors import DataChanged, FedForgetError, InvalidInput

rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**62)), min_size=1, max_size=40, unique=True)
SHAPES = [
    ((), np.float32, np.int64),
    ((3,), np.float64, np.uint8),
    ((2, 2), np.uint8, np.float32),
    ((0,), np.int8, bool),
]


def arrays(count: int, shape: tuple[int, ...], kind: Any, target: Any) -> tuple[Any, Any]:
    x = (np.arange(count * int(np.prod(shape))) % 251).reshape(count, *shape).astype(kind)
    return x, (np.arange(count) % 2).astype(target)


def by_hand(x: Any, y: Any, owners: list[int], ids: list[int]) -> FederatedData:
    clients: dict[int, dict[int, Any]] = {}
    for place, (client, sample) in enumerate(zip(owners, ids, strict=True)):
        clients.setdefault(client, {})[sample] = (x[place], y[place])
    return FederatedData(clients)


def everything(data: FederatedData, without: list[Request]) -> dict[Id, tuple[tuple[Id, ...], bytes]]:
    members = data.members(without)
    of = data.contents_of(members)
    return {client: (members[client].ids, of([client]).digests) for client in members}


@given(rows, st.sampled_from(SHAPES), st.data())
def test_digests_in_bulk_are_those_of_each_sample(pairs: list[tuple[int, int]], kinds: Any, chance: Any) -> None:
    owners, ids = [list(column) for column in zip(*pairs, strict=True)]
    x, y = arrays(len(pairs), *kinds)
    table, plain = FederatedData(from_arrays(x, y, clients=owners, ids=ids)), by_hand(x, y, owners, ids)
    without = [Request(*chance.draw(st.sampled_from(pairs)))] if chance.draw(st.booleans()) else []
    assert everything(table, without) == everything(plain, without)
    assert table.sizes() == plain.sizes()
    left = table.members(without)
    together = table.contents_of(left)(list(left))
    one = [table.contents_of(left)([client]) for client in left]
    assert together.digests == b"".join(each.digests for each in one)
    assert together.sizes.tolist() == [len(left[client]) for client in left]
    assert together.blocks.tobytes() == b"".join(left[client].blocks.tobytes() for client in left)


@pytest.mark.parametrize("order", [">i4", ">i8", ">f4"])
def test_targets_in_another_byte_order_have_the_digests_of_their_samples(order: str) -> None:
    """A single target that numpy gives is of the order of the machine."""
    x, y = arrays(6, (2,), np.float32, np.dtype(order))
    owners = [0, 0, 0, 1, 1, 1]
    table, plain = FederatedData(from_arrays(x, y, clients=owners)), by_hand(x, y, owners, list(range(6)))
    assert everything(table, []) == everything(plain, [])
    table.require_all_unchanged([0, 1], table.contents_of(table.members())([0, 1]))


def test_rows_that_are_no_plain_arrays_have_the_digests_of_their_samples(tmp_path: Path) -> None:
    x, y = arrays(4, (2,), np.float32, np.int64)
    x.tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", np.float32, "r", shape=x.shape)
    objects = np.empty(4, object)
    objects[:] = list(x)
    for rows_of_x in (np.ma.masked_array(x), mapped, objects):
        table = FederatedData(from_arrays(rows_of_x, y, clients=[0, 0, 1, 1]))
        assert everything(table, []) == everything(by_hand(rows_of_x, y, [0, 0, 1, 1], [0, 1, 2, 3]), [])
        assert table.is_in_memory == (rows_of_x is mapped)


def test_samples_are_found_by_their_ids() -> None:
    x, y = arrays(6, (2,), np.float32, np.int64)
    owners: Any = np.array([3, 1, 3, 1, 3, 1])
    data = from_arrays(x, y, clients=owners, ids=[9, 8, 7, 6, 5, 4])
    assert {client: sorted(samples) for client, samples in data.items()} == {1: [4, 6, 8], 3: [5, 7, 9]}
    assert data[3][7][0].tolist() == x[2].tolist()
    for wrong in (6, 10, -1, "7", None, 7.0):
        with pytest.raises(KeyError):
            data[3][wrong]  # type: ignore[index]


@pytest.mark.parametrize("owners", [[0, 1], np.array([0, 1], np.uint8), range(2)])
def test_table_is_used_for_integers(owners: Any) -> None:
    x, y = arrays(2, (1,), np.float32, np.int64)
    assert all(isinstance(own, OwnRows) for own in from_arrays(x, y, clients=owners).values())


@pytest.mark.parametrize("owners", [["a", "b"], ["0", "1"], ["0", 1], torch.tensor([0, 1])])
def test_other_ids_are_taken_one_by_one(owners: Any) -> None:
    x, y = arrays(2, (1,), np.float32, np.int64)
    assert not any(isinstance(own, OwnRows) for own in from_arrays(x, y, clients=owners).values())


@pytest.mark.parametrize("owners", [[True, False], [-1, 0], np.array([0.0, 1.0]), np.array([2**63, 1])])
def test_non_integer_id_is_refused_in_a_table(owners: Any) -> None:
    x, y = arrays(2, (1,), np.float32, np.int64)
    with pytest.raises(FedForgetError, match="cannot be the id"):
        FederatedData(from_arrays(x, y, clients=owners))


def test_sample_id_that_a_client_has_twice_is_refused() -> None:
    x, y = arrays(3, (1,), np.float32, np.int64)
    with pytest.raises(InvalidInput, match="client 4 has the sample id 7 twice"):
        from_arrays(x, y, clients=[4, 5, 4], ids=[7, 7, 7])


def test_tensors_and_lists_are_digested_as_before() -> None:
    x, y = arrays(4, (2,), np.float32, np.int64)
    kinds: list[Any] = [(torch.from_numpy(x), torch.from_numpy(y)), (x.tolist(), y.tolist())]
    for some in kinds:
        table = FederatedData(from_arrays(*some, clients=[0, 0, 1, 1]))
        assert everything(table, []) == everything(by_hand(some[0], some[1], [0, 0, 1, 1], [0, 1, 2, 3]), [])
        assert not table.is_in_memory
    assert FederatedData(from_arrays(x, y, clients=[0, 0, 1, 1])).is_in_memory


def test_members_are_those_with_samples() -> None:
    x, y = arrays(3, (1,), np.float32, np.int64)
    data = FederatedData(from_arrays(x, y, clients=[0, 0, 1]))
    members = data.members([Request(1, 2), Request(0, 1)])
    assert dict(members) == {0: IdSet([0])}
    assert len(members) == 1
    with pytest.raises(KeyError):
        members[1]


@pytest.mark.parametrize("kind", [lambda x: x, lambda x: x.tolist()], ids=["in bulk", "one by one"])
def test_content_that_has_changed_is_found_and_named(kind: Any) -> None:
    x, y = arrays(6, (2,), np.float32, np.int64)
    owners = [0, 0, 0, 1, 1, 1]
    began = FederatedData(from_arrays(kind(x), y, clients=owners))
    members = began.members()
    known = began.contents_of(members)(list(members))
    began.require_all_unchanged(list(members), known)
    fewer = FederatedData(from_arrays(kind(x[:3]), y[:3], clients=owners[:3]))
    with pytest.raises(DataChanged, match="client 1 is missing"):
        fewer.require_all_unchanged(list(members), known)
    x[4, 1] += 1
    with pytest.raises(DataChanged, match="the content of sample 4 of client 1 is not what"):
        FederatedData(from_arrays(kind(x), y, clients=owners)).require_all_unchanged(list(members), known)
