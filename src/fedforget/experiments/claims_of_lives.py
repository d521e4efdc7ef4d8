"""Claims of Sections 6.2.1 and A.5 about trainings: FATS against FRS, paired by seed, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedforget.experiments.differences import Difference
from fedforget.experiments.drawing import NAMES, by
from fedforget.experiments.life_tables import is_at_the_horizon, recovery_words
from fedforget.experiments.pairs import GOAL, by_dataset
from fedforget.experiments.rows import Row, real
from fedforget.experiments.verdicts import (
    BY_THEORY,
    FAILS,
    HOLDS,
    OPEN,
    Comparison,
    Found,
    Results,
    compared,
    decided,
    overall,
)

_STABLE = 0.1  # a fall of more than ten points is not stable (ours)
Judge = Callable[[Results], Found | None]


def learns_as_well(results: Results) -> Found | None:
    """Holds where both beat a linear model and the interval lies above the goal."""
    found = by_dataset([*real(results, "accuracy"), *real(results, "performance")])
    words, verdicts, intervals = [], {}, list[Comparison]()
    for dataset, before in found.items():
        name, difference = NAMES[dataset], before.difference
        verdicts[name] = before.verdict
        words.append(f"{name} {100 * difference.mean:+.2f} points ({difference.runs_words()}): {before.verdict}")
        if before.counts:
            intervals += compared(name, difference, GOAL)
    return Found("; ".join(words), overall(verdicts), tuple(intervals)) if words else None


def learns_as_fast(results: Results) -> Found | None:
    """By the mean accuracy over all rounds before the requests: a method that learns later has a lower one."""
    learned = [row for row in real(results, "performance") if row["kind"] == "learned" and row["level"] == "client"]
    cases = []
    for (dataset,), group in by(learned, "dataset").items():
        means = {key: float(np.mean([row["accuracy"] for row in rows]))
                 for key, rows in by(group, "method", "seed").items()}  # fmt: skip
        if pairs := _pairs(means):
            found = Difference.of(pairs)
            words = f"{NAMES[dataset]} {100 * found.mean:+.2f} points over all rounds ({found.runs_words()})"
            cases.append(_Case(NAMES[dataset], words, found.above(GOAL), compared(NAMES[dataset], found, GOAL)))
    return _together(cases)


class _Case(NamedTuple):
    """A dataset, or a dataset and a level: our figure, and whether the claim is true of it; None: not decided."""

    name: str
    words: str
    holds: bool | None
    comparisons: tuple[Comparison, ...]


def _together(cases: Sequence[_Case]) -> Found | None:
    if not cases:
        return None
    verdict = overall({case.name: decided(case.holds) for case in cases})
    return Found("; ".join(case.words for case in cases), verdict, tuple(c for case in cases for c in case.comparisons))


def _pairs(values: Mapping[tuple[str, int], float]) -> list[tuple[float, float]]:
    """FATS's value and FRS's for each seed that both have."""
    return [(values["FATS", seed], value) for (method, seed), value in values.items()
            if method == "FRS" and ("FATS", seed) in values]  # fmt: skip


def drops_less(experiment: str) -> Judge:
    """Whether FATS's accuracy falls less than FRS's."""

    def judge(results: Results) -> Found | None:
        cases = []
        for name, fats, frs in _both(results, experiment):
            pairs = [(one["drop"], other["drop"]) for one, other in zip(fats, frs, strict=True)]
            found, (ours, theirs) = Difference.of(pairs), np.mean(pairs, axis=0)
            words = f"{name} {ours:.2f} against {theirs:.2f} ({_in_points(found)})"
            cases.append(_Case(name, words, found.below(0), compared(name, found)))
        return _together(cases)

    return judge


def _in_points(found: Difference) -> str:
    return found.runs_words() if found.half is None else f"difference in points {found.runs_words(digits=1)}"


def communicates_less(results: Results) -> Found | None:
    """Exact: a round of FATS sends at most the K models that each round of FRS sends, and the steps have a law."""
    words, holds = [], list[bool | None]()
    for name, fats, frs in _both(results, "performance"):
        measured = _mean(fats, "bytes_up") / _mean(frs, "bytes_up")
        if any(row["theory_steps"] is None for row in fats):
            holds.append(None)
            words.append(f"{name} {measured:.2f} measured, without an exact expectation")
            continue
        exact = _mean(fats, "theory_steps") / _mean(frs, "steps")
        words.append(f"{name} at most {exact:.2f} of FRS, exact ({measured:.2f} measured, {_runs(fats)})")
        holds.append(exact < 1)
    if not words:
        return None
    verdict = FAILS if False in holds else OPEN if None in holds else HOLDS
    return Found("; ".join(words), verdict + ("" if verdict == OPEN else BY_THEORY))


def ends_higher(experiment: str) -> Judge:
    """Paired by seed: FATS minus FRS, on the whole test set at the end.

    After one arrival both end at the model of round R; in streams, after R rounds computed.
    """

    def judge(results: Results) -> Found | None:
        ends = [row for row in real(results, experiment) if row["kind"] == "end"]
        usable = [row for row in ends if is_at_the_horizon(row)]
        cases = []
        for (dataset, level), group in by(usable, "dataset", "level").items():
            if pairs := _pairs({(row["method"], row["seed"]): row["accuracy_full"] for row in group}):
                found, (fats, frs) = Difference.of(pairs), np.mean(pairs, axis=0)
                name = f"{NAMES[dataset]} {level}s"
                words = f"{name} {fats:.3f} against {frs:.3f} ({_in_points(found)})"
                cases.append(_Case(name, words, found.above(0), compared(name, found)))
        if ends and not cases:
            return Found("no pair of runs went on to the model of round R", OPEN)
        return _together(cases)

    return judge


def is_exact(results: Results) -> Found | None:
    """The digest after unlearning is that of a training from scratch without the data, under the same seeds."""
    checked = [row for row in real(results, "performance") if row["retrained_digest"]]
    equal = sum(row["model_digest"] == row["retrained_digest"] for row in checked)
    figure = f"{equal} of {len(checked)} unlearned models have the bytes of one trained without the data"
    return Found(figure, HOLDS if equal == len(checked) else FAILS) if checked else None


def recovers_sooner(results: Results) -> Found | None:
    """Rounds until accuracy is within a point of before, FATS minus FRS.

    A run that does not recover is censored: it counts with the rounds it was watched for, which are fewer than it
    needs. So the difference is bounded on one side only, and may decide only in that direction.
    """
    cases = []
    for name, fats, frs in _both(results, "performance"):
        watched = [(_watched(results, one), _watched(results, other)) for one, other in zip(fats, frs, strict=True)]
        words = f"{name} {recovery_words(fats)} against {recovery_words(frs)}"
        lost = [any(row["recovery"] is None for row in rows) for rows in (fats, frs)]
        pairs = [(_recovery(one, own), _recovery(other, theirs))
                 for one, other, (own, theirs) in zip(fats, frs, watched, strict=True)]  # fmt: skip
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        if len(known) < len(pairs):
            cases.append(_Case(name, f"{words} ({_runs(fats)})", None, ()))
            continue
        found = Difference.of(known)
        holds = found.below(0)
        if (holds is True and lost[0]) or (holds is False and lost[1]):
            holds = None
        figure = f"{words} ({'one run' if found.half is None else 'difference ' + found.runs_words(1, 1)})"
        cases.append(_Case(name, figure, holds, compared(name, found)))
    return _together(cases)


def _recovery(row: Row, watched: int | None) -> float | None:
    found: float | None = row["recovery"]
    return watched if found is None else found


def _watched(results: Results, row: Row) -> int | None:
    """Rounds computed after the requests of a life."""
    same = ("dataset", "level", "method", "seed")
    came = [each["rounds_computed"] for each in real(results, row["experiment"])
            if each["kind"] == "removed" and all(each[name] == row[name] for name in same)]  # fmt: skip
    return None if not came or row["rounds_computed"] is None else row["rounds_computed"] - min(came)


def stable_in_streams(results: Results) -> Found | None:
    """Whether FATS's accuracy falls by at most ten points."""
    rows = [row for row in real(results, "streaming") if row["kind"] == "summary" and row["method"] == "FATS"]
    cases = []
    for (dataset, level), group in by(rows, "dataset", "level").items():
        name, found = f"{NAMES[dataset]} {level}s", Difference.of_values([row["drop"] for row in group])
        interval = "one run" if found.half is None else f"{found.words(1)}, {found.runs} runs".replace("+", "")
        words = f"{name} fall by {found.mean:.2f} ({interval})"
        cases.append(_Case(name, words, found.below(_STABLE), compared(name, found, _STABLE)))
    return _together(cases)


def _both(results: Results, experiment: str) -> Iterator[tuple[str, list[Row], list[Row]]]:
    """The summaries of FATS and of FRS under the seeds that both have finished, for each dataset and level."""
    summaries = [row for row in real(results, experiment) if row["kind"] == "summary"]
    for (dataset, level), group in by(summaries, "dataset", "level").items():
        fats, frs = ({row["seed"]: row for row in group if row["method"] == name} for name in ("FATS", "FRS"))
        seeds = [seed for seed in fats if seed in frs]
        if seeds:
            yield f"{NAMES[dataset]} {level}s", [fats[seed] for seed in seeds], [frs[seed] for seed in seeds]


def _runs(rows: Sequence[Row]) -> str:
    return "one run" if len(rows) == 1 else f"{len(rows)} runs"


def _mean(rows: Sequence[Row], column: str) -> float:
    return float(np.mean([row[column] for row in rows]))
