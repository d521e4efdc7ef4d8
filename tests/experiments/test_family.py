"""The test of measured times against theory: its laws are those of the planner, and it catches wrong counting."""

from __future__ import annotations

import numpy as np
import pytest

from fedforget.algorithm.seeds import SeedSource
from fedforget.experiments import efficiency, requests, simulate
from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.family import FALSE_ALARM, Point, judge, law_of_time, pooled, power
from fedforget.experiments.laws import with_laws
from fedforget.experiments.rows import COLUMNS
from fedforget.experiments.simulate import Whole
from fedforget.experiments.stale import stale_cells
from fedforget.experiments.tables import family_of, verdict_words
from fedforget.planner.costs import forgetting_cost
from fedforget.planner.round_law import Withdrawal, client_change

WORLD = {"clients": 630, "clients_per_round": 12, "batch_size": 60, "local_steps": 100, "rounds": 50}


@pytest.mark.parametrize("slots", [1, 5, 12])
def test_the_law_has_the_planners_expectation(slots: int) -> None:
    world = {**WORLD, "clients_per_round": slots}
    mean, variance = law_of_time(float(client_change(630, slots)), 50, 100)
    assert mean == pytest.approx(forgetting_cost([Withdrawal(10, None)], **world).expected_steps)
    assert variance > 0


def test_the_variance_is_that_of_the_law() -> None:
    mean, variance = law_of_time(0.5, 2, 1)  # 2 steps with 1/2, 1 with 1/4, none with 1/4
    assert mean == pytest.approx(1.25)
    assert variance == pytest.approx(0.5 * 4 + 0.25 * 1 - 1.25**2)


def point(mean: float, count: int = 10_000) -> Point:
    return Point("a", count, mean, 100.0, 900.0, 300.0)


def test_a_mean_at_its_expectation_agrees() -> None:
    assert judge([point(100.0), point(100.5)]).agrees


def test_a_mean_far_from_its_expectation_disagrees() -> None:
    found = judge([point(100.0), point(103.0)])
    assert not found.agrees
    assert found.adjusted < FALSE_ALARM


def test_more_points_need_more_evidence() -> None:
    """Without the adjustment for the family, hundreds of points would raise false alarms."""
    alone = judge([point(101.2)])
    assert judge([point(101.2), *(point(100.0) for _ in range(200))]).adjusted > alone.adjusted


def test_the_bound_is_conservative() -> None:
    """On the exact law itself, deviations are rarer than the bound says."""
    rng = np.random.default_rng(5)
    change, rounds, steps = 0.03, 30, 10
    mean, variance = law_of_time(change, rounds, steps)
    first = rng.geometric(change, size=(2000, 400))
    means = np.where(first > rounds, 0, (rounds - first + 1) * steps).mean(1)
    for level in (0.2, 0.05):
        tails = np.array([Point("", 400, value, mean, variance, rounds * steps).tail for value in means])
        assert (tails <= level).mean() <= level


def last_rounds(slots: Whole, clients: int, count: int) -> Whole:
    """The last round of every client with K = ``count``; 0 for a client that no slot holds."""
    last = np.zeros(clients, np.int64)
    for slot in range(count):
        np.maximum.at(last, slots[:, slot], np.arange(1, len(slots) + 1))
    return last


def test_counting_from_the_last_use_is_caught() -> None:
    """The published client-level times count from the last use; the family test notices."""
    clients, rounds, local_steps, slots = 630, 50, 100, 12
    parts_first: list[tuple[int, float, float, float, float]] = []
    parts_last: list[tuple[int, float, float, float, float]] = []
    for seed in range(5):
        drawn = simulate.draw_slots(SeedSource(f"last/{seed}"), clients, rounds, slots)
        theory = forgetting_cost([Withdrawal(10, None)], **WORLD).expected_steps
        _, variance = law_of_time(float(client_change(clients, slots)), rounds, local_steps)
        for parts, when in (
            (parts_first, simulate.first_rounds(drawn, clients, (slots,))[slots]),
            (parts_last, last_rounds(drawn, clients, slots)),
        ):
            mean = float(simulate.steps_from_round(when, rounds, local_steps).mean())
            parts.append((clients, mean, theory, variance, float(rounds * local_steps)))
    assert judge([pooled("first", parts_first)]).agrees
    assert not judge([pooled("last", parts_last)]).agrees


