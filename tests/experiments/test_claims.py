"""Claims are judged from rows: never without them, and differently if the rows differ."""

from __future__ import annotations

from fedforget.experiments import efficiency, requests
from fedforget.experiments.cells import Choice
from fedforget.experiments.claims import CLAIMS, CONDITION, FAILS, HOLDS, UNKNOWN
from fedforget.experiments.rows import COLUMNS

BY_NAME = {claim.says: claim for claim in CLAIMS}
HALF = BY_NAME["One client: at most half of FRS's time"]


def rows() -> dict[str, list[dict]]:
    choice = Choice("smoke", 1, ("shakespeare",))
    return {
        module.NAME: [{**dict.fromkeys(COLUMNS), **row} for cell in module.cells(choice) for row in cell.compute()]
        for module in (efficiency, requests)
    }


def test_without_rows_nothing_is_claimed() -> None:
    assert {claim.found({}) for claim in CLAIMS} == {("-", UNKNOWN)}


def test_claims_about_draws_are_judged_from_draws_alone() -> None:
    found = {claim.says: claim.found(rows_)[1] for rows_ in [rows()] for claim in CLAIMS}
    assert found["One client: at most half of FRS's time"].startswith(CONDITION)
    assert found["One sample: less time than FRS"] == HOLDS
    assert found["One client: more time for larger K"] == HOLDS
    assert found["Time rises with the number of requests"] == HOLDS
    assert found["Before unlearning FATS is as accurate as FedAvg"] == UNKNOWN


def test_other_rows_give_another_verdict() -> None:
    results = rows()
    for row in results["efficiency"]:
        row["theory_steps"] *= 3
    assert HALF.found(results)[1] == FAILS
    for row in results["efficiency"]:
        row["theory_steps"] = -row["theory_steps"]
    assert BY_NAME["One client: more time for larger K"].found(results)[1] == FAILS


def test_digits_decide_no_claim() -> None:
    row = {**dict.fromkeys(COLUMNS), "dataset": "digits", "kind": "summary", "level": "client", "seed": 1,
           "accuracy": 0.5, "drop": 0.1}  # fmt: skip
    lived = {"performance": [{**row, "method": method} for method in ("FATS", "FRS")]}
    assert BY_NAME["Before unlearning FATS is as accurate as FedAvg"].found(lived)[1] == UNKNOWN
