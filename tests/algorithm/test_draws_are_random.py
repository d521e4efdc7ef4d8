"""Draws are uniform and independent, by chi-square over fixed sequences of seeds.

Each table raises a false alarm with probability 1e-6, over the choice of the seeds; there are some twenty, so a right
generator would have failed this file with probability 2e-5 when the seeds were chosen. They never change, so neither
does the result. Every kind of table is shown to catch a wrong variant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedforget.algorithm.draws import (
    Address,
    PrfPriorities,
    Priorities,
    draw_batch_without_replacement,
    draw_clients_with_replacement,
)
from fedforget.algorithm.ids import IdSet
from tests.helpers import chi_square_tail, numbered_seed

FALSE_ALARM = 1e-6
DRAWS = 4000  # of each table

NUMBERS = IdSet(range(5))
MIXED = IdSet([0, 2**63 - 1, "a", "03", "٣"])
WORLDS = pytest.mark.parametrize("ids", [NUMBERS, MIXED], ids=["numbers", "mixed"])


def slot(priorities: Priorities, roster: IdSet, round_: int = 1, index: int = 0) -> Hashable:
    return draw_clients_with_replacement(priorities, roster, round_, index + 1)[index]


def batch(
    priorities: Priorities, samples: IdSet, *, client: int | str = 3, round_: int = 1, step: int = 0, size: int = 2
) -> Hashable:
    places = draw_batch_without_replacement(priorities, client, samples, round_, step, size)
    return tuple(samples.ids[place] for place in places)


def subsets(ids: IdSet, size: int = 2) -> list[Any]:
    return list(combinations(ids.ids, size))


def tail(draw: Callable[[bytes], Hashable], outcomes: Sequence[Hashable], first: int = 0) -> float:
    """How unlikely the table of a draw over many seeds is if all outcomes are equally likely."""
    counts = Counter(draw(numbered_seed(first + number)) for number in range(DRAWS))
    assert counts.keys() <= set(outcomes)
    return chi_square_tail([counts[outcome] for outcome in outcomes])


class FewBits:
    """Priorities of 3 bits, where the first id wins a tie: not uniform."""

    def __init__(self, seed: bytes) -> None:
        self._real = PrfPriorities(seed)

    def __call__(self, address: Address, ids: IdSet) -> NDArray[np.uint64]:
        coarse = self._real(address, ids) >> np.uint64(61)
        coarse[:, 1] = np.arange(len(ids))
        return coarse

    def stream(self, address: Address) -> bytes:
        return self._real.stream(address)


class Blind(PrfPriorities):
    """Addresses that lack a part: draws that should be independent are the same."""

    lacks = ""

    def __call__(self, address: Address, ids: IdSet) -> NDArray[np.uint64]:
        without: dict[str, Any] = {self.lacks: bytes(16) if self.lacks == "client" else 1}
        return super().__call__(replace(address, **without), ids)


def blind(part: str) -> Callable[[bytes], Priorities]:
    return type("BlindTo" + part, (Blind,), {"lacks": part})


# ------------------------------------------------------------------------------------------------------------- uniform


@WORLDS
def test_slots_are_uniform(ids: IdSet) -> None:
    assert tail(lambda seed: slot(PrfPriorities(seed), ids), ids.ids) > FALSE_ALARM
    assert tail(lambda seed: slot(FewBits(seed), ids), ids.ids) < FALSE_ALARM


@WORLDS
@pytest.mark.parametrize("size", [1, 2, 4])
def test_batches_are_uniform_over_subsets(ids: IdSet, size: int) -> None:
    cells = subsets(ids, size)
    assert tail(lambda seed: batch(PrfPriorities(seed), ids, size=size), cells, 10**6) > FALSE_ALARM
    assert tail(lambda seed: batch(FewBits(seed), ids, size=size), cells, 10**6) < FALSE_ALARM


def test_addresses_of_one_seed_are_as_good_as_many_seeds() -> None:
    """One run uses one seed and many addresses; its slots must be uniform along the rounds."""
    priorities = PrfPriorities(numbered_seed(1))
    counts = Counter(
        client for round_ in range(1, 301) for client in draw_clients_with_replacement(priorities, NUMBERS, round_, 5)
    )
    assert chi_square_tail([counts[client] for client in NUMBERS]) > FALSE_ALARM
    stuck = Counter(slot(blind("round")(numbered_seed(1)), NUMBERS, round_) for round_ in range(1, 301))
    assert chi_square_tail([stuck[client] for client in NUMBERS]) < FALSE_ALARM


# --------------------------------------------------------------------------------------------------------- independent


@pytest.mark.parametrize(
    ("one", "other", "lacks"),
    [
        ({"round_": 1, "index": 0}, {"round_": 1, "index": 1}, "index"),
        ({"round_": 1, "index": 0}, {"round_": 2, "index": 0}, "round"),
    ],
    ids=["slots of a round", "consecutive rounds"],
)
def test_pairs_of_slots_are_independent(one: dict[str, int], other: dict[str, int], lacks: str) -> None:
    def pair(priorities: Priorities) -> Hashable:
        return slot(priorities, MIXED, **one), slot(priorities, MIXED, **other)

    cells = list(product(MIXED.ids, repeat=2))
    assert tail(lambda seed: pair(PrfPriorities(seed)), cells, 2 * 10**6) > FALSE_ALARM
    assert tail(lambda seed: pair(blind(lacks)(seed)), cells, 2 * 10**6) < FALSE_ALARM


FOUR = IdSet([0, 1, "a", "b"])


@pytest.mark.parametrize(
    ("one", "other", "lacks"),
    [
        ({"step": 0}, {"step": 1}, "index"),
        ({"round_": 1}, {"round_": 2}, "round"),
        ({"client": 3}, {"client": 4}, "client"),
        ({"client": 3}, {"client": "03"}, "client"),
    ],
    ids=["steps", "rounds", "clients", "a number and a word"],
)
def test_batches_are_independent(one: dict[str, Any], other: dict[str, Any], lacks: str) -> None:
    def pair(priorities: Priorities) -> Hashable:
        return batch(priorities, FOUR, **one), batch(priorities, FOUR, **other)

    cells = list(product(subsets(FOUR), repeat=2))
    assert tail(lambda seed: pair(PrfPriorities(seed)), cells, 3 * 10**6) > FALSE_ALARM
    assert tail(lambda seed: pair(blind(lacks)(seed)), cells, 3 * 10**6) < FALSE_ALARM


def test_a_slot_and_a_batch_of_the_same_seed_are_independent() -> None:
    """The paper's flaw begins where "was used" says something about "was drawn"."""

    def pair(priorities: Priorities) -> Hashable:
        return slot(priorities, FOUR), batch(priorities, FOUR, client=0, size=1)

    class OnePurpose(PrfPriorities):
        def __call__(self, address: Address, ids: IdSet) -> NDArray[np.uint64]:
            return super().__call__(Address(address.purpose.SLOT, address.round, address.index), ids)

    cells = list(product(FOUR.ids, subsets(FOUR, 1)))
    assert tail(lambda seed: pair(PrfPriorities(seed)), cells, 4 * 10**6) > FALSE_ALARM
    assert tail(lambda seed: pair(OnePurpose(seed)), cells, 4 * 10**6) < FALSE_ALARM