def test_every_point_of_the_smoke_scale_agrees_with_theory() -> None:
    choice = Choice("smoke", 1)
    rows = [
        {**dict.fromkeys(COLUMNS), **row}
        for module in (efficiency, requests)
        for cell in module.cells(choice)
        for row in cell.compute()
    ]
    found = family_of(rows)
    assert found.agrees
    assert found.points > 400
    assert found.untestable > 100  # clients of four streams: no mean of four is far enough away


def test_ten_requests_at_once_cost_ninety_percent_of_retraining() -> None:
    """FEMNIST with K = 10: 1, 5 and 10 clients at once."""
    world = {"clients": 3550, "clients_per_round": 10, "batch_size": 1, "local_steps": 20, "rounds": 350}
    shares = [
        round(forgetting_cost([Withdrawal(1, None)] * count, **world).expected_steps / 7000, 3) for count in (1, 5, 10)
    ]
    assert shares == [0.365, 0.8, 0.9]


def few(mean: float, count: int = 5) -> Point:
    """Five runs of MNIST's ten samples at once: 62.8 % off is no disagreement."""
    return Point("few", count, mean, 175.1, 10_094.4, 300.0)


def test_points_that_cannot_fail_are_no_agreement() -> None:
    found = judge([few(0.0), few(300.0)])
    assert (found.points, found.untestable) == (0, 2)
    assert found.largest_relative_error == 0.0
    assert "No measured time can be tested" in verdict_words(found)
    assert "2 more means" in verdict_words(found)
    mixed = judge([few(285.0), *(point(100.5) for _ in range(10))])
    assert (mixed.points, mixed.untestable) == (10, 1)
    assert mixed.largest_relative_error == pytest.approx(0.005)


def test_the_stated_power_is_the_edge_of_the_test() -> None:
    family = [point(100.0) for _ in range(50)]
    away = family[0].detectable(50)
    assert judge([*family[1:], point(100.0 + 0.999 * away)]).agrees
    assert not judge([*family[1:], point(100.0 + 1.001 * away)]).agrees
    found = power(family, 50)
    assert (found.points, found.testable) == (50, 50)
    assert found.best == found.median == found.worst == pytest.approx(away / 100)
    assert power([few(0.0)], 1).testable == 0


def measured_time(**columns: object) -> dict:
    """A performance row of the first version: without variance, count and largest."""
    return {
        **dict.fromkeys(COLUMNS), "experiment": "performance", "group": "mnist", "dataset": "mnist", "kind": "summary",
        "method": "FATS", "level": "sample", "cell": "old", "M": 300, "N": 200, "K": 5, "b": 10, "E": 10, "R": 50,
        "requests": 10, "steps": 0, "theory_steps": 175.0996575, **columns,
    }  # fmt: skip


def came(**columns: object) -> dict:
    return {**measured_time(kind="removed", rounds_computed=30, theory_steps=None), **columns}


def test_a_row_without_its_law_gets_it_from_theory() -> None:
    """The seed with 0 steps counts: without it the mean of the other four is 62.8 % off."""
    complete, missing = with_laws([came(), measured_time()])
    assert not missing
    assert complete[0]["variance"] == pytest.approx(10_094.42275, rel=1e-6)  # as a later version noted it
    assert (complete[0]["count"], complete[0]["largest"]) == (1, 300)
    clients, _ = with_laws([came(level="client"), measured_time(level="client")])
    assert clients[0]["variance"] == pytest.approx(3_267.573674, rel=1e-6)
    others = [{**measured_time(), "cell": str(n), "variance": 10_094.4, "count": 1, "largest": 300, "steps": 285}
              for n in range(4)]  # fmt: skip
    assert family_of([came(), measured_time(), *others]).largest_untestable_error == pytest.approx(0.302, abs=0.001)


def test_a_row_whose_law_is_lost_is_stale_and_not_dropped() -> None:
    """With natural sizes the law depends on which clients asked."""
    rows = [came(dataset="femnist-writers"), measured_time(dataset="femnist-writers")]
    assert with_laws(rows) == ([], ["old"])
    assert "1 cells lack their law and are to be computed again" in verdict_words(family_of(rows))
    cell = Cell("old", 1.0, list)
    assert stale_cells([cell], rows) == {"their rows lack the law of their times": ["old"]}
    assert not stale_cells([cell], [came(), measured_time()])


def test_rows_without_a_law_by_nature_are_not_missing() -> None:
    rows = [measured_time(kind="learned"), measured_time(method="FRS"), measured_time(experiment="accuracy")]
    assert with_laws(rows) == ([], [])
