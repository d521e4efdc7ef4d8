"""Tables of the experiments, which summarise their rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedforget.experiments.drawing import by, pooled_mean
from fedforget.experiments.family import FALSE_ALARM, Verdict, judge, pooled
from fedforget.experiments.requests import AT_ONCE
from fedforget.experiments.rows import Row


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


def family_of(rows: Sequence[Row]) -> Verdict:
    """Every measured mean of FATS that has an exact law, all together."""
    measured = [row for row in rows if row["method"] == "FATS" and row["variance"] is not None]
    keys = ("experiment", "group", "kind", "level", "M", "K", "b", "requests")
    return judge([
        pooled(", ".join(f"{name} {value}" for name, value in zip(keys, key, strict=True) if value is not None),
               [(r["count"], r["steps"], r["theory_steps"], r["variance"], r["largest"]) for r in group])
        for key, group in by(measured, *keys).items()
    ])  # fmt: skip


def verdict_words(found: Verdict) -> str:
    if not found.points:
        return "No measured time has an exact law here."
    words = "agree with" if found.agrees else f"DISAGREE with (at {found.worst})"
    return (
        f"{found.points} measured means {words} their exact expectations: smallest adjusted bound "
        f"{found.adjusted:.3g}, at a false-alarm rate of {FALSE_ALARM:g} for all of them together. "
        f"Largest relative error {found.largest_relative_error:.1%}."
    )


def seeds_table(results: Mapping[str, Sequence[Row]]) -> Table:
    """Return the seeds of the rows, by experiment and dataset."""
    lines = []
    for name, rows in results.items():
        for (dataset, scale), group in by(rows, "dataset", "scale").items():
            seeds = sorted({row["seed"] for row in group if row["seed"] is not None})
            lines.append((name, dataset, scale, len(seeds), ", ".join(map(str, seeds)) or "-"))
    return Table("Seeds", ("experiment", "dataset", "scale", "runs", "seeds"), lines)


def datasets_table(rows: Sequence[Row]) -> list[Table]:
    header = ("dataset", "", "samples", "M", "N", "K", "R", "E", "b", "ρ_C", "ρ_S", "worst ρ_S")
    cells = [
        (row["dataset"], row["kind"], row["count"], row["M"], row["N"], row["K"], row["R"], row["E"], row["b"],
         row["rho_c"], row["rho_s"], row["largest"])
        for row in sorted(rows, key=lambda row: row["dataset"])
    ]  # fmt: skip
    note = (
        "ρ at the round of the requests. The printed 60,000 of CIFAR count the test set: with the 50,000 training "
        "images N is 83, and ρ_S 0.50 for CIFAR-10 and 1.00 for CIFAR-100."
    )
    return [Table("Datasets and plans", header, cells, note)]


def efficiency_table(rows: Sequence[Row]) -> list[Table]:
    header = ("panel", "points", "FRS", "largest time", "exact", "of FRS", "at")
    cells = []
    for (group,), found in by(rows, "group").items():
        total = next(row["steps"] for row in found if row["method"] == "FRS")
        points = by([row for row in found if row["method"] == "FATS"], "M", "K", "b")
        largest = max(points, key=lambda key: pooled_mean(points[key], "theory_steps"))
        measured, exact = (pooled_mean(points[largest], name) for name in ("steps", "theory_steps"))
        at = "M = {:,}, K = {}, b = {}".format(*largest)
        cells.append((group, len(points), total, measured, exact, exact / total, at))
    return [Table("One request: the largest mean time of each panel", header, cells, verdict_words(family_of(rows)))]


def requests_table(rows: Sequence[Row]) -> list[Table]:
    header = ("panel", "K", "ρ_C", "requests", "together", "exact", "of FRS", "one by one", "exact", "of FRS each time")
    cells = []
    ours = [row for row in rows if row["method"] == "FATS"]
    for (group, slots, requests), found in by(ours, "group", "K", "requests").items():
        if slots not in (2, 5, 10) or requests not in (1, 5, 10):
            continue
        total = found[0]["R"] * found[0]["E"]
        values: list[Any] = []
        for kind in sorted({row["kind"] for row in found}, key=lambda kind: kind != AT_ONCE):
            of_kind = [row for row in found if row["kind"] == kind]
            exact = pooled_mean(of_kind, "theory_steps")
            share = exact / total if kind == AT_ONCE else exact / (requests * total)
            values += [pooled_mean(of_kind, "steps"), exact, share]
        cells.append((group, slots, found[0]["rho_c"], requests, *values))
    return [Table("Several client requests", header, cells, verdict_words(family_of(rows)))]


def tradeoff_table(rows: Sequence[Row]) -> list[Table]:
    header = ("dataset", "curve", "K", "b", "ρ_C", "ρ_S", "runs", "accuracy", "level", "steps", "exact")
    cells = []
    for (dataset, kind, slots, batch, level), group in by(rows, "dataset", "kind", "K", "b", "level").items():
        if (level == "sample") == (kind.startswith("rho_S")):
            first = group[0]
            cells.append((
                dataset, kind, slots, batch, first["rho_c"], first["rho_s"], len(group),
                mean_of(group, "accuracy_full"), level, mean_of(group, "steps"), mean_of(group, "theory_steps"),
            ))  # fmt: skip
    return [Table("Accuracy and time against ρ", header, cells, verdict_words(family_of(rows)))]


def mean_of(rows: Sequence[Row], column: str) -> float:
    values = [row[column] for row in rows if row[column] is not None]
    return float(np.mean(values)) if values else math.nan
