"""Aggregation: who counts how often, in which order, in which type."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedforget.algorithm.aggregate import FedAdam, TakeAverage, aggregator, average
from fedforget.algorithm.plan import ServerOptimizer
from fedforget.algorithm.ports import State, TrainReply
from fedforget.errors import TrainingFailed
from tests.helpers import IDS, comparable, reference_block

FLOATS = [np.float16, np.float32, np.float64]
CLIENTS = (3, "a", 1)


def reply(client: Any, values: Any, dtype: Any = np.float32, **others: Any) -> TrainReply:
    return TrainReply(client, {"w": np.array(values, dtype), **others})


def random_replies(seed: int, clients: Any = CLIENTS, dtype: Any = np.float32) -> list[TrainReply]:
    generator = np.random.default_rng(seed)
    return [
        TrainReply(
            client,
            {"w": generator.normal(size=(2, 3)).astype(dtype), "b": generator.normal(size=3).astype(dtype)},
        )
        for client in clients
    ]


def test_a_client_counts_as_often_as_it_was_drawn():
    replies = [reply("a", [1.0, 8.0]), reply(3, [4.0, 0.0])]
    assert average(["a", 3, "a", "a"], replies)["w"].tolist() == [1.75, 6.0]
    assert average([3, "a"], replies)["w"].tolist() == [2.5, 4.0]
    assert average([3, 3], replies)["w"].tolist() == [4.0, 0.0]  # who was not drawn counts for nothing


@given(st.lists(st.sampled_from(IDS), min_size=1, max_size=9), st.randoms(use_true_random=False), st.integers(0, 99))
def test_neither_the_order_of_replies_nor_that_of_slots_matters(slots, shuffler, seed):
    """In float64 nothing is rounded away: with sums in order of arrival or of slots the last bits would differ."""
    replies = random_replies(seed, dict.fromkeys(slots), np.float64)
    plain = comparable(State(average(slots, replies)))
    shuffler.shuffle(replies)
    assert comparable(State(average(slots, replies))) == plain
    shuffler.shuffle(slots)
    assert comparable(State(average(slots, replies))) == plain


def test_order_of_arrival_would_matter():
    """The three models of this file's first seed, summed in two orders in float64: not the same bits."""
    for seed in range(100):
        a, b, c = (each.model["w"].astype(np.float64) / 3 for each in random_replies(seed, dtype=np.float64))
        if (a + b + c).tobytes() != (c + b + a).tobytes():
            return
    pytest.fail("the test above could not have failed")


@given(st.lists(st.sampled_from(IDS), min_size=1, max_size=9), st.integers(0, 99))
def test_the_mean_is_the_exact_one_rounded(slots, seed):
    """float32 in, so that the sum of up to nine is exact in float64 up to its own last bit."""
    replies = random_replies(seed, dict.fromkeys(slots))
    models = {each.client: each.model for each in replies}
    mean = average(slots, replies)
    for name in ("w", "b"):
        exact = [
            float(
                sum((Fraction(float(models[client][name].flat[place])) for client in slots), Fraction(0)) / len(slots)
            )
            for place in range(mean[name].size)
        ]
        expected = np.array(exact, np.float64).astype(np.float32)
        assert np.abs(mean[name].ravel() - expected).max() <= np.spacing(np.abs(expected)).max()


@pytest.mark.parametrize("dtype", FLOATS)
@given(slots=st.lists(st.sampled_from(IDS), min_size=1, max_size=8), seed=st.integers(0, 999))
def test_the_mean_of_identical_models_is_that_model(dtype, slots, seed):
    """Exactly for float16 and float32. 3x/3 need not be x in float64, so there it may be off by some last bits."""
    (one,) = random_replies(seed, [0], dtype)
    replies = [TrainReply(client, one.model) for client in dict.fromkeys(slots)]
    for name, mean in average(slots, replies).items():
        ulps = len(slots) if dtype == np.float64 else 0
        assert np.all(np.abs(mean - one.model[name]) <= ulps * np.spacing(np.abs(one.model[name])))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("settings", [ServerOptimizer(), ServerOptimizer("fedadam")], ids=lambda s: s.name)
def test_the_type_is_kept(dtype, settings):
    before = State(random_replies(1, [0], dtype)[0].model)
    after = aggregator(settings, frozenset({"w", "b"}))(before, CLIENTS, random_replies(2, dtype=dtype))
    assert {name: array.dtype for name, array in after.model.items()} == {"w": dtype, "b": dtype}
    assert {name: array.shape for name, array in after.model.items()} == {"w": (2, 3), "b": (3,)}


def test_sums_do_not_overflow_or_drown_in_a_small_type():
    many = [reply(client, [60000.0, 1.0], np.float16) for client in range(100)]
    assert average(range(100), many)["w"].tolist() == [60000.0, 1.0]


def test_integer_buffers_that_agree_are_kept_and_others_refused():
    seen = np.array(4, np.int64)
    replies = [reply(client, [1.0], seen=seen) for client in CLIENTS]
    kept = average(CLIENTS, replies)["seen"]
    assert (kept.dtype, kept.shape, int(kept)) == (np.int64, (), 4)
    replies[1] = reply("a", [1.0], seen=np.array(5, np.int64))
    with pytest.raises(TrainingFailed, match="'seen'"):
        average(CLIENTS, replies)
    assert int(average([3, 1], replies)["seen"]) == 4  # a reply that was not asked for has no say


