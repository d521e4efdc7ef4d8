"""Paired differences over seeds, with a 95 % interval by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ERROR_RATE = 0.05  # of one interval
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
         2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip
_GRID = 20_001  # points of the integral


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean of paired differences, and half of its 95 % interval by Student's t; None: one pair has no interval."""

    runs: int
    mean: float
    half: float | None

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Difference:
        return cls.of_values([one - other for one, other in pairs])

    @classmethod
    def of_values(cls, values: Sequence[float]) -> Difference:
        """The mean of one value per seed."""
        count, mean = len(values), float(np.mean(values))
        if count == 1:
            return cls(1, mean, None)
        spread = float(np.std(values, ddof=1))
        return cls(count, mean, _quantile(count - 1) * (0.0 if spread < 1e-12 else spread) / math.sqrt(count))  # noqa: PLR2004 (rounding)

    def above(self, bound: float) -> bool | None:
        """Whether the true mean is above ``bound``; None: the interval holds the bound, or there is none."""
        if self.half is None or abs(self.mean - bound) <= self.half + 1e-12:
            return None
        return self.mean > bound

    def below(self, bound: float) -> bool | None:
        """Whether the true mean is below ``bound``; None: the interval holds the bound, or there is none."""
        found = self.above(bound)
        return None if found is None else not found

    def chance(self, bound: float) -> float | None:
        """The probability of a mean at least this far from ``bound`` if that is the true one; None for one run."""
        if self.half is None:
            return None
        away, error = abs(self.mean - bound), self.half / _quantile(self.runs - 1)
        return two_sided(away / error, self.runs - 1) if error else float(away <= 1e-12)  # noqa: PLR2004 (rounding)

    def words(self, unit: float = 100, digits: int = 2) -> str:
        """The interval, in points unless another unit is given."""
        if self.half is None:
            return "one run"
        return f"{unit * (self.mean - self.half):+.{digits}f} to {unit * (self.mean + self.half):+.{digits}f}"

    def runs_words(self, unit: float = 100, digits: int = 2) -> str:
        """The interval and the number of runs."""
        return "one run" if self.half is None else f"{self.words(unit, digits)}, {self.runs} runs"


def _quantile(freedom: int) -> float:
    return _T_95[min(freedom, len(_T_95)) - 1]


def two_sided(t: float, freedom: int) -> float:
    """P(|T| ≥ t) for Student's t: with t = √ν·tan θ its density is a power of the cosine.

    >>> round(two_sided(2.776, 4), 3)
    0.05
    """
    start = math.atan(t / math.sqrt(freedom))

    def area(low: float) -> float:
        angles = np.linspace(low, math.pi / 2, _GRID)
        heights = np.cos(angles) ** (freedom - 1)
        return float((heights[1:] + heights[:-1]).sum() * (angles[1] - angles[0]) / 2)

    return area(start) / area(0.0)


def decided_together(chances: Sequence[float], rate: float = ERROR_RATE) -> list[bool]:
    """Which of several comparisons stay decided if the chance of any mistake is to be below ``rate`` (Holm)."""
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    found = [False] * len(chances)
    for rank, place in enumerate(order):
        if chances[place] * (len(chances) - rank) > rate:
            break
        found[place] = True
    return found
