"""A command opens its run once: one reading of the plan, one federation, one rebuild of each database that changed.

A client's book changes only if the client joins, leaves or loses a sample, and first uses only if rounds change.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from fedforget.data.client_data import ClientData
from fedforget.federation.local import LocalFederation
from fedforget.store.books.books import Books
from tests.cli.commandline import PLAN, good, train
from tests.counting import counting

ROUNDS_ONLY = {
    "locked": 1, "opened": 1, "plan read": 1, "federation": 1, "learner": 1, "rebuilt server.db": 1,
    "rebuilt uses.db": 1, "rebuilt metrics.db": 1,
}  # fmt: skip
ONCE = {**ROUNDS_ONLY, "replaced a book": 1}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what the commands of a test do."""
    return counting(
        monkeypatch,
        (LocalFederation, "__init__", "federation"),
        (ClientData, "content", "sample hashed"),
        (Books, "_replacing", "replaced a book"),
    )


@pytest.mark.parametrize("level", [("--client", "1"), ("--client", "2", "--sample", "10")])
def test_forget_opens_the_run_once(tmp_path: Path, counted: Counter[str], level: tuple[str, ...]) -> None:
    train(tmp_path / "run")
    client = level[1]
    sample = good("clients", tmp_path / "run", "--client", client).out.split()[0]
    counted.clear()
    target = ("--client", client) if len(level) == 2 else ("--client", client, "--sample", sample)
    done = good("forget", tmp_path / "run", *target, "--basis", "exogenous", "--federation", "inline", "--json")
    assert counted.pop("sample hashed", 0) <= 1437
    recomputed = json.loads(done.out)["receipts"][0]["recomputed_steps"]
    assert counted == Counter(
        ONCE | dict.fromkeys(("learner", "rebuilt uses.db", "rebuilt metrics.db"), int(recomputed > 0))
    )


def test_run_pending_and_add_open_the_run_once(tmp_path: Path, counted: Counter[str]) -> None:
    run, back = tmp_path / "run", tmp_path / "back.csv"
    train(run)
    good("forget", run, "--client", "3", "--defer", "--basis", "exogenous")
    counted.clear()
    good("run-pending", run, "--federation", "inline")
    counted.pop("sample hashed", 0)
    assert counted == ONCE
    back.write_text('{"client": 3}\n')
    counted.clear()
    good("add", run, "--from", back, "--returning", "--seed", "7", "--basis", "exogenous", "--federation", "inline")
    counted.pop("sample hashed")
    assert counted == ONCE


def test_resuming_opens_the_run_once(tmp_path: Path, counted: Counter[str]) -> None:
    train(tmp_path / "run", "--until-round", "2")
    counted.clear()
    good("train", tmp_path / "run", "--federation", "inline")
    counted.pop("sample hashed")
    assert counted == ROUNDS_ONLY


def test_a_fresh_run_is_opened_once_and_hashes_each_sample_once(tmp_path: Path, counted: Counter[str]) -> None:
    good("train", *PLAN, "--out", tmp_path / "run", "--federation", "inline")
    assert counted["sample hashed"] == 1437
    assert (counted["opened"], counted["plan read"], counted["federation"], counted["learner"]) == (1, 1, 1, 1)


def test_defer_and_status_open_the_run_once_and_build_no_learner(tmp_path: Path, counted: Counter[str]) -> None:
    train(tmp_path / "run")
    for arguments in (("forget", tmp_path / "run", "--client", "1", "--defer"), ("status", tmp_path / "run")):
        counted.clear()
        good(*arguments)
        assert (counted["opened"], counted["plan read"]) == (1, 1)
        assert (counted["federation"], counted["learner"], counted["sample hashed"]) == (0, 0, 0)
