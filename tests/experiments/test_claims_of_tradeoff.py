"""Claims about accuracy against ρ: intervals over seeds, equal spans and equally many points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fedforget.experiments.claims import CLAIMS
from fedforget.experiments.problems import training_of
from fedforget.experiments.rows import COLUMNS
from fedforget.experiments.tradeoff import BATCH, points_of
from fedforget.experiments.verdicts import BY_THEORY, FAILS, HOLDS, OPEN, Found

Accuracy = Callable[[str, float, int], float]  # of a curve, at ρ, under a seed
BY_NAME = {claim.says: claim for claim in CLAIMS}
RHO_S = "Accuracy rises fast with ρ_S, then levels off"
RHO_C = "Accuracy levels off beyond ρ_C = 0.5, while time goes on rising"


def found(says: str, accuracy: Accuracy, seeds: int = 3, time: Callable[[float], float | None] = lambda x: x) -> Found:
    points = points_of(training_of("mnist"))
    rows: list[dict[str, Any]] = [
        {**dict.fromkeys(COLUMNS), "experiment": "tradeoff", "dataset": "mnist", "kind": kind, "K": slots, "b": batch,
         "level": level, "seed": seed, "rho_c": slots / 10, "rho_s": slots * batch / 200, "count": 1,
         "steps": 1.0, "theory_steps": time(slots * batch),
         "accuracy_full": accuracy(kind, slots * batch / 200 if kind == BATCH else slots / 10, seed)}
        for kind, slots, batch in points for level in ("sample", "client") for seed in range(1, seeds + 1)
    ]  # fmt: skip
    return BY_NAME[says].found({"tradeoff": rows})


def noise(seed: int, size: float = 0.0005) -> float:
    return size * float(np.cos(7 * seed))


def bends(kind: str, rho: float, seed: int) -> float:
    return 0.8 + 0.1 * min(rho, 0.5) + 0.01 * rho * noise(seed, 1.0)


def straight(kind: str, rho: float, seed: int) -> float:
    return 0.8 + 0.1 * rho + 0.01 * rho * noise(seed, 1.0)


def noisy(kind: str, rho: float, seed: int) -> float:
    return 0.8 + 0.05 * float(np.cos(40 * rho * seed + len(kind)))


@pytest.mark.parametrize("says", [RHO_S, RHO_C])
@pytest.mark.parametrize(("accuracy", "verdict"), [(bends, HOLDS), (straight, FAILS), (noisy, OPEN)])
def test_a_curve_levels_off_where_its_slopes_do_over_seeds(says: str, accuracy: Accuracy, verdict: str) -> None:
    assert found(says, accuracy)[1] == verdict
    assert found(says, accuracy, seeds=1)[1] == OPEN


def test_slopes_are_of_equal_spans() -> None:
    figure = found(RHO_C, bends)[0]
    assert "from 0.20 to 0.50" in figure
    assert "from there to 0.80" in figure  # not to 1


def test_time_that_stops_rising_denies_the_second_half_of_the_sentence() -> None:
    assert found(RHO_C, bends, time=lambda _: 1.0)[1] == FAILS
    assert found(RHO_C, bends, time=lambda _: None)[1] == OPEN


@pytest.mark.parametrize(
    ("time", "verdict"),
    [(lambda x: -x, HOLDS + BY_THEORY), (lambda x: x, FAILS + BY_THEORY), (lambda _: None, OPEN)],
)
def test_theory_decides_whether_time_falls(time: Callable[[float], float | None], verdict: str) -> None:
    assert found("Unlearning time falls as ρ_S grows, then levels off", noisy, time=time)[1] == verdict


def gains(samples: float, clients: float, spread: float = 0.0) -> Accuracy:
    def accuracy(kind: str, rho: float, seed: int) -> float:
        slope = samples + spread * noise(seed, 1.0) if kind == BATCH else clients
        return 0.8 + slope * rho

    return accuracy


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [(gains(0.1, 0.05, 0.001), HOLDS), (gains(0.05, 0.1, 0.001), FAILS), (gains(0.1, 0.1, 0.1), OPEN)],
)
def test_what_matters_more_is_decided_seed_by_seed_over_one_span(accuracy: Accuracy, verdict: str) -> None:
    figure, verdict_, _ = found("ρ_S matters more for accuracy than ρ_C", accuracy)
    assert verdict_ == verdict
    assert "from ρ = 0.20 to 1.00" in figure
    assert found("ρ_S matters more for accuracy than ρ_C", accuracy, seeds=1)[1] == OPEN


def test_gains_are_of_the_span_that_both_curves_have() -> None:
    """The curve over ρ_S begins at 0.125; from there it would have gained 8.75 points."""
    figure = found("ρ_S matters more for accuracy than ρ_C", gains(0.1, 0.1))[0]
    assert "+8.00 points over ρ_S, +8.00 over ρ_C" in figure


def knees(at: Sequence[float]) -> Accuracy:
    return lambda kind, rho, seed: 0.8 + 0.1 * min(rho, at[seed - 1]) + 0.0001 * rho * len(kind)


@pytest.mark.parametrize(
    ("at", "verdict"),
    [((0.5, 0.5, 0.5), HOLDS), ((0.3, 0.3, 0.3), FAILS), ((0.3, 0.5, 0.9), OPEN), ((0.5,), OPEN)],
)
def test_the_best_tradeoff_is_where_accuracy_is_furthest_ahead_of_time(at: tuple[float, ...], verdict: str) -> None:
    figure, verdict_, _ = found("The best trade-off is near ρ_C = 0.5", knees(at), seeds=len(at))
    assert verdict_ == verdict
    assert f"best at ρ_C = {np.mean(at):.2f}" in figure
