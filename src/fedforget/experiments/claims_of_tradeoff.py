"""Claims of Section 6.2.4: accuracy and unlearning time against ρ. Accuracy has intervals over seeds, time is exact.

Curves are compared over equal spans of ρ, with equally many points: more points or a longer span would gain more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedforget.experiments.differences import Difference
from fedforget.experiments.drawing import NAMES, by, pooled_mean
from fedforget.experiments.problems import training_of
from fedforget.experiments.rows import Row, real
from fedforget.experiments.tradeoff import BATCH, SLOTS, SLOTS_SAME_RHO_S, points_of
from fedforget.experiments.verdicts import (
    BY_THEORY,
    FAILS,
    HOLDS,
    OPEN,
    Comparison,
    Found,
    Results,
    all_of,
    compared,
    decided,
    overall,
)

_HALF, _NEAR = 0.5, 0.1
_LEAST_POINTS = 2
_TIME = {True: "rises at every step, exact", False: "does not rise at every step", None: "without exact expectation"}
Curve = tuple[list[float], list[float]]  # ρ and accuracy of one seed
Judge = Callable[[Results], Found | None]


def _whole_grids(results: Results) -> Iterator[tuple[str, list[Row]]]:
    """The datasets whose trade-off has every point: a part of a curve decides nothing."""
    for (dataset,), group in by(real(results, "tradeoff"), "dataset").items():
        points = {(row["kind"], row["K"], row["b"]) for row in group}
        if points >= set(points_of(training_of(dataset))):
            yield dataset, group


def _curves(rows: Sequence[Row], kind: str, rho: str) -> list[Curve]:
    """Accuracy against ρ for each seed that has every point of the curve."""
    found = [row for row in rows if row["kind"] == kind and row["level"] == "client"]
    found = found or [row for row in rows if row["kind"] == kind]
    every = {(row["K"], row["b"]) for row in found}
    curves = []
    for group in by(found, "seed").values():
        if {(row["K"], row["b"]) for row in group} == every:
            ordered = sorted(group, key=lambda row: row[rho])
            curves.append(([row[rho] for row in ordered], [row["accuracy_full"] for row in ordered]))
    return curves


def _gains(curve: Curve, corner: float) -> tuple[float, float, float] | None:
    """Slopes of accuracy below and above a corner, over equal spans with equally many points, and that span."""
    x, y = (np.array(each) for each in curve)
    span = min(corner - x[0], x[-1] - corner)
    below = (x >= corner - span - 1e-9) & (x <= corner + 1e-9)
    above = (x >= corner - 1e-9) & (x <= corner + span + 1e-9)
    count = min(below.sum(), above.sum())
    if count < _LEAST_POINTS or span <= 0:
        return None
    near, far = np.flatnonzero(below)[-count:], np.flatnonzero(above)[:count]
    return float(np.polyfit(x[near], y[near], 1)[0]), float(np.polyfit(x[far], y[far], 1)[0]), float(span)


def levels_off(kind: str, rho: str, corner: float = _HALF, *, with_time: bool = False) -> Judge:
    """Whether accuracy rises below ``corner``, and above it less than half as fast. Slopes of least squares.

    ``with_time``: and whether the exact time of a client goes on rising.
    """

    def judge(results: Results) -> Found | None:
        words, verdicts, intervals = [], {}, list[Comparison]()
        for dataset, group in _whole_grids(results):
            slopes = [found for curve in _curves(group, kind, rho) if (found := _gains(curve, corner)) is not None]
            if not slopes:
                continue
            rises = Difference.of_values([below for below, _, _ in slopes])
            after = Difference.of_values([above for _, above, _ in slopes])
            bends = Difference.of_values([below / 2 - above for below, above, _ in slopes])
            span, name = slopes[0][2], NAMES[dataset]
            words.append(
                f"{name}: points per 0.1 of ρ {10 * rises.mean:+.2f} ({rises.words(10)}) from {corner - span:.2f} to "
                f"{corner:.2f}, {10 * after.mean:+.2f} ({after.words(10)}) from there to {corner + span:.2f}, "
                f"{_runs(rises)}"
            )
            holds = [rises.above(0), bends.above(0)]
            if with_time:
                holds.append(_time_rises([row for row in group if row["kind"] == kind], rho))
                words[-1] += f"; time {_TIME[holds[-1]]}"
            verdicts[name] = decided(all_of(*holds))
            intervals += (*compared(f"{name}, rises", rises), *compared(f"{name}, levels off", bends))
        return Found("; ".join(words), overall(verdicts), tuple(intervals)) if words else None

    return judge


def _time_rises(rows: Sequence[Row], rho: str) -> bool | None:
    """By exact expectations; None without them."""
    of_clients = [row for row in rows if row["level"] == "client"]
    if not of_clients or any(row["theory_steps"] is None for row in of_clients):
        return None
    points = by(sorted(of_clients, key=lambda row: row[rho]), rho).values()
    exact = [pooled_mean(each, "theory_steps") for each in points]
    return all(before < after for before, after in pairwise(exact))


def _runs(found: Difference) -> str:
    return "one run" if found.runs == 1 else f"{found.runs} runs"


def time_falls_with_rho_s(results: Results) -> Found | None:
    """The exact expectation decides, at every point of the curve."""
    words, falls = [], list[bool | None]()
    for dataset, group in _whole_grids(results):
        rows = [row for row in group if row["kind"] == BATCH and row["level"] == "sample"]
        points = list(by(sorted(rows, key=lambda row: row["rho_s"]), "rho_s").values())
        if any(row["theory_steps"] is None for row in rows):
            falls.append(None)
            words.append(f"{NAMES[dataset]}: without an exact expectation")
            continue
        exact = [pooled_mean(each, "theory_steps") for each in points]
        measured = [pooled_mean(each, "steps") for each in points]
        falls.append(all(after < before for before, after in pairwise(exact)))
        steps = sum(after > before for before, after in pairwise(exact))
        words.append(
            f"{NAMES[dataset]} from {exact[0]:.1f} to {exact[-1]:.1f} steps, exact ({measured[0]:.1f} to "
            f"{measured[-1]:.1f} measured): it rises at {steps} of {len(exact) - 1} steps of ρ_S"
        )
    return _by_theory(words, falls)


def _by_theory(words: Sequence[str], holds: Sequence[bool | None]) -> Found | None:
    if not words:
        return None
    verdict = FAILS if False in holds else OPEN if None in holds else HOLDS
    return Found("; ".join(words), verdict + ("" if verdict == OPEN else BY_THEORY))


def rho_s_matters_more(results: Results) -> Found | None:
    """Accuracy gained over the span of ρ that both curves have, from its first to its last point, seed by seed."""
    words, verdicts, intervals = [], {}, list[Comparison]()
    for dataset, group in _whole_grids(results):
        for kind, which in ((SLOTS, "b fixed"), (SLOTS_SAME_RHO_S, "ρ_S fixed")):
            pairs = list(zip(_curves(group, BATCH, "rho_s"), _curves(group, kind, "rho_c"), strict=False))
            low = max(curve[0][0] for pair in pairs for curve in pair)
            high = min(curve[0][-1] for pair in pairs for curve in pair)
            gains = [(_gain(by_samples, low, high), _gain(by_clients, low, high)) for by_samples, by_clients in pairs]
            found, (samples, clients) = Difference.of(gains), np.mean(gains, axis=0)
            name = f"{NAMES[dataset]}, {which}"
            words.append(
                f"{name}: from ρ = {low:.2f} to {high:.2f} {100 * samples:+.2f} points over ρ_S, {100 * clients:+.2f} "
                f"over ρ_C (difference {found.runs_words()})"
            )
            verdicts[name] = decided(found.above(0))
            intervals += compared(name, found)
    return Found("; ".join(words), overall(verdicts), tuple(intervals)) if words else None


def _gain(curve: Curve, low: float, high: float) -> float:
    start, end = np.interp([low, high], *curve)
    return float(end - start)


def best_near_half(results: Results) -> Found | None:
    """The knee of each seed: where the share of accuracy gained is furthest above the share of time added (ours)."""
    words, verdicts, intervals = [], {}, list[Comparison]()
    for dataset, group in _whole_grids(results):
        rows = [row for row in group if row["kind"] == SLOTS and row["level"] == "client"]
        times = {key[0]: pooled_mean(each, "theory_steps") for key, each in by(rows, "rho_c").items()}
        knees = [_knee(curve, [times[x] for x in curve[0]]) for curve in _curves(group, SLOTS, "rho_c")]
        if not knees:
            continue
        found, name = Difference.of_values(knees), NAMES[dataset]
        words.append(f"{name}: best at ρ_C = {found.mean:.2f} ({found.runs_words(1)})".replace("+", ""))
        edges = (_HALF - _NEAR - 1e-9, _HALF + _NEAR + 1e-9)
        verdicts[name] = decided(all_of(found.above(edges[0]), found.below(edges[1])))
        intervals += (*compared(f"{name}, low edge", found, edges[0]), *compared(f"{name}, high edge", found, edges[1]))
    return Found("; ".join(words), overall(verdicts), tuple(intervals)) if words else None


def _knee(curve: Curve, times: Sequence[float]) -> float:
    gained, added = (_shares(np.array(values)) for values in (curve[1], times))
    return float(curve[0][int(np.argmax(gained - added))])


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of what is gained from the first to the last point, the part at each."""
    whole = values[-1] - values[0]
    return np.asarray((values - values[0]) / whole if whole else 0 * values)
