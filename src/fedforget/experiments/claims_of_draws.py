"""Claims of Sections 6.2.2 and 6.2.3. Exact expectations decide them; that draws follow these is tested beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from fedforget.experiments.drawing import by, pooled_mean
from fedforget.experiments.requests import AT_ONCE
from fedforget.experiments.rows import Row
from fedforget.experiments.verdicts import BY_THEORY, CONDITION, FAILS, HOLDS, OPEN, Found, Results

_FAR_BELOW = 0.5  # of FRS's time (ours)
_NO_LAW = Found("rows without an exact expectation", OPEN)
_SEVERAL = 2


def cheaper(level: str, bound: float, verdict: str) -> Callable[[Results], Found | None]:
    def judge(results: Results) -> Found | None:
        rows = [row for row in results.get("efficiency", ()) if row["level"] == level and row["method"] == "FATS"]
        if not rows or _lacks_law(rows):
            return _NO_LAW if rows else None
        shares = [row["theory_steps"] / (row["R"] * row["E"]) for row in rows]
        points = len(by(rows, "group", "M", "K", "b"))
        words = f"at most {max(shares):.2f} of FRS, exact, at ρ ≤ 1, over {points} points"
        return Found(words, (verdict if max(shares) < bound else FAILS) + BY_THEORY)

    return judge


def _lacks_law(rows: Sequence[Row]) -> bool:
    return any(row["theory_steps"] is None for row in rows)


def rises_with_slots(results: Results) -> Found | None:
    rows = [row for row in results.get("efficiency", ()) if row["method"] == "FATS" and row["seed"] == 1]
    lines = by(rows, "group", "M", "b")
    if not lines or _lacks_law(rows):
        return _NO_LAW if lines else None
    rising = [_rises([row["theory_steps"] for row in sorted(line, key=lambda row: row["K"])])
              for line in lines.values()]  # fmt: skip
    return _all_rise(rising, "rise at every step of K")


def _rises(values: Sequence[float]) -> bool:
    return all(value < following for value, following in pairwise(values))


def _all_rise(rising: Sequence[bool], words: str) -> Found:
    return Found(f"{sum(rising)} of {len(rising)} lines {words}", (HOLDS if all(rising) else FAILS) + BY_THEORY)


def rises_along(column: str) -> Callable[[Results], Found | None]:
    def judge(results: Results) -> Found | None:
        rows = [row for row in results.get("requests", ()) if row["method"] == "FATS" and row["seed"] == 1]
        other = "K" if column == "requests" else "requests"
        lines = by(rows, "group", "kind", other)
        if not lines or _lacks_law(rows):
            return _NO_LAW if lines else None
        rising = [_rises([row["theory_steps"] for row in sorted(line, key=lambda row: row[column])])
                  for line in lines.values()]  # fmt: skip
        return _all_rise(rising, "rise")

    return judge


def several_are_cheap(results: Results) -> Found | None:
    """For how many requests at once some K stays at most at half of FRS, on every panel; two are several."""
    rows = [row for row in results.get("requests", ()) if row["method"] == "FATS" and row["kind"] == AT_ONCE]
    if not rows or _lacks_law(rows):
        return _NO_LAW if rows else None
    words, cheap = [], []
    for (group,), found in by(rows, "group").items():
        shares = {key: pooled_mean(each, "theory_steps") / (each[0]["R"] * each[0]["E"])
                  for key, each in by(found, "requests", "K").items()}  # fmt: skip
        counts = sorted({requests for requests, _ in shares})
        least = {requests: min((share, slots) for (count, slots), share in shares.items() if count == requests)
                 for requests in counts}  # fmt: skip
        cheap.append(max((count for count in counts if least[count][0] <= _FAR_BELOW), default=0))
        share, slots = least[counts[-1]]
        words.append(f"{group}: at most half of FRS for up to {cheap[-1]} at once; {counts[-1]} at once {share:.2f} of "
                     f"FRS at K = {slots}")  # fmt: skip
    most = max(row["requests"] for row in rows)
    verdict = HOLDS if min(cheap) == most else f"{CONDITION}: up to {min(cheap)} at once"
    return Found("; ".join(words), (FAILS if min(cheap) < _SEVERAL else verdict) + BY_THEORY)
