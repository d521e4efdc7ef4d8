"""Partitions: label mixes with natural and equal sizes, natural clients, virtual clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.streams import numpy_stream
from fedforget.data.natural import natural_partition, virtual_partition, writer_of
from fedforget.data.ownership import Partition, federated
from fedforget.data.partition import equal_label_partition
from fedforget.data.places import read_below
from fedforget.data.registry import DATASETS, EQUAL, NATURAL, VIRTUAL
from fedforget.data.source import Group
from fedforget.data.stored import StoredData
from fedforget.errors import DataChanged, InvalidId, PlanRefused
from tests.data import made_up
from tests.helpers import numbered_seed

SEED = numbered_seed(3)


def labels_of(count: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, count)


# Equal sizes


@settings(max_examples=60)
@given(
    st.integers(1, 300), st.integers(1, 12), st.integers(1, 40), st.sampled_from([0.01, 0.5, 100.0]), st.integers(0, 99)
)
def test_equal_sizes_are_equal_and_disjoint(count: int, classes: int, clients: int, beta: float, seed: int) -> None:
    if clients > count:
        return
    ids = np.arange(count) * 3 + 5
    owners = equal_label_partition(
        labels_of(count, classes, seed), ids, clients=clients, beta=beta, seed=numbered_seed(seed)
    )
    assert {len(own) for own in owners.values()} == {count // clients}
    everything = [identifier for own in owners.values() for identifier in own]
    assert len(set(everything)) == len(everything) == count // clients * clients
    assert set(everything) <= set(ids.tolist())


def shares(owners: dict[int, list[int]], labels: np.ndarray, classes: int) -> np.ndarray:
    return np.array([np.bincount(labels[own], minlength=classes) / len(own) for own in owners.values()])


def test_equal_sizes_keep_each_clients_mix_of_labels() -> None:
    """The first clients, which find every label in stock, have the moments of Dir(β): the variance of a share is
    (1/C)(1 - 1/C)/(Cβ + 1) plus the multinomial part. Shuffling without labels gives far less."""
    labels, clients, beta = labels_of(60_000, 10), 300, 0.5
    owners = equal_label_partition(labels, np.arange(60_000), clients=clients, beta=beta, seed=SEED)
    early = shares({client: owners[client] for client in range(100)}, labels, 10)
    expected = 0.1 * 0.9 * (1 / (10 * beta + 1) + (1 - 1 / (10 * beta + 1)) / 200)
    assert early.var() == pytest.approx(expected, rel=0.2)  # a fixed seed: no false alarms; 20 % is a choice
    shuffled = numpy_stream(SEED).permutation(60_000).reshape(clients, 200)
    wrong = shares(dict(enumerate(shuffled.tolist())), labels, 10)
    assert wrong.var() < expected / 10


def test_a_partition_is_a_function_of_its_seed() -> None:
    labels, ids = labels_of(600, 10), np.arange(600)
    first, again, other = (
        equal_label_partition(labels, ids, clients=20, beta=0.5, seed=numbered_seed(seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(("clients", "beta"), [(0, 0.5), (-1, 0.5), (11, 0.5), (2, 0.0), (2, float("nan"))])
def test_impossible_partitions_are_refused(clients: int, beta: float) -> None:
    with pytest.raises(PlanRefused):
        equal_label_partition(labels_of(10, 2), np.arange(10), clients=clients, beta=beta, seed=SEED)


# Natural and virtual clients

GROUPS = {
    "a": Group(range(150), range(16)),
    "b": Group(range(150, 160), range(16, 17)),
    "c": Group(range(160, 360), range(17, 37)),
    "d": Group(range(360, 460), range(37, 47)),
}


def test_natural_clients_below_the_minimum_are_left_out() -> None:
    owners = natural_partition(GROUPS, clients=None, minimum=100, seed=SEED)
    assert {name: len(own) for name, own in owners.items()} == {"a": 150, "c": 200, "d": 100}
    assert owners["c"].tolist() == list(range(200))


def test_fewer_natural_clients_are_chosen_by_the_seed() -> None:
    chosen = {tuple(natural_partition(GROUPS, clients=1, minimum=1, seed=numbered_seed(n))) for n in range(20)}
    assert len(chosen) > 1
    assert all(len(names) == 1 for names in chosen)
    with pytest.raises(PlanRefused, match="from the 3"):
        natural_partition(GROUPS, clients=4, minimum=100, seed=SEED)


def test_virtual_clients_are_subsets_of_one_writer_each() -> None:
    owners = virtual_partition(GROUPS, clients=31, minimum=100, samples=31 * 50, seed=SEED)
    assert len(owners) == 31
    assert abs(sum(map(len, owners.values())) - 31 * 50) <= 31
    for client, ids in owners.items():
        assert len(np.unique(ids)) == len(ids)
        assert 0 <= ids.min() <= ids.max() < len(GROUPS[writer_of(client)].train)
    assert {writer_of(client) for client in owners} == {"a", "c", "d"}
    first, second = (owners[client].tolist() for client in ("a.0", "a.1"))
    assert first != second
    assert set(first) & set(second)  # an image sits with several clients: erasing it at one does not erase the image


def test_virtual_clients_fewer_than_writers_are_refused() -> None:
    with pytest.raises(PlanRefused, match="virtual"):
        virtual_partition(GROUPS, clients=2, minimum=100, samples=100, seed=SEED)


# Samples by reference


@pytest.fixture
def writers(tmp_path: Path) -> Path:
    found = made_up.writers({"f0001_07": 110, "f0002_11": 45, "f0003_30": 120})
    made_up.write_writers_npz(tmp_path / "femnist" / "some.npz", found)
    return tmp_path


def natural(base: Path) -> StoredData:
    dataset = DATASETS["femnist"]
    source = read_below(dataset, base)
    assert source is not None
    partition = Partition.of(dataset, NATURAL, None, None, SEED)
    return federated(dataset, source, NATURAL, partition.owners(dataset, source))


def test_a_natural_sample_is_its_writers_image(writers: Path) -> None:
    data = natural(writers)
    found = made_up.writers({"f0001_07": 110, "f0002_11": 45, "f0003_30": 120})
    pictures, labels = found["f0003_30"]["train"]
    x, y = data.sample("f0003_30", 17)
    assert x.dtype == np.float32
    assert x.shape == (1, 28, 28)
    assert np.array_equal(x[0], pictures[17].astype(np.float32) / np.float32(255))
    assert y == labels[17]
    assert list(data.roster) == [name for name in data.roster if name in ("f0001_07", "f0003_30")]


def test_a_batch_is_its_samples_stacked(writers: Path) -> None:
    data = natural(writers)
    ids = [5, 0, 99, 5]
    x, y = data.batch("f0001_07", ids)
    assert np.array_equal(x, np.stack([data.sample("f0001_07", each)[0] for each in ids]))
    assert y.tolist() == [int(data.sample("f0001_07", each)[1]) for each in ids]


def test_own_test_samples_belong_to_clients_of_the_federation_only(writers: Path) -> None:
    data = natural(writers)
    assert data.test_owners is not None
    assert set(data.test_owners) == {"f0001_07", "f0003_30"}
    assert len(data.test[1]) == len(data.test_owners) == 12 + 13


@pytest.mark.parametrize("sample", [110, -1, "x", 2**62])
def test_missing_sample_is_named(writers: Path, sample: int | str) -> None:
    with pytest.raises(DataChanged, match=f"sample {sample} of client f0001_07 is missing"):
        natural(writers).sample("f0001_07", sample)


def test_contents_tell_samples_and_conversions_apart(tmp_path: Path) -> None:
    splits = made_up.images((32, 32, 3), 10)
    made_up.write_npz(tmp_path / "cifar-10" / "part.npz", splits)
    made_up.write_npz(tmp_path / "cifar-100" / "part.npz", splits)
    found = {}
    for name in ("cifar-10", "cifar-100"):
        dataset = DATASETS[name]
        source = read_below(dataset, tmp_path)
        assert source is not None
        data = federated(dataset, source, EQUAL, {0: np.arange(60)})
        found[name] = dict(data.contents(0, range(60)))
        assert found[name][7] == data[0].content(7)
    assert len(set(found["cifar-10"].values())) == 60
    assert found["cifar-10"] == found["cifar-100"]


def test_a_changed_pixel_or_label_changes_the_content(writers: Path) -> None:
    data = natural(writers)
    known = dict(data.contents("f0001_07", range(110)))
    data.require_unchanged("f0001_07", known)
    rows = data["f0001_07"]._rows  # type: ignore[attr-defined]
    rows.images[3, 2, 2] ^= 1
    with pytest.raises(DataChanged, match="sample 3 "):
        data.require_unchanged("f0001_07", known)
    rows.images[3, 2, 2] ^= 1
    rows.labels[4] ^= 1
    with pytest.raises(DataChanged, match="sample 4 "):
        data.require_unchanged("f0001_07", known)


def test_virtual_clients_read_their_writers_images(writers: Path) -> None:
    dataset = DATASETS["femnist"]
    source = read_below(dataset, writers)
    assert source is not None
    partition = Partition.of(dataset, VIRTUAL, 7, None, SEED)
    data = federated(dataset, source, VIRTUAL, partition.owners(dataset, source))
    real = natural(writers)
    client = "f0003_30.1"
    sample = data[client].ids.ids[0]
    assert np.array_equal(data.sample(client, sample)[0], real.sample("f0003_30", sample)[0])
    assert data.test_owners is None


def test_set_of_ascending_integers_is_the_set_of_these_ids() -> None:
    numbers = np.array([0, 3, 70_000, 2**40])
    made, plain = IdSet.of_integers(numbers), IdSet(numbers.tolist())
    assert made == plain
    assert np.array_equal(made.blocks, plain.blocks)
    for wrong in ([3, 3], [4, 3], [-1, 3]):
        with pytest.raises(InvalidId):
            IdSet.of_integers(np.array(wrong))


def test_partition_is_recorded_and_found_again() -> None:
    for dataset, kind, clients in (
        ("mnist", None, 7),
        ("mnist", EQUAL, 7),
        ("femnist", None, None),
        ("femnist", VIRTUAL, None),
    ):
        partition = Partition.of(DATASETS[dataset], kind, clients, None, SEED)
        assert Partition.recorded(partition.settings()) == partition


def test_partition_that_a_dataset_does_not_have_is_refused() -> None:
    with pytest.raises(PlanRefused, match="natural"):
        Partition.of(DATASETS["mnist"], NATURAL, 3, None, SEED)
    with pytest.raises(PlanRefused, match="beta"):
        Partition.of(DATASETS["femnist"], NATURAL, None, 0.5, SEED)
