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

    def detectable(self, points: int) -> float:
        """The smallest deviation that a family of so many points would flag.

        It solves m·tail(d) = the false-alarm rate for d.
        """
        share = math.log(2 * points / FALSE_ALARM)
        linear = share * self.largest / 3
        return (linear + math.sqrt(linear**2 + 2 * self.count * share * self.variance)) / self.count

    def can_fail(self, points: int) -> bool:
        """Whether any mean that is possible would be flagged: with few values none is far enough away."""
        return self.detectable(points) < max(self.expected, self.largest - self.expected)


@dataclass(frozen=True, slots=True)
class Power:
    """What the test of some points can catch: relative errors that it flags at the best, median and worst of them."""

    points: int
    testable: int
    best: float | None
    median: float | None
    worst: float | None
    largest_relative_error: float  # measured, of the points that can fail


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a family.

    ``points``: those that can fail; only they are tested, and only they count as agreement. ``untestable``: those that
    no possible mean would make fail. ``adjusted``: the smallest adjusted bound, and ``worst`` the point that has it.
    """

    points: int
    adjusted: float
    worst: str
    largest_relative_error: float
    untestable: int = 0
    largest_untestable_error: float = 0.0
    missing: tuple[str, ...] = ()  # cells whose rows lack their law: to be computed again

    @property
    def agrees(self) -> bool:
        return self.adjusted > FALSE_ALARM


def testable(points: Sequence[Point]) -> list[Point]:
    """Those that can fail in the family. What a point could show does not depend on what it did show."""
    chosen = list(points)
    while True:
        kept = [point for point in chosen if point.can_fail(len(chosen))]
        if len(kept) == len(chosen):
            return kept
        chosen = kept


def judge(points: Sequence[Point], missing: Sequence[str] = ()) -> Verdict:
    """Compare all points with their laws. Says "disagrees" by mistake with probability at most ``FALSE_ALARM``."""
    chosen = testable(points)
    kept = set(map(id, chosen))
    others = [point for point in points if id(point) not in kept]
    worst = min(chosen, key=lambda point: point.tail, default=None)
    return Verdict(
        len(chosen), 1.0 if worst is None else min(1.0, len(chosen) * worst.tail), "" if worst is None else worst.label,
        _largest_error(chosen), len(others), _largest_error(others), tuple(missing),
    )  # fmt: skip


def _largest_error(points: Sequence[Point]) -> float:
    return max((abs(p.mean - p.expected) / p.expected for p in points if p.expected), default=0.0)


def power(points: Sequence[Point], family: int) -> Power:
    """What the test of ``points`` can catch as a part of a family of so many."""
    chosen = [point for point in points if point.can_fail(family) and point.expected]
    caught = sorted(point.detectable(family) / point.expected for point in chosen)
    if not caught:
        return Power(len(points), 0, None, None, None, 0.0)
    median = float(np.median(caught))
    return Power(len(points), len(chosen), caught[0], median, caught[-1], _largest_error(chosen))


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
