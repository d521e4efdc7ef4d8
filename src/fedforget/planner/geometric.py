"""The law of the first changed round: rounds are independent and identically distributed, so it is geometric.

Everything takes 1 − Q, the probability that one round changes, as ``change``, a number or an array of them, and never
subtracts numbers that are nearly equal: probabilities keep their digits however small they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def change_within(change: float | Floats, rounds: int | Floats) -> Any:
    """1 − Q^n: one of n rounds changes.

    >>> float(change_within(0.5, 3))
    0.875
    """
    none = np.asarray(rounds) == 0  # 0·log 0 is not a number
    return np.where(none, 0.0, _within(_log_stay(change), np.where(none, 1, rounds)))


def expected_rounds_redone(change: float | Floats, rounds: int, every: int = 1) -> Any:
    """Expected rounds to recompute out of n, from the last kept model before the first change, with keep interval c.

    A round is redone if one of its block of c, or of a block before, changes: Σ over blocks of length·(1 − Q^end).
    With c = 1 that is n − Q·g for g = (1 − Q^n)/(1 − Q), with c = n it is n·(1 − Q^n).

    >>> [float(expected_rounds_redone(0.5, 3, every)) for every in (1, 2, 3)]
    [2.125, 2.375, 2.625]
    """
    blocks, rest = divmod(rounds, every)
    log_stay = _log_stay(change)
    return every * _sum_within(every * log_stay, blocks) + (rest * _within(log_stay, rounds) if rest else 0.0)


def _log_stay(change: float | Floats) -> Floats:
    with np.errstate(divide="ignore"):  # minus infinity where a round surely changes
        return np.log1p(-np.minimum(np.asarray(change, np.float64), 1.0))


def _within(log_stay: Floats, rounds: int | Floats) -> Any:
    return -np.expm1(rounds * log_stay)


def _sum_within(log_stay: Floats, count: int) -> Any:
    """Σ_{n=1..count} (1 − Q^n): the count doubles along its binary digits, and only positive numbers are added."""
    total, reached = np.zeros_like(log_stay), 0
    for digit in f"{count:b}":
        if reached:
            within = _within(log_stay, reached)
            total, reached = total * (2.0 - within) + reached * within, 2 * reached
        if digit == "1":
            reached += 1
            total = total + _within(log_stay, reached)
    return total