def test_boolean_buffers_are_not_averaged():
    replies = [reply(client, [1.0], mask=np.array([True, False])) for client in CLIENTS]
    assert average(CLIENTS, replies)["mask"].dtype == bool


@pytest.mark.parametrize("missing", CLIENTS)
def test_a_missing_reply_names_the_client(missing):
    replies = [each for each in random_replies(0) if each.client != missing]
    for aggregate in (TakeAverage(), FedAdam(ServerOptimizer("fedadam"), frozenset({"w"}))):
        with pytest.raises(TrainingFailed, match=rf"client {missing} did not answer"):
            aggregate(State(random_replies(1, [0])[0].model), CLIENTS, replies)


# -------------------------------------------------------------------------------------------------------------- FedAdam


def fedadam_by_hand(models: list[float], settings: ServerOptimizer, start: float) -> list[float]:
    """Reddi et al., Algorithm 2, one weight: m and v start at 0, no bias correction."""
    x, m, v, path = start, 0.0, 0.0, []
    for mean in models:
        delta = mean - x
        m = settings.beta1 * m + (1 - settings.beta1) * delta
        v = settings.beta2 * v + (1 - settings.beta2) * delta**2
        x += settings.lr * m / (v**0.5 + settings.tau)
        path.append(x)
    return path


def test_fedadam_is_its_formula():
    settings = ServerOptimizer("fedadam", lr=0.3, beta1=0.8, beta2=0.95, tau=0.01)
    means, path = [1.0, -2.0, 0.5, 4.0], []
    state = State({"w": np.array([0.25]), "stat": np.array([7.0])})
    for mean in means:
        answers = [
            TrainReply(client, {"w": np.array([mean + shift]), "stat": np.array([mean])})
            for client, shift in ((1, -1.0), (3, 1.0))
        ]
        state = FedAdam(settings, frozenset({"w"}))(state, [3, 1], answers)
        path.append(float(state.model["w"][0]))
        assert state.model["stat"].tolist() == [mean]  # a buffer is averaged, not stepped
    assert path == pytest.approx(fedadam_by_hand(means, settings, 0.25), rel=1e-14)
    assert set(state.optimizer) == {"m/w", "v/w"}
    assert all(moment.dtype == np.float64 for moment in state.optimizer.values())


def test_fedadam_without_its_moments_diverges():
    """So the moments are part of the state, and are rewound with it."""
    aggregate = FedAdam(ServerOptimizer("fedadam"), frozenset({"w"}))
    first = aggregate(State({"w": np.zeros(1)}), [1], [TrainReply(1, {"w": np.ones(1)})])
    forgetful = aggregate(State(first.model), [1], [TrainReply(1, {"w": -np.ones(1)})])
    proper = aggregate(first, [1], [TrainReply(1, {"w": -np.ones(1)})])
    assert proper.model["w"] != forgetful.model["w"]


def test_aggregation_does_not_change_its_arguments():
    state, replies = State(random_replies(1, [0])[0].model), random_replies(2)
    before = [comparable(state), *(comparable(State(each.model)) for each in replies)]
    for settings in (ServerOptimizer(), ServerOptimizer("fedadam")):
        aggregator(settings, frozenset({"w", "b"}))(state, CLIENTS, replies)
    assert [comparable(state), *(comparable(State(each.model)) for each in replies)] == before


def test_the_plan_chooses_the_aggregator():
    assert isinstance(aggregator(ServerOptimizer(), frozenset()), TakeAverage)
    assert isinstance(aggregator(ServerOptimizer("fedadam"), frozenset()), FedAdam)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_run_in_the_order_of_ids(dtype: Any) -> None:
    """The average is bit for bit the sum over ascending blocks in float64, rounded once."""
    replies = random_replies(5, IDS, dtype)
    total = np.zeros((2, 3))
    for each in sorted(replies, key=lambda answer: reference_block(answer.client)):
        total += each.model["w"].astype(np.float64)
    assert average(IDS, replies)["w"].tobytes() == (total / len(IDS)).astype(dtype).tobytes()


@pytest.mark.parametrize("size", [0, 1, 2**15 - 1, 2**15, 2**15 + 1, 70_001])
def test_large_tensors_are_summed_piece_by_piece_to_the_same_bits(size: int) -> None:
    models = [np.random.default_rng(seed).normal(size=(size, 1)).astype(np.float32) for seed in range(3)]
    replies = [TrainReply(client, {"w": model}) for client, model in enumerate(models)]
    total = 2 * models[0].astype(np.float64) + models[1] + models[2].astype(np.float64)
    found = average([0, 2, 0, 1], replies)["w"]
    assert found.shape == (size, 1)
    assert found.tobytes() == (total / 4).astype(np.float32).tobytes()


def test_an_average_is_a_copy() -> None:
    """What replies point to may be used again for the next round."""
    model = {"w": np.ones(3), "steps": np.array(4)}
    found = average([0], [TrainReply(0, model)])
    model["w"][:], model["steps"][...] = 7, 9
    assert (found["w"].tolist(), int(found["steps"])) == ([1, 1, 1], 4)
