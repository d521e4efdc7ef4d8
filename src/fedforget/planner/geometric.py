"""The law of the first changed round: rounds are independent and identically distributed, so it is geometric.

Every function takes ``change`` = 1 − Q, the probability that one round changes, as a number or an array. None subtracts
nearly equal numbers, so small probabilities are accurate too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def change_within(change: float | Floats, rounds: int | Floats) -> Any:
    """Return 1 − Q^n, the probability that one of n rounds changes.

    >>> float(change_within(0.5, 3))
    0.875
    """
    none = np.asarray(rounds) == 0  # 0·log 0 is not a number
    return np.where(none, 0.0, _within(_log_stay(change), np.where(none, 1, rounds)))


def expected_rounds_redone(change: float | Floats, rounds: int, every: int = 1) -> Any:
    """Return the expected rounds out of n to recompute, from the last model kept before the first change.

    c is the keep interval ``every``. A round is recomputed if a round of its block of c, or of an earlier block,
    changes: Σ over blocks of length·(1 − Q^end). With c = 1 that is n − Q·g for g = (1 − Q^n)/(1 − Q);
    with c = n it is n·(1 − Q^n).

    >>> [float(expected_rounds_redone(0.5, 3, every)) for every in (1, 2, 3)]
    [2.125, 2.375, 2.625]
    """
    blocks, rest = divmod(rounds, every)
    log_stay = _log_stay(change)
    return every * _sum_within(every * log_stay, blocks) + (rest * _within(log_stay, rounds) if rest else 0.0)


def _log_stay(change: float | Floats) -> Floats:
    with np.errstate(divide="ignore"):  # minus infinity if a round surely changes
        return np.log1p(-np.minimum(np.asarray(change, np.float64), 1.0))


def _within(log_stay: Floats, rounds: int | Floats) -> Any:
    return -np.expm1(rounds * log_stay)


def _sum_within(log_stay: Floats, count: int) -> Any:
    """Return Σ_{n=1..count} (1 − Q^n), by doubling along the binary digits and adding positive numbers only."""
    total, reached = np.zeros_like(log_stay), 0
    for digit in f"{count:b}":
        if reached:
            within = _within(log_stay, reached)
            total, reached = total * (2.0 - within) + reached * within, 2 * reached
        if digit == "1":
            reached += 1
            total = total + _within(log_stay, reached)
    return total
