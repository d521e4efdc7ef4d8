"""The law of one round: how likely it is that a round, or its first steps, change when clients lose samples.

The symbols are those of ``planner.costs``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from fedforget.planner.geometric import Floats, change_within, expected_rounds_redone

_NEGLIGIBLE = 1e-30  # relative to the largest probability: far below the rounding error
_UNDERFLOW = 750.0  # exp of minus this is zero
_TABLE_CELLS = 2**17
_FEW = 1000  # up to this count, binomial coefficients are computed exactly


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What one client withdraws: ``lost`` (w_j) of its ``samples`` (N_j); ``None`` if the whole client leaves."""

    samples: int
    lost: int | None

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise ValueError(f"a client cannot have {self.samples} samples")
        if self.lost is not None and not 0 <= self.lost <= self.samples:
            raise ValueError(f"a client with {self.samples} samples cannot lose {self.lost}")


@dataclass(frozen=True, slots=True)
class Training:
    """M, K, b, E and R."""

    clients: int
    clients_per_round: int
    batch_size: int
    local_steps: int
    rounds: int

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name == "rounds" else 1
            if getattr(self, field.name) < least:
                raise ValueError(f"{field.name} must be at least {least}, not {getattr(self, field.name)}")

    def check(self, withdrawals: Sequence[Withdrawal]) -> None:
        if len(withdrawals) > self.clients:
            raise ValueError(f"{len(withdrawals)} clients lose samples, but there are only {self.clients}")


def client_change(clients: int, clients_per_round: int | Floats) -> Any:
    """Return p_c = 1 − (1 − 1/M)^K, the probability that a round changes if one client leaves. Accepts arrays.

    >>> round(float(client_change(100, 5)), 6)
    0.04901
    """
    return change_within(1 / clients, clients_per_round)


def round_changes(withdrawals: Sequence[Withdrawal], training: Training) -> tuple[float, float]:
    """Return Σ (1 − q_i) over a round's steps, and 1 − Q. For one withdrawal 1 − q_i = p_c·a_i, a geometric sum."""
    if len(withdrawals) == 1:
        held = -math.expm1(_log_miss(withdrawals[0].samples, withdrawals[0].lost, training.batch_size))
        drawn = float(client_change(training.clients, training.clients_per_round))
        steps = training.local_steps
        return drawn * float(expected_rounds_redone(held, steps)), drawn * float(change_within(held, steps))
    change_sum, change = 0.0, 0.0
    for changes in _step_changes(withdrawals, training):
        change_sum += float(changes.sum())
        change = min(float(changes[-1]), 1.0)
    return change_sum, change


def _step_changes(withdrawals: Sequence[Withdrawal], training: Training) -> Iterator[Floats]:
    """Yield 1 − q_i for i = 1 to E, in blocks; clients with the same β form one group."""
    groups = Counter(_log_miss(samples, lost, training.batch_size) for samples, lost in map(astuple, withdrawals))
    certain = groups.pop(-math.inf, 0)
    groups.pop(0.0, None)
    width = max(1, _TABLE_CELLS // (1 + groups.total()))
    for start in range(1, training.local_steps + 1, width):
        steps = np.arange(start, min(start + width, training.local_steps + 1), dtype=np.float64)
        law = np.ones((1, len(steps)))  # of B_i without the clients where β = 1: a row per value, a column per i
        for log_miss, count in groups.items():
            law = _convolved(law, _binomial(count, log_miss * steps))
        affected = np.arange(certain, certain + len(law))
        with np.errstate(divide="ignore"):  # log 0 if every client is affected
            drawn = -np.expm1(training.clients_per_round * np.log1p(-affected / training.clients))
        yield drawn @ law


def _log_miss(samples: int, lost: int | None, batch_size: int) -> float:
    """Return log(1 − β_j). The ratio of binomials is a product of min(b_j, w_j) factors."""
    size = min(batch_size, samples)
    if lost is None or (lost > 0 and size + lost > samples):
        return -math.inf
    fewer, more = sorted((size, lost))
    if fewer * more > _UNDERFLOW * samples:
        return -math.inf
    return float(np.log1p(-more / (samples - np.arange(fewer, dtype=np.float64))).sum())


def _binomial(count: int, log_miss: Floats) -> Floats:
    """Return the law of the number of hits among ``count``: a row per number, a column per ``log_miss``."""
    hit = -np.expm1(log_miss)
    if count == 1:
        return np.stack([np.exp(log_miss), hit])
    hits = np.arange(count + 1)[:, np.newaxis]
    law = np.exp(_log_ways(count)[:, np.newaxis] + hits * np.log(hit) + (count - hits) * log_miss)
    return _trimmed(law / law.sum(axis=0))


def _log_ways(count: int) -> Floats:
    """Return log C(count, k) for each k. Large ones share an error that normalising the law cancels."""
    if count <= _FEW:
        return np.array([math.log(math.comb(count, chosen)) for chosen in range(count + 1)])
    factorials = np.array([math.lgamma(number + 1) for number in range(count + 1)])
    return np.asarray(factorials[-1] - factorials - factorials[::-1])


def _convolved(law: Floats, other: Floats) -> Floats:
    """Return the law of the sum, column by column."""
    short, long = sorted((law, other), key=len)
    total = np.zeros((len(short) + len(long) - 1, long.shape[1]))
    for shift, row in enumerate(short):
        total[shift : shift + len(long)] += row * long
    return _trimmed(total)


def _trimmed(law: Floats) -> Floats:
    """Drop the largest values, whose probability is negligible."""
    rows = np.flatnonzero((law[1:] > _NEGLIGIBLE * law[1:].max(axis=0)).any(axis=1))
    return law[: rows[-1] + 2]


def exact_miss(withdrawal: Withdrawal, batch_size: int) -> Fraction:
    """Return 1 − β_j."""
    if withdrawal.lost is None:
        return Fraction(0)
    size = min(batch_size, withdrawal.samples)
    return Fraction(math.comb(withdrawal.samples - withdrawal.lost, size), math.comb(withdrawal.samples, size))


def exact_stay(misses: Sequence[Fraction], training: Training) -> Fraction:
    """Return E[(1 − B/M)^K] for clients whose draws miss the lost samples with these probabilities."""
    law = [Fraction(1)]
    for miss in misses:
        pairs = zip([*law, Fraction(0)], [Fraction(0), *law], strict=True)
        law = [same * miss + fewer * (1 - miss) for same, fewer in pairs]
    untouched = (Fraction(training.clients - affected, training.clients) for affected in range(len(law)))
    weighted = (weight * rest**training.clients_per_round for weight, rest in zip(law, untouched, strict=True))
    return sum(weighted, Fraction(0))
