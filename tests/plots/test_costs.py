"""The planner's picture: it can be drawn for any plan, the same each time, and refuses what it cannot write."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from fedforget.algorithm.plan import Plan
from fedforget.errors import InvalidInput
from fedforget.planner.costs import forgetting_cost, sample_change
from fedforget.planner.geometric import change_within
from fedforget.planner.round_law import Withdrawal
from fedforget.plots.costs import _figure, draw_costs, log_ticks

PLAN = Plan(5, 10, 10, 30)
BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_plot_is_written_in_the_format_of_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"costs{suffix}"
    draw_costs(path, PLAN, {200: 300})
    assert path.read_bytes().startswith(BEGINNINGS[suffix])


def test_plot_is_reproducible(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_costs(tmp_path / name, PLAN, {200: 300})
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize(
    ("plan", "sizes"),
    [
        (Plan(1, 1, 1, 1), {1: 1}),
        (Plan(100, 10, 10, 100), {200: 10**6}),
        (Plan(40, 99, 5, 400), {2: 2, 3: 1}),
        (Plan(1, 1, 1, 1), {10**6: 10**6}),
    ],
    ids=["the smallest", "a million clients", "everything surely changes", "hardly anything changes"],
)
def test_any_plan_can_be_drawn(tmp_path: Path, plan: Plan, sizes: dict[int, int]) -> None:
    draw_costs(tmp_path / "costs.svg", plan, sizes)
    text = (tmp_path / "costs.svg").read_text(encoding="utf-8")
    assert "nan" not in text


def test_plot_shows_the_exact_costs_of_the_plan(tmp_path: Path) -> None:
    world = {"clients": 300, "clients_per_round": 5, "batch_size": 10, "local_steps": 10, "rounds": 30}
    draw_costs(tmp_path / "costs.svg", PLAN, {200: 300})
    shown = re.findall(r"<!-- ([\d.]+)% -->", (tmp_path / "costs.svg").read_text(encoding="utf-8"))
    for loss in (Withdrawal(200, 1), Withdrawal(200, None)):
        cost = forgetting_cost([loss], **world)
        assert f"{100 * cost.probability:.3g}" in shown
        assert f"{100 * cost.expected_steps / 300:.3g}" in shown


def test_plot_for_unequal_clients_matches_the_table(tmp_path: Path) -> None:
    """An average over the samples, not the cost of a sample of an average client."""
    world = {"clients": 3, "clients_per_round": 1, "batch_size": 2, "local_steps": 2, "rounds": 2}
    sizes = {3: 2, 14: 1}
    draw_costs(tmp_path / "costs.svg", Plan(1, 2, 2, 2), sizes)
    shown = re.findall(r"<!-- ([\d.]+)% -->", (tmp_path / "costs.svg").read_text(encoding="utf-8"))
    average = sum(size * number / 20 * forgetting_cost([Withdrawal(size, 1)], **world).probability
                  for size, number in sizes.items())  # fmt: skip
    of_the_mean = sample_change(20 / 3, clients=3, clients_per_round=1, batch_size=2, local_steps=2)  # type: ignore[arg-type]
    assert f"{100 * average:.3g}" in shown
    assert f"{100 * change_within(of_the_mean, 2):.3g}" not in shown


def test_unwritable_plot_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"costs\.jpg"):
        draw_costs(tmp_path / "costs.jpg", PLAN, {200: 300})
    with pytest.raises(InvalidInput, match="there is no directory"):
        draw_costs(tmp_path / "no" / "costs.png", PLAN, {200: 300})


@pytest.mark.parametrize(
    ("plan", "sizes"), [(PLAN, {200: 300}), (Plan(3, 4, 5, 40), {23: 30, 24: 30})], ids=["paper's MNIST", "demo"]
)
def test_panels_have_equal_heights(plan: Plan, sizes: dict[int, int]) -> None:
    assert len({axes.get_ylim() for axes in _figure(plan, sizes).axes}) == 1


def test_much_lower_curve_has_its_own_axis() -> None:
    left, right = _figure(Plan(1, 1, 1, 1), {10**6: 10**6}).axes[:2]
    assert left.get_ylim()[1] < right.get_ylim()[1] / 20


@pytest.mark.parametrize("plan", [Plan(40, 99, 5, 400), Plan(6, 8, 5, 200), Plan(50, 8, 50, 10**5)])
def test_labels_of_a_logarithmic_axis_do_not_touch(plan: Plan) -> None:
    figure = _figure(plan, {2: 2, 30: 8})
    figure.draw_without_rendering()
    for axes in figure.axes[2:]:
        assert axes.get_xscale() == "log"
        boxes = [label.get_window_extent() for label in axes.get_xticklabels(which="both") if label.get_text()]
        assert all(left.x1 < right.x0 for left, right in pairwise(sorted(boxes, key=lambda box: box.x0)))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((3, 90), [5, 10, 20, 50]),
        ((133.3, 8000), [200, 500, 1000, 2000, 5000]),
        ((11_430, 26_667), [12_000, 15_000, 20_000, 25_000]),
        ((1, 1e12), [1, 1e3, 1e6, 1e9, 1e12]),
        ((301, 303), [301, 303]),
    ],
)
def test_ticks_of_a_logarithmic_axis(ends: tuple[float, float], expected: list[float]) -> None:
    assert log_ticks(*ends) == pytest.approx(expected)
