"""Claims are judged from rows: never without them, and differently if the rows differ."""

from __future__ import annotations

import pytest

from fedforget.experiments import efficiency, requests
from fedforget.experiments.cells import Choice
from fedforget.experiments.claims import CLAIMS, Claim, family_words
from fedforget.experiments.rows import COLUMNS
from fedforget.experiments.verdicts import BY_THEORY, CONDITION, FAILS, HOLDS, OPEN, UNKNOWN

BY_NAME = {claim.says: claim for claim in CLAIMS}
HALF = BY_NAME["One client: at most half of FRS's time"]
AS_ACCURATE = BY_NAME["Before unlearning FATS is as accurate as FedAvg (no worse than one point)"]


def rows() -> dict[str, list[dict]]:
    choice = Choice("smoke", 1, ("shakespeare",))
    return {
        module.NAME: [{**dict.fromkeys(COLUMNS), **row} for cell in module.cells(choice) for row in cell.compute()]
        for module in (efficiency, requests)
    }


def test_without_rows_nothing_is_claimed() -> None:
    assert {claim.found({}) for claim in CLAIMS} == {("-", UNKNOWN, ())}


def test_claims_about_draws_are_judged_from_draws_alone() -> None:
    found = {claim.says: claim.found(rows_)[1] for rows_ in [rows()] for claim in CLAIMS}
    assert found["One client: at most half of FRS's time"].startswith(CONDITION)
    assert found["One sample: less time than FRS"] == HOLDS + BY_THEORY
    assert found["One client: more time for larger K"] == HOLDS + BY_THEORY
    assert found["Time rises with the number of requests"] == HOLDS + BY_THEORY
    assert found[AS_ACCURATE.says] == UNKNOWN


def test_other_rows_give_another_verdict() -> None:
    results = rows()
    for row in results["efficiency"]:
        row["theory_steps"] *= 3
    assert HALF.found(results)[1] == FAILS + BY_THEORY
    for row in results["efficiency"]:
        row["theory_steps"] = -row["theory_steps"]
    assert BY_NAME["One client: more time for larger K"].found(results)[1] == FAILS + BY_THEORY


def test_digits_decide_no_claim() -> None:
    row = {**dict.fromkeys(COLUMNS), "dataset": "digits", "kind": "summary", "level": "client", "seed": 1,
           "accuracy": 0.5, "drop": 0.1}  # fmt: skip
    lived = {"performance": [{**row, "method": method} for method in ("FATS", "FRS")]}
    assert AS_ACCURATE.found(lived)[1] == UNKNOWN


def measured(dataset: str, fats: list[float], fedavg: list[float], linear: float) -> list[dict]:
    values = {"FATS": fats, "FedAvg": fedavg, "linear, central": [linear]}
    return [
        {**dict.fromkeys(COLUMNS), "experiment": "accuracy", "kind": "accuracy", "dataset": dataset, "method": method,
         "seed": seed, "accuracy": value}
        for method, found in values.items()
        for seed, value in enumerate(found, start=1)
    ]  # fmt: skip


FEDAVG = [0.94, 0.95, 0.93]


@pytest.mark.parametrize(
    ("fats", "linear", "verdict"),
    [
        ([0.939, 0.951, 0.931], 0.92, HOLDS),
        ([0.90, 0.911, 0.889], 0.8, FAILS),
        ([0.95, 0.92, 0.93], 0.8, OPEN),  # the interval holds the goal
        ([0.95], 0.8, OPEN),  # one pair has no interval
        ([0.939, 0.951, 0.931], 0.945, OPEN),  # a linear model is better: it does not count
    ],
)
def test_accuracy_is_decided_only_where_the_interval_and_the_linear_model_allow_it(
    fats: list[float], linear: float, verdict: str
) -> None:
    assert AS_ACCURATE.found({"accuracy": measured("mnist", fats, FEDAVG, linear)})[1] == verdict


def lived(**columns: object) -> dict:
    return {**dict.fromkeys(COLUMNS), "experiment": "performance", "dataset": "mnist", "level": "client", **columns}


