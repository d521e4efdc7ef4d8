"""Figures, tables and the page of results are right at any moment of a long computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedforget.experiments import tradeoff
from fedforget.experiments.cells import Choice
from fedforget.experiments.claims import CLAIMS
from fedforget.experiments.coverage import ABSENT, COMPLETE, PARTLY, coverage_table
from fedforget.experiments.draw_training import _lives, _mean_run, _pieces, _tradeoff
from fedforget.experiments.drawing import METHOD_COLOURS, WIDTH
from fedforget.experiments.problems import training_of
from fedforget.experiments.published import OURS, Published
from fedforget.experiments.report import settings_table
from fedforget.experiments.reproduce import EXPERIMENTS, _with_scale, redraw
from fedforget.experiments.results import write_results
from fedforget.experiments.rows import COLUMNS, ResultsFile, of_largest_scale, read_rows
from fedforget.experiments.tables import Table, seeds_table
from fedforget.experiments.verdicts import UNKNOWN

SMOKE = Choice("smoke")
RESULTS = Path(__file__).parents[2] / "docs" / "results"
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


def test_the_mean_of_runs_keeps_the_last_value_of_one_that_has_ended() -> None:
    """A mean over fewer runs would be of another kind, and one that stops early misleads."""
    short = [{1: 0.1, 2: 0.5}, {2: 0.3, 3: 0.7}]
    long = [{1: 0.3, 2: 0.7}, {2: 0.1, 3: 0.1, 4: 0.5}]
    assert _mean_run([short, long]) == [
        pytest.approx({1: 0.2, 2: 0.6}), pytest.approx({2: 0.2, 3: 0.4, 4: 0.6})
    ]  # fmt: skip


def test_runs_are_cut_where_data_are_removed() -> None:
    kinds = (("learned", 1, 0.5), ("learned", 2, 0.6), ("removed", 2, 0.2), ("learned again", 3, 0.4))
    rows = [{"kind": kind, "rounds_computed": at, "accuracy": value} for kind, at, value in kinds]
    assert _pieces(rows) == [{1: 0.5, 2: 0.6}, {2: 0.2, 3: 0.4}]


def drawn(name: str, published: Published) -> list[Any]:
    """The figures of the committed results, each as matplotlib has it."""
    rows = read_rows(RESULTS / f"{name}.csv")
    chosen = [row for row in rows if row["dataset"] == "mnist"]
    return [{"performance": _lives, "tradeoff": _tradeoff}[name](chosen, published)]


@pytest.mark.parametrize("name", ["performance", "tradeoff"])
def test_figures_have_one_width_and_published_lines_have_a_method_of_their_colour(name: str) -> None:
    for figure in drawn(name, Published(OURS)):
        assert figure.get_figwidth() == WIDTH
        names = {text.get_text(): line.get_color() for text, line in
                 zip(figure.legends[0].get_texts(), figure.legends[0].get_lines(), strict=True)}  # fmt: skip
        assert names["FATS, published"] == METHOD_COLOURS["FATS"]
        dashed = [line for axes in figure.axes for line in axes.get_lines() if line.get_zorder() == 1.5]
        assert dashed
        assert {line.get_color() for line in dashed} <= set(METHOD_COLOURS.values())
        assert not drawn_published(drawn(name, Published())[0])


def drawn_published(figure: Any) -> list[Any]:
    return [line for axes in figure.axes for line in axes.get_lines() if line.get_zorder() == 1.5]


def test_every_run_is_drawn_and_requests_are_named_in_the_title() -> None:
    figure = drawn("performance", Published())[0]
    thin = [line for line in figure.axes[0].get_lines() if line.get_linewidth() < 1]
    assert len([line for line in thin if line.get_linestyle() == "-"]) >= 2 * 5 * 2  # methods, seeds, pieces
    assert figure.axes[0].get_title() == "forgetting 10 samples at round 30"


def test_titles_of_many_small_datasets_are_short() -> None:
    rows = [{"dataset": name, "scale": "smoke"} for name in ("mnist", "cifar-10", "femnist")]
    assert _with_scale(Table("T", (), []), rows).title == "T (3 datasets at smoke scale)"
    assert _with_scale(Table("T", (), []), rows[:1]).title == "T (mnist at smoke scale)"


def test_the_report_has_claims_and_no_half_empty_columns(tmp_path: Path) -> None:
    row = {**summary("FATS", 1, 0.1), "scale": "paper", "M": 300, "N": 200, "K": 5, "b": 10, "E": 10, "R": 50,
           "rho_c": 0.8, "rho_s": 0.4, "requests": 10}  # fmt: skip
    curve = [{**row, "kind": kind, "rounds_computed": 30, "round": 30} for kind in ("learned", "removed", "end",
             "before", "lowest")]  # fmt: skip
    ResultsFile(tmp_path / "performance.csv").append("a", [row, *curve])
    (tmp_path / "settings.json").write_text('{"a": {"finished": "2026-01-01"}, "b": {"last run": "2026-01-02"}}')
    redraw(tmp_path, Published())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Claim by claim" in page
    assert "Accuracy drops less with FATS" in page
    assert settings_table(tmp_path).header == ("experiment", "last run")
    assert [line[1] for line in settings_table(tmp_path).rows] == ["2026-01-01", "2026-01-02"]


def test_seeds_of_datasets_without_runs_are_not_listed() -> None:
    none = {**dict.fromkeys(COLUMNS), "experiment": "datasets", "dataset": "mnist", "scale": "paper"}
    assert not seeds_table({"datasets": [none]}).rows
