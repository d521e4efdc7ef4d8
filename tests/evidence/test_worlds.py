"""The worlds of ``fedforget prove``, and what it says about each."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from fedforget.evidence.case import prove
from fedforget.evidence.worlds import STANDARD, prove_all


def test_standard_worlds_are_those_written_down() -> None:
    """A smaller world under the same name would prove less, and nothing else would notice."""
    written = Path(__file__).with_name("standard-worlds.txt").read_text(encoding="utf-8").splitlines()
    assert [repr(case) for case in STANDARD] == written


def test_prove_all_proves_every_world_whose_name_matches_and_counts_their_orders() -> None:
    seen: list[int] = []
    found = prove_all("everyone", seen.append)
    assert [each.name for each in found] == ["everyone", "processor: everyone, by one rewind"]
    assert seen == sorted(seen)
    assert seen[-1] == sum(each.orders for each in found) == len(set(seen)) > found[-1].orders
    assert found == prove_all("everyone")
    assert prove_all("no such world") == []


def test_proved_world_has_its_numbers_as_exact_text() -> None:
    [found] = prove_all("the paper's counterexample")
    assert found.as_dict() == {
        "name": "the paper's counterexample: a sample",
        "K": 1, "b": 1, "E": 1, "R": 1, "orders": found.orders, "histories": 3, "processor": False,
        "total_variation": "0", "change_probability": "1/4", "least_change": "1/4", "exact": True, "optimal": True,
    }  # fmt: skip
    unbounded = prove(next(case for case in STANDARD if case.name == "processor: a sample joins")).as_dict()
    assert (unbounded["least_change"], unbounded["optimal"], unbounded["processor"]) == (None, None, True)


@pytest.mark.parametrize(
    ("distance", "changes", "exact", "optimal"),
    [("0", "1/4", True, True), ("1/9", "1/4", False, True), ("0", "1/3", True, False), ("0", "1/5", True, False)],
)
def test_exact_and_optimal_follow_from_the_distance_and_the_least_change(
    distance: str, changes: str, exact: bool, optimal: bool
) -> None:
    [proved] = prove_all("the paper's counterexample")
    found = replace(proved, total_variation=Fraction(distance), change_probability=Fraction(changes))
    assert (found.exact, found.optimal) == (exact, optimal)
