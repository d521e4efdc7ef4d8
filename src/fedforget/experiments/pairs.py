"""FATS against FedAvg before unlearning: paired by seed, with a 95 % interval and a verdict against the goal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedforget.experiments import accuracy
from fedforget.experiments.drawing import by
from fedforget.experiments.rows import Row
from fedforget.experiments.verdicts import FAILS, HOLDS, OPEN

GOAL = -0.01  # FATS is no worse than FedAvg by more than a point
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
         2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean of paired differences, and half of its 95 % interval by Student's t; None: one pair has no interval."""

    runs: int
    mean: float
    half: float | None

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> Difference:
        differences = [one - other for one, other in pairs]
        count = len(differences)
        if count == 1:
            return cls(1, differences[0], None)
        quantile = _T_95[min(count - 2, len(_T_95) - 1)]
        return cls(count, float(np.mean(differences)), quantile * float(np.std(differences, ddof=1)) / math.sqrt(count))

    def at_least(self, bound: float) -> bool | None:
        """Whether the true mean is at least ``bound``; None: the interval does not tell."""
        if self.half is None or self.mean - self.half < bound <= self.mean + self.half:
            return None
        return self.mean >= bound

    def words(self) -> str:
        """The interval in points."""
        if self.half is None:
            return "one run"
        return f"{100 * (self.mean - self.half):+.2f} to {100 * (self.mean + self.half):+.2f}"


@dataclass(frozen=True, slots=True)
class Before:
    """Both methods on one dataset, on the same test images, and the linear models; None: not measured."""

    source: str  # the experiment whose rows these are
    fats: float
    fedavg: float
    difference: Difference
    linear: float | None
    linear_by_fats: float | None

    @property
    def counts(self) -> bool | None:
        """Whether both methods beat the central linear model."""
        return None if self.linear is None else min(self.fats, self.fedavg) > self.linear

    @property
    def verdict(self) -> str:
        if self.counts is None:
            return f"{OPEN}: no linear model measured"
        if not self.counts:
            return "does not count: a linear model is better"
        found = self.difference.at_least(GOAL)
        if found is None:
            return f"{OPEN}: " + ("one run" if self.difference.half is None else "the interval holds the goal")
        return HOLDS if found else FAILS


def before_unlearning(rows: Sequence[Row]) -> Before | None:
    """The comparison from the rows of one dataset: those of ``accuracy`` where they have a pair, else the others.

    FRS learns as FedAvg does. None without a pair.
    """
    own = [row for row in rows if row["experiment"] == accuracy.NAME]
    summaries = [row for row in rows if row["kind"] == "summary" and row["level"] == "client"]
    for each in (own, summaries):
        values = {(row["method"], row["seed"]): row["accuracy"] for row in each}
        pairs = [(values["FATS", seed], value) for (method, seed), value in values.items()
                 if method in ("FedAvg", "FRS") and ("FATS", seed) in values]  # fmt: skip
        if pairs:
            fats, fedavg = np.mean(pairs, axis=0)
            linear, by_fats = (_mean(own, name) for name in (accuracy.LINEAR, accuracy.LINEAR_BY_FATS))
            source = each[0]["experiment"]
            return Before(source, float(fats), float(fedavg), Difference.of(pairs), linear, by_fats)
    return None


def by_dataset(rows: Sequence[Row]) -> dict[str, Before]:
    found = {dataset: before_unlearning(group) for (dataset,), group in by(rows, "dataset").items()}
    return {dataset: before for dataset, before in found.items() if before is not None}


def _mean(rows: Sequence[Row], method: str) -> float | None:
    found = [row["accuracy"] for row in rows if row["method"] == method]
    return float(np.mean(found)) if found else None
