"""Measured means against exact expectations, all points of a family together, with one stated false-alarm rate.

Times of disjoint targets of one training are negatively associated: the slots of a round are a multinomial draw, the
batches are independent, and a time never falls when a slot or batch holds its target. Sums of such variables obey
Bernstein's inequality as sums of independent ones do, and trainings with different seeds are independent. So

    P(|mean − μ| ≥ d) ≤ 2·exp(−n·d² / (2·(σ² + T·d/3)))

holds for n targets with exact mean μ, exact variance σ² and values in [0, T]; no normal approximation is needed. With
m points, Bonferroni's m·p keeps the probability of any false alarm below the stated rate, whatever the points share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

FALSE_ALARM = 0.01  # for a whole family of points, if every one follows its law


@dataclass(frozen=True, slots=True)
class Point:
    """One measured mean: ``count`` values in [0, ``largest``] with an exact mean and variance."""

    label: str
    count: int
    mean: float
    expected: float
    variance: float
    largest: float

    @property
    def tail(self) -> float:
        """A bound on the probability of a mean at least this far from its expectation."""
        away = abs(self.mean - self.expected)
        if away <= 1e-9 * max(1.0, self.expected):
            return 1.0
        scale = 2 * (self.variance + self.largest * away / 3)
        return min(1.0, 2 * math.exp(-self.count * away**2 / scale)) if scale else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for a family: the number of points, the smallest adjusted bound, and its point."""

    points: int
    adjusted: float
    worst: str
    largest_relative_error: float

    @property
    def agrees(self) -> bool:
        return self.adjusted > FALSE_ALARM


def judge(points: Sequence[Point]) -> Verdict:
    """Compare all points with their laws. The probability of a false "disagrees" is at most ``FALSE_ALARM``."""
    if not points:
        return Verdict(0, 1.0, "", 0.0)
    worst = min(points, key=lambda point: point.tail)
    errors = [abs(point.mean - point.expected) / point.expected for point in points if point.expected]
    return Verdict(len(points), min(1.0, len(points) * worst.tail), worst.label, max(errors, default=0.0))


def law_of_time(change: float, rounds: int, local_steps: int) -> tuple[float, float]:
    """Mean and variance of the steps from the first changed round on; each round changes with this probability."""
    first = np.arange(1, rounds + 1)
    chance = change * np.exp((first - 1) * math.log1p(-change)) if change < 1 else (first == 1).astype(float)
    steps = local_steps * (rounds - first + 1.0)
    mean = float(chance @ steps)
    return mean, max(0.0, float(chance @ steps**2) - mean**2)


def pooled(label: str, parts: Iterable[tuple[int, float, float, float, float]]) -> Point:
    """One point from the trainings of several seeds: (count, mean, expected, variance, largest) of each."""
    rows = np.array(list(parts), float)
    counts = rows[:, 0]
    mean, expected, variance = (float(counts @ rows[:, column] / counts.sum()) for column in (1, 2, 3))
    return Point(label, int(counts.sum()), mean, expected, variance, float(rows[:, 4].max()))
