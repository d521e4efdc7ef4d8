"""FATS against FedAvg before unlearning: paired by seed, with a 95 % interval and a verdict against the goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedforget.experiments import accuracy
from fedforget.experiments.differences import Difference
from fedforget.experiments.drawing import by
from fedforget.experiments.rows import Row
from fedforget.experiments.verdicts import FAILS, HOLDS, OPEN

GOAL = -0.01  # FATS is no worse than FedAvg by more than a point


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
        found = self.difference.above(GOAL)
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
