"""Tables of the experiments: what a reader wants to know without looking at every row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedforget.experiments import accuracy
from fedforget.experiments.drawing import by, pooled_mean
from fedforget.experiments.family import FALSE_ALARM, Verdict, judge, pooled
from fedforget.experiments.pairs import by_dataset
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


def lives_table(rows: Sequence[Row]) -> list[Table]:
    """Performance and streaming: a line for each dataset, level and method, means over seeds."""
    header = ("dataset", "level", "method", "runs", "before", "whole set", "lowest", "end", "drop",
              "rounds to recover", "steps", "expected", "MB up", "same bytes as from scratch")  # fmt: skip
    cells = []
    lived = [row for row in rows if row["experiment"] != accuracy.NAME]
    for (dataset, level, method), group in by(lived, "dataset", "level", "method").items():
        kinds = by(group, "kind")
        summaries = kinds[("summary",)]
        whole = {kind: _mean(kinds[(kind,)], "accuracy_full") for kind in ("before", "lowest", "end")}
        cells.append((
            dataset, level, method, len(summaries), _mean(summaries, "accuracy"), *whole.values(),
            _mean(summaries, "drop"), recovery_words(summaries), _mean(summaries, "steps"),
            _mean(summaries, "theory_steps"), _mean(summaries, "bytes_up") / 1e6, equal_words(summaries),
        ))  # fmt: skip
    note = (
        "before: mean accuracy of the last five rounds before the requests, on 2,000 test images; whole set, lowest "
        "and end: the whole test set, before the requests, at the lowest point and at the end. FATS's final accuracy "
        "is that of retraining by construction: its drop measures only how far it went back."
    )
    return [Table("Accuracy and cost of unlearning", header, cells, note)]


def performance_tables(rows: Sequence[Row]) -> list[Table]:
    """Also takes the rows of ``accuracy``, which decide the comparison before unlearning where they are there."""
    return [*lives_table(rows), *paired_tables(rows)]


def recovery_words(summaries: Sequence[Row]) -> str:
    found = [row["recovery"] for row in summaries if row["recovery"] is not None]
    if not found:
        return "not within the horizon"
    part = "" if len(found) == len(summaries) else f" ({len(found)} of {len(summaries)} runs)"
    return f"{float(np.mean(found)):.1f}{part}"


def equal_words(summaries: Sequence[Row]) -> str:
    checked = [row for row in summaries if row["retrained_digest"]]
    equal = sum(row["model_digest"] == row["retrained_digest"] for row in checked)
    return f"{equal} of {len(checked)}" if checked else "-"


def accuracy_table(rows: Sequence[Row]) -> list[Table]:
    """A line for each dataset and method, then the paired comparison."""
    header = ("dataset", "method", "runs", "optimiser", "last five rounds", "lowest", "highest", "whole set")
    cells = []
    for (dataset, method), group in by(rows, "dataset", "method").items():
        values = [row["accuracy"] for row in group]
        cells.append((
            dataset, method, len(group), group[0]["optimizer"], _mean(group, "accuracy"), min(values), max(values),
            _mean(group, "accuracy_full"),
        ))  # fmt: skip
    note = (
        "last five rounds: mean accuracy on 2,000 test images; of the runs the mean, the lowest and the highest. whole "
        "set: the whole test set after the last round. The central linear model is trained at one place on all "
        "training samples by L-BFGS; its L2 penalty is chosen on a tenth of them. The other one is trained by FATS "
        "with the plan and optimiser of the dataset's own model."
    )
    return [Table("Accuracy up to the requests", header, cells, note), *paired_tables(rows)]


def paired_tables(rows: Sequence[Row]) -> list[Table]:
    """FATS's accuracy before unlearning minus FedAvg's, seed by seed."""
    header = ("dataset", "runs", "FATS", "FedAvg", "linear, central", "linear, FATS", "both beat the central one",
              "difference in points", "95 % interval", "no worse than one point", "rows of")  # fmt: skip
    cells = [
        (dataset, found.difference.runs, found.fats, found.fedavg, found.linear, found.linear_by_fats,
         {None: "not measured", True: "yes", False: "no"}[found.counts], f"{100 * found.difference.mean:+.2f}",
         found.difference.words(), found.verdict, found.source)
        for dataset, found in by_dataset(rows).items()
    ]  # fmt: skip
    note = (
        "The goal: FATS is no worse than FedAvg by more than one point. It counts where both beat the linear model "
        "that was trained centrally, the stronger of the two, and is decided where the interval (Student's t over "
        "paired seeds) lies on one side of the goal."
    )
    return [Table("Accuracy before unlearning: FATS minus FedAvg, paired by seed", header, cells, note)]


def tradeoff_table(rows: Sequence[Row]) -> list[Table]:
    header = ("dataset", "curve", "K", "b", "ρ_C", "ρ_S", "runs", "accuracy", "level", "steps", "exact")
    cells = []
    for (dataset, kind, slots, batch, level), group in by(rows, "dataset", "kind", "K", "b", "level").items():
        if (level == "sample") == (kind.startswith("rho_S")):
            first = group[0]
            cells.append((
                dataset, kind, slots, batch, first["rho_c"], first["rho_s"], len(group), _mean(group, "accuracy_full"),
                level, _mean(group, "steps"), _mean(group, "theory_steps"),
            ))  # fmt: skip
    return [Table("Accuracy and time against ρ", header, cells, verdict_words(family_of(rows)))]


def _mean(rows: Sequence[Row], column: str) -> float:
    values = [row[column] for row in rows if row[column] is not None]
    return float(np.mean(values)) if values else math.nan