def test_exactness_is_judged_by_digests() -> None:
    exact = BY_NAME["FATS unlearns exactly"]
    rows_ = [lived(kind="summary", method="FATS", model_digest="a", retrained_digest=digest) for digest in "aa"]
    assert exact.found({"performance": rows_})[:2] == (
        "2 of 2 unlearned models have the bytes of one trained without the data", HOLDS
    )  # fmt: skip
    rows_[0]["retrained_digest"] = "b"
    assert exact.found({"performance": rows_})[1] == FAILS


@pytest.mark.parametrize(("fats", "verdict"), [((0.6, 0.7), HOLDS), ((0.2, 0.3), FAILS), ((0.2, 0.7), OPEN)])
def test_a_method_that_learns_later_has_a_lower_mean(fats: tuple[float, float], verdict: str) -> None:
    rows_ = [lived(kind="learned", method=method, seed=seed, round=round_, accuracy=values[seed - 1] * round_)
             for method, values in (("FATS", fats), ("FRS", (0.5, 0.6)))
             for seed in (1, 2) for round_ in (1, 2)]  # fmt: skip
    assert BY_NAME["FATS learns as fast as FedAvg"].found({"performance": rows_})[1] == verdict


def test_one_dataset_that_is_not_decided_makes_a_condition() -> None:
    rows_ = measured("mnist", FEDAVG, FEDAVG, 0.9) + measured("fashion-mnist", FEDAVG[:1], FEDAVG, 0.8)
    assert AS_ACCURATE.found({"accuracy": rows_})[1] == f"{CONDITION}: MNIST; elsewhere not decided"


@pytest.fixture(scope="module")
def computed() -> dict[str, list[dict]]:
    return rows()


def changed(results: dict[str, list[dict]], factor: float | None) -> dict[str, list[dict]]:
    return {name: [{**row, "theory_steps": None if factor is None else factor * row["theory_steps"]} for row in each]
            for name, each in results.items()}  # fmt: skip


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.section in ("6.2.2", "6.2.3")])
def test_claims_about_time_are_not_decided_without_exact_expectations(claim: Claim, computed: dict) -> None:
    assert claim.found(changed(computed, None))[1] == OPEN


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.says.startswith("Time rises")])
def test_times_that_fall_with_requests_or_slots_are_no_rise(claim: Claim, computed: dict) -> None:
    assert claim.found(computed)[1] == HOLDS + BY_THEORY
    assert claim.found(changed(computed, -1.0))[1] == FAILS + BY_THEORY


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (0.04, HOLDS + BY_THEORY),  # ten requests cost 0.4 of FRS
        (0.1, f"{CONDITION}: up to 5 at once{BY_THEORY}"),
        (0.3, FAILS + BY_THEORY),
        (1.5, FAILS + BY_THEORY),
    ],
)
def test_several_requests_are_cheap_only_while_some_slots_stay_far_below_retraining(share: float, verdict: str) -> None:
    found = [
        {**dict.fromkeys(COLUMNS), "experiment": "requests", "dataset": "femnist", "group": "femnist", "seed": 1,
         "method": "FATS", "kind": "at once", "K": slots, "requests": count, "R": 10, "E": 10, "count": 1,
         "theory_steps": 100 * share * count * slots / 2}
        for slots in (2, 4) for count in range(1, 11)
    ]  # fmt: skip
    assert BY_NAME["For suitable K, several requests stay far below FRS"].found({"requests": found})[1] == verdict


def test_the_page_states_the_false_alarm_rate_of_all_verdicts() -> None:
    rows_ = measured("mnist", FEDAVG, FEDAVG, 0.9) + measured("fashion-mnist", [0.1, 0.5, 0.9], FEDAVG, 0.05)
    text = family_words({AS_ACCURATE: AS_ACCURATE.found({"accuracy": rows_})})
    assert "2 intervals of 95 %" in text
    assert "0.1 of them would be decided by mistake on average" in text
    assert "at most 0.10. 1 are decided, each on its own; 1 stay decided" in text
    assert "no verdict" in family_words({}).lower()
