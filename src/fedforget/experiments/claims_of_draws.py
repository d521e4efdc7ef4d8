"""Claims of Sections 6.2.2 and 6.2.3, which draws and exact expectations decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from fedforget.experiments.drawing import by, pooled_mean
from fedforget.experiments.requests import AT_ONCE, IN_A_STREAM
from fedforget.experiments.verdicts import CONDITION, FAILS, HOLDS, Found, Results


def cheaper(level: str, bound: float, verdict: str) -> Callable[[Results], Found | None]:
    def judge(results: Results) -> Found | None:
        rows = [row for row in results.get("efficiency", ()) if row["level"] == level and row["method"] == "FATS"]
        if not rows:
            return None
        shares = [row["theory_steps"] / (row["R"] * row["E"]) for row in rows]
        points = len(by(rows, "group", "M", "K", "b"))
        words = f"at most {max(shares):.2f} of FRS, exact, at ρ ≤ 1, over {points} points"
        return words, verdict if max(shares) < bound else FAILS

    return judge


def rises_with_slots(results: Results) -> Found | None:
    rows = [row for row in results.get("efficiency", ()) if row["method"] == "FATS" and row["seed"] == 1]
    lines = by(rows, "group", "M", "b")
    if not lines:
        return None
    rising = [_rises([row["theory_steps"] for row in sorted(line, key=lambda row: row["K"])])
              for line in lines.values()]  # fmt: skip
    return f"{sum(rising)} of {len(rising)} lines rise at every step of K", HOLDS if all(rising) else FAILS


def _rises(values: Sequence[float]) -> bool:
    return all(value < following for value, following in pairwise(values))


def rises_along(column: str) -> Callable[[Results], Found | None]:
    def judge(results: Results) -> Found | None:
        rows = [row for row in results.get("requests", ()) if row["method"] == "FATS" and row["seed"] == 1]
        other = "K" if column == "requests" else "requests"
        lines = by(rows, "group", "kind", other)
        if not lines:
            return None
        rising = [_rises([row["theory_steps"] for row in sorted(line, key=lambda row: row[column])])
                  for line in lines.values()]  # fmt: skip
        return f"{sum(rising)} of {len(rising)} lines rise", HOLDS if all(rising) else FAILS

    return judge


def several_are_cheap(results: Results) -> Found | None:
    rows = [row for row in results.get("requests", ()) if row["method"] == "FATS"]
    if not rows:
        return None
    most = max(row["requests"] for row in rows)
    words = []
    for (group,), found in by(rows, "group").items():
        shares = {}
        for kind in (AT_ONCE, IN_A_STREAM):
            for slots in (2, 10):
                each = [r for r in found if (r["kind"], r["K"], r["requests"]) == (kind, slots, most)]
                shares[kind, slots] = pooled_mean(each, "theory_steps") / (each[0]["R"] * each[0]["E"])
        words.append(
            f"{group}: {most} at once {shares[AT_ONCE, 2]:.2f} of FRS at K = 2 and {shares[AT_ONCE, 10]:.2f} at K = 10"
        )
    return "; ".join(words), f"{CONDITION}: small K"
