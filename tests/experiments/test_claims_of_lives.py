"""Claims about trainings: each holds, does not hold and is not decided on rows that are made so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedforget.experiments.claims import CLAIMS, Claim
from fedforget.experiments.rows import COLUMNS
from fedforget.experiments.verdicts import BY_THEORY, FAILS, HOLDS, OPEN

Rows = list[dict[str, Any]]
DROP = "Accuracy drops less with FATS than with retraining from scratch"
DROP_IN_STREAMS = "Accuracy drops less with FATS than with FRS under streams of requests"
RECOVERY = "FATS recovers its accuracy in fewer rounds than retraining from scratch"
BYTES = "FATS communicates less than retraining from scratch"
REMAINS = "More accuracy remains after unlearning with FATS than with FRS"
ENDS = "FATS ends with the highest accuracy under streams of requests"
STABLE = "FATS stays stable under streams of requests"


def claim(says: str) -> Claim:
    return next(each for each in CLAIMS if each.says == says)


def row(experiment: str, method: str, seed: int, **columns: Any) -> dict[str, Any]:
    facts = {"experiment": experiment, "dataset": "mnist", "level": "client", "method": method, "seed": seed, "R": 50}
    return {**dict.fromkeys(COLUMNS), "kind": "summary", **facts, **columns}


def both(experiment: str, column: str, fats: Sequence[Any], frs: Sequence[Any], **columns: Any) -> dict[str, Rows]:
    return {experiment: [row(experiment, method, seed, **{column: value}, **columns)
                         for method, values in (("FATS", fats), ("FRS", frs))
                         for seed, value in enumerate(values)]}  # fmt: skip


FRS = (0.80, 0.82, 0.81)


@pytest.mark.parametrize(
    ("fats", "verdict"),
    [
        ((0.30, 0.35, 0.31), HOLDS),
        ((0.90, 0.91, 0.92), FAILS),
        ((0.02, 0.82, 0.80), OPEN),  # the mean is lower; one run that was not rewound decides nothing
        ((0.10,), OPEN),
    ],
)
@pytest.mark.parametrize(("says", "experiment"), [(DROP, "performance"), (DROP_IN_STREAMS, "streaming")])
def test_drops_are_compared_by_a_paired_interval(
    fats: tuple[float, ...], verdict: str, says: str, experiment: str
) -> None:
    assert claim(says).found(both(experiment, "drop", fats, FRS))[1] == verdict


@pytest.mark.parametrize(
    ("experiment", "says"), [("performance", REMAINS), ("streaming", ENDS)]
)  # fmt: skip
@pytest.mark.parametrize(
    ("fats", "verdict"),
    [((0.95, 0.96, 0.96), HOLDS), ((0.5, 0.52, 0.5), FAILS), ((0.7, 0.9, 0.85), OPEN), (FRS, OPEN), ((0.9,), OPEN)],
)
def test_the_ends_are_compared_by_a_paired_interval(
    experiment: str, says: str, fats: tuple[float, ...], verdict: str
) -> None:
    found = both(experiment, "accuracy_full", fats, FRS, kind="end", round=50)
    assert claim(says).found(found)[1] == verdict


def test_models_of_different_rounds_are_not_compared() -> None:
    """FRS that stopped at round 30 says nothing about round 50. Rows of the first version don't tell the round."""
    for round_ in (30, None):
        found = both("performance", "accuracy_full", (0.95, 0.96), FRS, kind="end", round=round_)
        assert claim(REMAINS).found(found)[1] == OPEN


def recovering(fats: Sequence[int | None], frs: Sequence[int | None], watched: int = 30) -> dict[str, Rows]:
    found = both("performance", "recovery", fats, frs, rounds_computed=30 + watched)
    return {"performance": [
        *found["performance"],
        *({**each, "kind": "removed", "rounds_computed": 30} for each in found["performance"]),
    ]}  # fmt: skip


@pytest.mark.parametrize(
    ("fats", "frs", "verdict"),
    [
        ((10, 11, 12), (20, 22, 21), HOLDS),
        ((20, 22, 21), (10, 11, 12), FAILS),
        ((0, 22, 21), (20, 21, 22), OPEN),
        ((2, 3, 2), (20, None, 21), HOLDS),  # at least 30: the difference is at most -27
        ((10, 11, None), (20, 22, 21), OPEN),
        ((28, 29, 29), (20, 22, None), OPEN),
        ((None, None, None), (10, 11, 12), FAILS),  # at least 30 against 11
        ((None, None, None), (None, None, None), OPEN),
        ((10,), (20,), OPEN),
    ],
)
def test_a_run_that_never_recovers_counts_with_the_rounds_it_was_watched_for(
    fats: tuple[int | None, ...], frs: tuple[int | None, ...], verdict: str
) -> None:
    assert claim(RECOVERY).found(recovering(fats, frs))[1] == verdict


def test_a_censored_run_may_not_decide_against_the_direction_of_its_bound() -> None:
    """FRS needs at least 30 rounds, FATS 35 and more: the truth may be on either side."""
    assert claim(RECOVERY).found(recovering((33, 34, 35), (None, None, None)))[1] == OPEN
    unwatched = both("performance", "recovery", (10, 11), (20, None))
    assert claim(RECOVERY).found(unwatched)[1] == OPEN


@pytest.mark.parametrize(("exact", "verdict"), [(90.0, HOLDS + BY_THEORY), (150.0, FAILS + BY_THEORY), (None, OPEN)])
def test_theory_decides_what_is_sent(exact: float | None, verdict: str) -> None:
    """Whatever was measured: the means of two runs would say the opposite."""
    found = both("performance", "bytes_up", (120, 130), (100, 100), theory_steps=exact, steps=100)
    figure, verdict_, _ = claim(BYTES).found(found)
    assert verdict_ == verdict
    assert "1.25 measured" in figure


@pytest.mark.parametrize(
    ("drops", "verdict"),
    [((0.01, 0.02, 0.01), HOLDS), ((0.7, 0.8, 0.75), FAILS), ((0.02, 0.3, 0.1), OPEN), ((0.9,), OPEN), ((0.0,), OPEN)],
)
def test_stability_is_not_decided_by_one_run(drops: tuple[float, ...], verdict: str) -> None:
    rows = [row("streaming", "FATS", seed, drop=drop) for seed, drop in enumerate(drops)]
    assert claim(STABLE).found({"streaming": rows})[1] == verdict
