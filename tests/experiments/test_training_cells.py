"""The experiments that train, on digits: their rows say what happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedforget import LocalOptimizer
from fedforget.baselines.fats import Fats
from fedforget.baselines.fedavg import FedAvg
from fedforget.baselines.frs import Frs
from fedforget.data.digits import Digits
from fedforget.experiments import accuracy, datasets, performance, streaming, tradeoff
from fedforget.experiments.cells import Choice
from fedforget.experiments.comparison import law_of_requests
from fedforget.experiments.family import law_of_time
from fedforget.experiments.life_tables import lives_table, models_sent, plans_table
from fedforget.experiments.pairs import before_unlearning
from fedforget.experiments.presets import PRESETS
from fedforget.experiments.problems import (
    build_problem,
    choose_requests,
    datasets_of,
    halved,
    training_of,
    training_samples,
)
from fedforget.experiments.rows import COLUMNS
from fedforget.experiments.settings import EFFICIENCY
from fedforget.experiments.tables import family_of
from fedforget.session.workforce import Workforce

CHOICE = Choice("smoke", 1)
Rows = list[dict[str, Any]]


def rows_of(module: Any, choice: Choice = CHOICE) -> Rows:
    return [{**dict.fromkeys(COLUMNS), **row} for cell in module.cells(choice) for row in cell.compute()]


@pytest.fixture(scope="module")
def lived() -> Rows:
    return rows_of(performance)


def test_performance_has_curves_key_points_and_a_summary_for_each_method_and_level(lived: Rows) -> None:
    kinds = {(row["method"], row["level"], row["kind"]) for row in lived}
    for method in ("FATS", "FRS"):
        for level in ("sample", "client"):
            for kind in ("learned", "removed", "learned again", "before", "lowest", "end", "summary"):
                assert (method, level, kind) in kinds


def test_rounds_computed_reach_the_horizon(lived: Rows) -> None:
    for row in lived:
        if row["kind"] == "summary":
            assert row["rounds_computed"] >= training_of("digits").plan.rounds


def test_every_method_ends_at_the_model_of_round_r(lived: Rows) -> None:
    """FRS computes all of it again; a method that stopped earlier could not be compared."""
    plan = training_of("digits").plan
    ends = [row for row in lived if row["kind"] == "end"]
    assert {row["round"] for row in ends} == {plan.rounds}
    assert {row["rounds_computed"] for row in ends if row["method"] == "FRS"} == {30 + plan.rounds}
    assert [line[lives_table(lived).header.index("end")] for line in lives_table(lived).rows] == pytest.approx(
        [row["accuracy_full"] for row in ends]
    )
    older = [{**row, "round": None} if row["kind"] == "end" else row for row in lived]
    assert all(np.isnan(line[lives_table(older).header.index("end")]) for line in lives_table(older).rows)
    assert "4 runs of an earlier version" in lives_table(older).note


def test_seconds_of_a_cell_include_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_000_000))
    monkeypatch.setattr("fedforget.experiments.comparison.time.monotonic", lambda: next(clock))
    cell = next(iter(performance.cells(CHOICE)))
    found = [row["seconds"] for row in cell.compute() if row["kind"] == "summary"]
    assert found == [1.5, 1.5]  # half of the common training each, and its own


def test_methods_learn_the_same_until_the_request_at_both_levels(lived: Rows) -> None:
    curves: dict[tuple[str, str], list[float]] = {}
    for row in lived:
        if row["kind"] == "learned":
            curves.setdefault((row["method"], row["level"]), []).append(row["accuracy"])
    assert curves["FATS", "sample"] == curves["FATS", "client"]
    assert curves["FATS", "sample"] != curves["FRS", "sample"]


def test_the_pool_gives_the_same_rows(lived: Rows) -> None:
    pooled = rows_of(performance, Choice("smoke", 1, workforce=Workforce("pool", 2)))
    clock = {"seconds"}
    assert [{k: v for k, v in row.items() if k not in clock} for row in pooled] == [
        {k: v for k, v in row.items() if k not in clock} for row in lived
    ]


def test_streaming_stops_at_its_horizon_and_has_three_arrivals() -> None:
    rows = rows_of(streaming)
    horizon, arrivals = training_of("digits").streaming_horizon, list(training_of("digits").streaming_rounds)
    for method in ("FATS", "FRS"):
        of_method = [row for row in rows if row["method"] == method and row["level"] == "client"]
        assert [row["rounds_computed"] for row in of_method if row["kind"] == "removed"] == arrivals
        assert max(row["rounds_computed"] for row in of_method if row["kind"] == "learned again") == horizon


def test_each_arrival_of_a_stream_has_its_cost_and_the_first_its_law() -> None:
    rows = rows_of(streaming)
    for method in ("FATS", "FRS"):
        of_method = [row for row in rows if row["method"] == method and row["level"] == "sample"]
        arrived = [row for row in of_method if row["kind"].startswith("arrival")]
        assert [row["rounds_computed"] for row in arrived] == list(training_of("digits").streaming_rounds)
        assert [row["theory_steps"] is None for row in arrived] == [False, True, True]
        total = next(row["steps"] for row in of_method if row["kind"] == "summary")
        assert sum(row["steps"] for row in arrived) == total
    found = family_of(rows)  # FATS's first arrival, samples and clients: one run of each can't fail
    assert (found.points, found.untestable) == (0, 2)


def test_the_law_of_several_requests_has_the_planners_expectation() -> None:
    problem = build_problem(training_of("digits"), 1, CHOICE)
    plan = problem.plan
    for level in ("sample", "client"):
        requests = choose_requests(problem, level, 3, 1)
        law = law_of_requests(problem, requests, 20)
        change = law_of_requests(problem, requests, 1)["theory_steps"] / plan.local_steps
        assert law["theory_steps"] == pytest.approx(law_of_time(change, 20, plan.local_steps)[0])
        assert law["variance"] == pytest.approx(law_of_time(change, 20, plan.local_steps)[1])
        assert law["largest"] == 20 * plan.local_steps


def test_bytes_follow_from_the_different_clients_of_a_round() -> None:
    assert models_sent({"M": 2, "K": 2}) == pytest.approx(0.75)  # one client with 1/2, two with 1/2
    assert models_sent({"M": 300, "K": 1}) == pytest.approx(1.0)


def test_plans_state_rho_at_the_requests_and_at_the_horizon(lived: Rows) -> None:
    header, line = plans_table(lived).header, plans_table(lived).rows[0]
    plan = dict(zip(header, line, strict=True))
    assert (plan["requests at rounds"], plan["horizon R"]) == ("30", 50)
    assert plan["ρ_C at the first requests"] == pytest.approx(3 * 30 / 60)
    assert plan["ρ_C at R"] == pytest.approx(3 * 50 / 60)
    assert plan["optimisers"] == "lr 0.3, momentum 0.5"


def test_tradeoff_times_are_those_of_the_first_uses() -> None:
    training = training_of("digits").with_plan(rounds=10)
    problem = build_problem(training, 1, CHOICE)
    method = Fats(problem)
    method.learn(10)
    plan, members = problem.plan, problem.data.members()
    by_hand = []
    for client in members:
        first = method.first_rounds().get(client)
        by_hand.append(0 if first is None else (10 - first + 1) * plan.local_steps)
    assert tradeoff.times(problem, method, "client")["steps"] == pytest.approx(np.mean(by_hand))
    found = tradeoff.times(problem, method, "sample")
    assert 0 < found["steps"] < tradeoff.times(problem, method, "client")["steps"]
    assert found["theory_steps"] == pytest.approx(found["steps"], rel=0.5)


def test_measured_times_of_the_tradeoff_agree_with_theory_and_half_of_them_would_not() -> None:
    rows = rows_of(tradeoff, Choice("paper", 5, ("digits",)))
    assert family_of(rows).agrees
    halves = [{**row, "steps": row["steps"] / 2} for row in rows]
    assert not family_of(halves).agrees


def test_the_table_of_datasets_has_the_printed_rho() -> None:
    rows = rows_of(datasets, Choice("smoke", 1))
    realised = {row["dataset"]: (row["rho_c"], row["rho_s"]) for row in rows if row["kind"] == "printed"}
    assert realised["mnist"] == (0.5, 0.25)
    assert realised["femnist"] == pytest.approx((0.492, 0.431), abs=0.001)
    assert realised["shakespeare"] == pytest.approx((0.909, 0.979), abs=0.001)
    assert len(realised) == 6


def test_lines_of_the_efficiency_figures_end_where_rho_reaches_one() -> None:
    for grid in EFFICIENCY.values():
        for clients in grid.clients:
            for slots, batch in grid.points(clients):
                assert grid.rho_c(slots, clients) <= 1
                assert grid.level == "client" or grid.rho_s(slots, batch, clients) <= 1
    published = EFFICIENCY["shakespeare sample R=50"].points(660)
    assert max(slots for slots, batch in published if batch == 60) == 12
    assert max(slots for slots, batch in published if batch == 80) == 8


def test_small_halves_the_rounds() -> None:
    training = training_of("mnist")
    assert halved(training, "paper") is training
    small = halved(training, "small")
    assert (small.plan.rounds, small.request_round) == (25, 15)


def test_smoke_takes_digits_and_other_scales_do_not() -> None:
    assert datasets_of(CHOICE, ("mnist",)) == ["digits"]
    assert datasets_of(Choice("paper", 1, ("digits",)), ("mnist",)) == ["digits"]


def paired(experiment: str, other: str, pairs: list[tuple[float, float]]) -> Rows:
    return [
        {**dict.fromkeys(COLUMNS), "experiment": experiment, "kind": "summary", "level": "client", "method": method,
         "seed": seed, "accuracy": value}
        for seed, values in enumerate(pairs)
        for method, value in zip(("FATS", other), values, strict=True)
    ]  # fmt: skip


def test_the_paired_difference_has_a_t_interval() -> None:
    found = before_unlearning(paired("performance", "FRS", [(0.5, 0.4), (0.6, 0.4), (0.7, 0.4)]))
    assert found is not None
    assert found.difference.runs == 3
    assert found.difference.mean == pytest.approx(0.2)
    assert found.difference.half == pytest.approx(4.303 * 0.1 / np.sqrt(3))


def test_rows_of_the_accuracy_experiment_come_before_those_of_performance() -> None:
    performed = paired("performance", "FRS", [(0.5, 0.4), (0.6, 0.4)])
    alone = before_unlearning(performed)
    both = before_unlearning(performed + paired("accuracy", "FedAvg", [(0.5, 0.6), (0.6, 0.6), (0.7, 0.6)]))
    assert alone is not None
    assert both is not None
    assert (alone.source, both.source, both.difference.runs) == ("performance", "accuracy", 3)
    assert both.difference.mean == pytest.approx(0.0)
    assert before_unlearning(performed[:1]) is None


@pytest.fixture(scope="module")
def before() -> Rows:
    return rows_of(accuracy)


def test_accuracy_before_unlearning_is_that_of_performance_before_its_requests(before: Rows, lived: Rows) -> None:
    """The same trainings under the same seeds; FRS learns as FedAvg does."""
    found = {row["method"]: row["accuracy"] for row in before}
    summaries = {row["method"]: row["accuracy"] for row in lived if row["kind"] == "summary"}
    assert found["FATS"] == summaries["FATS"] != summaries["FRS"] == found["FedAvg"]
    assert set(found) == {"FATS", "FedAvg", accuracy.LINEAR, accuracy.LINEAR_BY_FATS}
    assert {row["round"] for row in before if row["method"] == "FATS"} == {training_of("digits").request_round}
    assert all(len(row["model_digest"]) == 64 for row in before)


def test_the_central_linear_model_is_the_stronger_reference(before: Rows) -> None:
    found = {row["method"]: row["accuracy_full"] for row in before}
    assert found[accuracy.LINEAR] > found[accuracy.LINEAR_BY_FATS] > 0.5


def test_the_central_linear_model_takes_every_training_sample_once() -> None:
    x, y = training_samples("digits", 1, CHOICE)
    assert x.shape == (len(y), 64)
    assert len(y) == Digits().counts[0] == sum(build_problem(training_of("digits"), 1, CHOICE).data.sizes())


def test_each_method_trains_with_the_optimiser_tuned_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = LocalOptimizer(lr=0.3)
    monkeypatch.setitem(PRESETS, "mnist", replace(PRESETS["mnist"], tuned_fedavg=own))
    assert training_of("mnist", FedAvg).plan.local == training_of("mnist", Frs).plan.local == own
    assert training_of("mnist", Fats).plan.local == training_of("mnist").plan.local == PRESETS["mnist"].tuned != own


@pytest.mark.parametrize(
    ("experiment", "dataset", "runs"),
    [
        ("accuracy", "mnist", 20),
        ("accuracy", "fashion-mnist", 5),
        ("accuracy", "femnist", 1),
        ("performance", "femnist-writers", 5),
        ("performance", "femnist", 1),
        ("streaming", "mnist", 5),
        ("streaming", "femnist", 1),
        ("tradeoff", "mnist", 3),
        ("efficiency", "femnist", 5),
    ],
)
def test_the_number_of_seeds_depends_on_experiment_and_dataset(experiment: str, dataset: str, runs: int) -> None:
    assert list(Choice("paper").seeds(experiment, dataset)) == list(range(1, runs + 1))
    assert len(Choice("paper", 7).seeds(experiment, dataset)) == 7
    assert len(Choice("small").seeds(experiment, dataset)) == -(-runs // 2)
    assert len(Choice("smoke").seeds(experiment, dataset)) == 1


@pytest.mark.parametrize(
    ("dataset", "horizon", "rho_c"), [("mnist", 100, 1.67), ("femnist", 120, 0.17), ("femnist-writers", 120, 1.64)]
)
def test_streaming_has_the_published_horizon_and_arrivals(dataset: str, horizon: int, rho_c: float) -> None:
    training, arrivals = streaming.scheduled(training_of(dataset))
    assert (training.plan.rounds, arrivals) == (horizon, (20, 40, 60))
    assert training.plan.realised_rho_c(PRESETS[dataset].clients or 146) == pytest.approx(rho_c, abs=0.005)


@pytest.mark.parametrize(
    ("dataset", "at_requests", "at_horizon"),
    [("mnist", 0.5, 0.83), ("fashion-mnist", 0.83, 1.25), ("femnist", 0.49, 0.70)],
)
def test_performance_has_the_published_horizons(dataset: str, at_requests: float, at_horizon: float) -> None:
    training = training_of(dataset)
    clients = PRESETS[dataset].clients or 0
    assert training.plan.realised_rho_c(clients) == pytest.approx(at_horizon, abs=0.005)
    at = training.with_plan(rounds=training.request_round).plan
    assert at.realised_rho_c(clients) == pytest.approx(at_requests, abs=0.005)
