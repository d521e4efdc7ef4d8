"""A mini-batch is a function of its samples alone, whether or not the client's samples fit one tensor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import LocalRound
from fedforget.errors import InvalidInput
from fedforget.training.sample_cache import SampleCache, SharedSampleCache, as_tensor

Pair = tuple[NDArray[Any], NDArray[Any]]


class Source:
    """A source of samples that records every read."""

    def __init__(self, samples: Mapping[Id, Pair]) -> None:
        self.samples = samples
        self.read: list[Id] = []

    def sample(self, client: Id, sample: Id) -> Pair:
        self.read.append(sample)
        return self.samples[sample]


def pair(value: float, dtype: Any = np.float32, shape: tuple[int, ...] = (3,)) -> Pair:
    return np.full(shape, value, dtype) + np.arange(shape[0]).astype(dtype), np.asarray(int(value) % 3)


def bits(tensors: tuple[torch.Tensor, torch.Tensor]) -> tuple[Any, ...]:
    return tuple((t.dtype, t.shape, t.contiguous().view(torch.uint8).numpy().tobytes()) for t in tensors)


def work(present: Sequence[Id], *batches: Sequence[Id], client: Id = "a") -> LocalRound:
    """One local round with these mini-batches, of a client whose samples are ``present``."""
    rows = np.array([[present.index(sample) for sample in batch] for batch in batches], np.intp)
    return LocalRound(1, client, None, tuple(present), rows, (b"",) * len(batches))


@given(
    types=st.lists(st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8]), min_size=2, max_size=6),
    floats=st.sampled_from([torch.float32, torch.float64]),
    data=st.data(),
)
def test_mini_batch_is_independent_of_the_other_samples_of_its_client(
    types: list[Any], floats: torch.dtype, data: Any
) -> None:
    samples: dict[Id, Pair] = {place: pair(place + 0.1, kind) for place, kind in enumerate(types)}
    batch = tuple(sorted(data.draw(st.sets(st.sampled_from(sorted(samples)), min_size=1))))
    other = tuple(sorted(data.draw(st.sets(st.sampled_from(sorted(samples)), min_size=1))))
    expected = bits(
        (
            torch.stack([as_tensor(samples[each][0], floats) for each in batch]),
            torch.stack([as_tensor(samples[each][1]) for each in batch]),
        )
    )
    for present in (tuple(samples), batch):
        one = work(present, batch)
        assert bits(next(SampleCache(Source(samples), floats).batches(one))) == expected
        for example in (work(other, other), work(batch, batch)):
            shared = SharedSampleCache(Source(samples), floats, {"b": 2, "a": len(present)}, example)
            assert bits(next(shared.batches(one))) == expected
            assert bits(next(shared.batches(one))) == expected


@pytest.mark.parametrize(("features", "at_once"), [(16, True), (32, True), (15, False), (2**18, False)])
def test_mini_batches_are_aligned_and_contiguous(features: int, at_once: bool) -> None:
    """At another alignment a matrix product may sum in another order, so a split round would have other bits."""
    samples: dict[Id, Pair] = {place: pair(place, shape=(features,)) for place in range(8)}
    batches = [(0, 5), (1, 3), (5, 7), (2, 4), (0, 6)]
    found = list(SampleCache(Source(samples), torch.float32).batches(work(range(8), *batches)))
    for (x, y), batch in zip(found, batches, strict=True):
        assert x.data_ptr() % 64 == 0
        assert x.is_contiguous()
        assert bits((x, y)) == bits(
            (torch.stack([as_tensor(samples[each][0]) for each in batch]), torch.tensor([each % 3 for each in batch]))
        )
    assert (len({x.untyped_storage().data_ptr() for x, _ in found}) == 1) is at_once


def test_cached_client_reads_nothing_and_an_erased_sample_is_not_read_again() -> None:
    source = Source({place: pair(place) for place in range(4)})
    cache = SampleCache(source, torch.float32)
    for _ in range(3):
        next(cache.batches(work((0, 1, 2, 3), (1, 3))))
    assert source.read == [0, 1, 2, 3]
    source.read.clear()
    x, _ = next(cache.batches(work((0, 2, 3), (2, 3))))
    assert x[:, 0].tolist() == [2.0, 3.0]
    assert source.read == [0, 2, 3]


def test_samples_of_different_shapes_are_refused_only_within_one_mini_batch() -> None:
    cache = SampleCache(Source({0: pair(0), 1: pair(1), 2: pair(2, shape=(4,))}), torch.float32)
    x, _ = next(cache.batches(work((0, 1, 2), (0, 1))))
    assert x.shape == (2, 3)
    with pytest.raises(InvalidInput, match="client a differ in shape"):
        next(cache.batches(work((0, 1, 2), (1, 2))))


def test_rows_filled_by_one_process_are_read_by_the_others() -> None:
    source = Source({place: pair(place) for place in range(4)})
    shared = SharedSampleCache(source, torch.float32, {"a": 4}, work((0,), (0,)))
    source.read.clear()
    child = os.fork()
    if not child:
        next(shared.batches(work((0, 1, 2, 3), (1, 3))))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    later = replace(work((0, 1, 2, 3), (1, 3)), samples=())  # the pool sends no ids to a worker that knows the client
    x, y = next(shared.batches(later))
    assert (x[:, 0].tolist(), y.tolist()) == ([1.0, 3.0], [1, 0])
    assert source.read == []


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 3)])
def test_client_whose_samples_have_another_shape_has_no_shared_rows(shape: tuple[int, ...]) -> None:
    source = Source({0: pair(0), 1: pair(1, shape=shape), 2: pair(2, shape=shape)})
    shared = SharedSampleCache(source, torch.float32, {"a": 1, "b": 2}, work((0,), (0,)))
    x, _ = next(shared.batches(work((1, 2), (1, 2), client="b")))
    assert x.shape == (2, *shape)
    assert np.array_equal(x.numpy(), np.stack([pair(1, shape=shape)[0], pair(2, shape=shape)[0]]))
    assert shared._rows(work((1, 2), (1, 2), client="b")) is None
