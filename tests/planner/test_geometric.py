"""The first changed round, against fractions and against the law written out round by round."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedforget.algorithm.plan import Plan
from fedforget.planner.geometric import change_within, expected_rounds_redone

CHANGES = st.fractions(0, 1, max_denominator=10**6) | st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 10**15)])


def written_out(change: Fraction, rounds: int, every: int) -> Fraction:
    """Each first changed round with its probability, and the rounds from the model that a plan keeps before it."""
    plan, total = Plan(1, 1, 1, max(1, rounds), keep=every), Fraction(0)
    for first in range(1, rounds + 1):
        kept = max(r for r in range(first) if plan.is_kept(r, rounds))
        total += (1 - change) ** (first - 1) * change * (rounds - kept)
    return total


@given(CHANGES, st.integers(0, 60), st.integers(1, 70))
def test_rounds_redone(change: Fraction, rounds: int, every: int) -> None:
    told = expected_rounds_redone(float(change), rounds, every)
    exact = written_out(Fraction(float(change)), rounds, every)
    assert math.isclose(told, exact, rel_tol=1e-12)


@given(CHANGES, st.integers(0, 10**6))
def test_change_within(change: Fraction, rounds: int) -> None:
    told = float(change_within(float(change), rounds))
    assert 0 <= told <= 1
    if rounds <= 100:
        assert math.isclose(told, 1 - (1 - Fraction(float(change))) ** rounds, rel_tol=1e-12)


def test_wrong_variants_are_told_apart() -> None:
    change, rounds, every = Fraction(1, 7), 20, 6
    told = expected_rounds_redone(float(change), rounds, every)
    rounds_only = expected_rounds_redone(float(change), rounds)
    assert not math.isclose(told, rounds_only, rel_tol=1e-3)  # as if every model were kept
    whole_blocks = every * sum(1 - (1 - change) ** end for end in (6, 12, 18))  # the last, shorter block left out
    assert not math.isclose(told, whole_blocks, rel_tol=1e-3)


def test_arrays_are_the_same_one_by_one() -> None:
    changes = np.array([0.0, 1e-12, 0.3, 1.0])
    assert expected_rounds_redone(changes, 13, 4).tolist() == [float(expected_rounds_redone(c, 13, 4)) for c in changes]
    assert change_within(0.2, np.array([0.0, 1.0, 5.0])).tolist() == [float(change_within(0.2, n)) for n in (0, 1, 5)]
    assert change_within(1.0, np.array([0.0, 1.0])).tolist() == [0.0, 1.0]
