"""The digits and how they are shared out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedforget.algorithm.streams import numpy_stream
from fedforget.data.digits import Digits
from fedforget.data.partition import dirichlet_label_partition
from fedforget.data.registry import BETA
from fedforget.errors import PlanRefused
from tests.helpers import numbered_seed

SEED = numbered_seed(0)
ROWS, TEST_ROWS = 1797, list(range(0, 1797, 5))
TRAINING_ROWS = [row for row in range(ROWS) if row % 5]


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits()


def owned(partition: dict[int, list[int]]) -> list[int]:
    return sorted(row for rows in partition.values() for row in rows)


# --------------------------------------------------------------------------------------------------------------- digits


def test_rows_that_are_multiples_of_five_are_test_data(digits: Digits) -> None:
    assert digits.training_rows == TRAINING_ROWS
    assert len(TRAINING_ROWS) == 1437
    raw = load_digits()
    test = digits.federated({0: [1]}).test
    assert test is not None
    assert np.array_equal(test[0], (raw.data[TEST_ROWS] / 16).astype(np.float32))
    assert test[1].tolist() == raw.target[TEST_ROWS].tolist()
    assert len(test[1]) == 360


def test_images_are_the_raw_ones_over_a_constant(digits: Digits) -> None:
    """Over sixteen, and not over a statistic of the data, which would keep a trace of what is erased."""
    raw = load_digits()
    data = digits.federated({0: TRAINING_ROWS})
    assert list(data[0].ids) == TRAINING_ROWS
    for row in TRAINING_ROWS:
        x, y = data.sample(0, row)
        assert (x.dtype.str, y.dtype.str) == ("<f4", "<i8")
        assert np.array_equal(x * 16, raw.data[row].astype(np.float32))
        assert y == raw.target[row]
    few = digits.federated({0: [1, 2]})
    assert np.array_equal(few[0].sample(2)[0], data[0].sample(2)[0])


# ------------------------------------------------------------------------------------------------------------ partition


@pytest.mark.parametrize("clients", [1, 2, 10, 60, 300, 1000, 1436, 1437])
@pytest.mark.parametrize("beta", [0.1, BETA, 100.0])
def test_every_training_row_has_one_owner_and_no_client_is_empty(digits: Digits, clients: int, beta: float) -> None:
    partition = digits.partition(clients=clients, beta=beta, seed=SEED)
    assert owned(partition) == TRAINING_ROWS
    assert list(partition) == list(range(clients))
    assert all(rows and rows == sorted(rows) for rows in partition.values())


def test_a_partition_is_a_function_of_its_seed(digits: Digits) -> None:
    one, again, other = (digits.partition(clients=20, beta=BETA, seed=numbered_seed(n)) for n in (1, 1, 2))
    assert one == again
    assert one != other


@pytest.mark.parametrize(
    ("clients", "beta", "reason"),
    [
        (1438, 0.5, "1438 clients are more than the 1437 samples"),
        (10**6, 0.5, "more than"),
        (0, 0.5, "0 clients"),
        (-1, 0.5, "-1 clients"),
        (3, 0, "beta must be above 0"),
        (3, -1, "beta"),
        (3, float("nan"), "beta"),
        (3, float("inf"), "beta"),
    ],
)
def test_impossible_partition_raises_plan_refused(digits: Digits, clients: int, beta: float, reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason) as refused:
        digits.partition(clients=clients, beta=beta, seed=SEED)
    assert refused.value.hint


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    share=st.floats(0, 1),
    beta=st.sampled_from([0.01, 0.5, 10.0]),
    seed=st.integers(0, 10**6),
)
def test_partition_of_any_labels_loses_no_sample(labels: list[int], share: float, beta: float, seed: int) -> None:
    clients = max(1, round(share * len(labels)))
    ids = [100 + 3 * place for place in range(len(labels))]
    partition = dirichlet_label_partition(np.array(labels), ids, clients=clients, beta=beta, seed=numbered_seed(seed))
    assert owned(partition) == ids
    assert len(partition) == clients
    assert all(partition.values())


def test_a_small_beta_gives_clients_few_labels_and_a_large_one_all() -> None:
    """The mean number of labels of a client; by chance it would be near that of the large one."""
    labels = np.repeat(np.arange(10), 100)

    def labels_of_a_client(beta: float) -> float:
        partition = dirichlet_label_partition(labels, range(1000), clients=10, beta=beta, seed=SEED)
        return float(np.mean([len({row // 100 for row in rows}) for rows in partition.values()]))

    assert labels_of_a_client(0.01) < 4
    assert labels_of_a_client(100) > 9.5


def test_a_stream_is_a_function_of_its_key() -> None:
    assert numpy_stream(SEED).integers(2**60) == numpy_stream(SEED).integers(2**60)
    assert numpy_stream(SEED).integers(2**60) != numpy_stream(numbered_seed(1)).integers(2**60)
