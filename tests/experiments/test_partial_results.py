"""Figures, tables and the page of results are right at any moment of a long computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedforget.experiments import tradeoff
from fedforget.experiments.cells import Choice
from fedforget.experiments.claims import CLAIMS
from fedforget.experiments.coverage import ABSENT, COMPLETE, PARTLY, coverage_table
from fedforget.experiments.problems import training_of
from fedforget.experiments.published import Published
from fedforget.experiments.reproduce import EXPERIMENTS, redraw
from fedforget.experiments.results import write_results
from fedforget.experiments.rows import COLUMNS, ResultsFile, of_largest_scale
from fedforget.experiments.verdicts import UNKNOWN

SMOKE = Choice("smoke")
TRAINED = [name for name, experiment in EXPERIMENTS.items() if experiment.trains]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module", params=TRAINED)
def computed(request: pytest.FixtureRequest) -> tuple[str, list[tuple[str, Rows]]]:
    return request.param, [(cell.name, list(cell.compute())) for cell in EXPERIMENTS[request.param].cells(SMOKE)]


def test_tables_can_be_made_after_every_cell(computed: tuple[str, list[tuple[str, Rows]]]) -> None:
    name, cells = computed
    rows: Rows = []
    for _, made in cells:
        rows += [{**dict.fromkeys(COLUMNS), **row} for row in made]
        assert EXPERIMENTS[name].tables(rows)


def test_figures_and_page_can_be_made_after_the_first_cell(
    computed: tuple[str, list[tuple[str, Rows]]], tmp_path: Path
) -> None:
    name, cells = computed
    ResultsFile(tmp_path / f"{name}.csv").append(*cells[0])
    page = tmp_path / "results.md"
    write_results(tmp_path, page, redraw(tmp_path, Published()))
    text = page.read_text(encoding="utf-8")
    assert "digits at smoke scale" in text
    assert text.count(ABSENT) > len(CLAIMS)  # every claim, and every dataset of the paper's scale


def planned(name: str, dataset: str) -> list[str]:
    return [cell.name for cell in EXPERIMENTS[name].cells(Choice("paper", None, (dataset,), check_data=False))]


def found(name: str, dataset: str, finished: list[str], optimizer: str | None = None) -> tuple[Any, ...]:
    table = coverage_table(
        {name: [{**dict.fromkeys(COLUMNS), "cell": cell, "optimizer": optimizer} for cell in finished]}
    )
    lines = [line for line in table.rows if (line[0], line[2]) == (name, dataset)]
    assert len(lines) == 1
    return tuple(lines[0][3:])


@pytest.mark.parametrize(
    ("name", "dataset", "seeds", "cells"),
    [
        ("accuracy", "mnist", 20, 61),
        ("accuracy", "femnist", 1, 4),
        ("performance", "mnist", 5, 10),
        ("performance", "femnist", 1, 2),
        ("streaming", "femnist-writers", 5, 10),
        ("tradeoff", "mnist", 3, 78),
        ("tradeoff", "fashion-mnist", 3, 54),
    ],
)
def test_coverage_counts_cells_and_whole_seeds(name: str, dataset: str, seeds: int, cells: int) -> None:
    names = planned(name, dataset)
    assert found(name, dataset, []) == (0, seeds, 0, cells, ABSENT)
    assert found(name, dataset, names) == (seeds, seeds, cells, cells, COMPLETE)
    one_less = [cell for cell in names if cell != names[-1]]
    assert found(name, dataset, one_less) == (seeds - 1, seeds, cells - 1, cells, PARTLY)
    assert found(name, dataset, names, "lr 7")[4:] != (COMPLETE,)
    assert found(name, dataset, ["of another kind"]) == (0, seeds, 0, cells, ABSENT)


def tradeoff_rows(points: list[tuple[str, int, int]]) -> Rows:
    return [
        {**dict.fromkeys(COLUMNS), "dataset": "mnist", "kind": kind, "K": slots, "b": batch, "level": level, "seed": 1,
         "rho_c": slots / 10, "rho_s": slots * batch / 200, "accuracy_full": 0.9,
         "steps": float(slots * batch), "theory_steps": float(slots * batch)}
        for kind, slots, batch in points
        for level in ("sample", "client")
    ]  # fmt: skip


def test_a_part_of_the_tradeoff_decides_no_claim() -> None:
    points = tradeoff.points_of(training_of("mnist"))
    claims = [claim for claim in CLAIMS if claim.section == "6.2.4"]
    assert {claim.found({"tradeoff": tradeoff_rows(points[:-1])})[1] for claim in claims} == {UNKNOWN}
    assert UNKNOWN not in {claim.found({"tradeoff": tradeoff_rows(points)})[1] for claim in claims}


def summary(method: str, seed: int, drop: float) -> dict[str, Any]:
    return {
        **dict.fromkeys(COLUMNS), "experiment": "performance", "dataset": "mnist", "kind": "summary", "level": "client",
        "method": method, "seed": seed, "accuracy": 0.9, "drop": drop, "recovery": 3,
    }  # fmt: skip


def test_only_seeds_that_both_methods_finished_are_compared() -> None:
    drops_less = next(claim for claim in CLAIMS if claim.says.startswith("Accuracy drops less"))
    rows = [summary("FATS", 1, 0.1), summary("FATS", 2, 0.9), summary("FRS", 1, 0.8)]
    assert drops_less.found({"performance": rows[:2]})[1] == UNKNOWN
    figure, verdict, _ = drops_less.found({"performance": rows})
    assert "0.10 against 0.80 (one run)" in figure
    assert verdict == "not decided"
    figure, verdict, _ = drops_less.found({"performance": [*rows, summary("FRS", 2, 0.95)]})
    assert "MNIST clients 0.50 against 0.88" in figure
    assert "2 runs" in figure
    assert verdict == "not decided"  # differences of -0.7 and of -0.05


def test_scales_are_not_mixed() -> None:
    found_rows = [{"dataset": "mnist", "scale": scale} for scale in ("small", "paper")]
    found_rows.append({"dataset": "digits", "scale": "smoke"})
    assert of_largest_scale(found_rows) == found_rows[1:]
