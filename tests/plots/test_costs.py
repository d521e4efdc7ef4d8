"""The planner's picture: it can be drawn for any plan, the same each time, and refuses what it cannot write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedforget.algorithm.plan import Plan
from fedforget.algorithm.theory import Loss, forgetting_cost
from fedforget.errors import InvalidInput, StorageFailed
from fedforget.plots.costs import draw_costs

PLAN = Plan(5, 10, 10, 30)
BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"costs{suffix}"
    draw_costs(path, PLAN, 300, 200)
    assert path.read_bytes().startswith(BEGINNINGS[suffix])


def test_equal_bytes_each_time(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_costs(tmp_path / name, PLAN, 300, 200)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize(
    ("plan", "clients", "samples"),
    [(Plan(1, 1, 1, 1), 1, 1.0), (Plan(100, 10, 10, 100), 10**6, 200.0), (Plan(40, 99, 5, 400), 3, 2.5)],
    ids=["the smallest", "a million clients", "everything surely changes"],
)
def test_any_plan_can_be_drawn(tmp_path: Path, plan: Plan, clients: int, samples: float) -> None:
    draw_costs(tmp_path / "costs.svg", plan, clients, samples)
    text = (tmp_path / "costs.svg").read_text(encoding="utf-8")
    assert "nan" not in text


def test_it_shows_the_exact_costs_of_the_plan(tmp_path: Path) -> None:
    world = {"clients": 300, "clients_per_round": 5, "batch_size": 10, "local_steps": 10, "rounds": 30}
    draw_costs(tmp_path / "costs.svg", PLAN, 300, 200)
    shown = re.findall(r"<!-- ([\d.]+)% -->", (tmp_path / "costs.svg").read_text(encoding="utf-8"))
    for loss in (Loss(200, 1), Loss(200, None)):
        cost = forgetting_cost([loss], **world)
        assert f"{100 * cost.probability:.3g}" in shown
        assert f"{100 * cost.expected_steps / 300:.3g}" in shown


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"costs\.jpg"):
        draw_costs(tmp_path / "costs.jpg", PLAN, 300, 200)
    with pytest.raises(StorageFailed, match="no/costs"):
        draw_costs(tmp_path / "no" / "costs.png", PLAN, 300, 200)
