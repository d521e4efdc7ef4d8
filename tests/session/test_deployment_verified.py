"""Verification through clients: each replays its own part, and the server checks what is its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedforget import Request
from fedforget.store import run_directory
from tests.helpers import take_off_seals
from tests.session.deployed import Deployed
from tests.store.test_checks import alter


@pytest.fixture
def there(tmp_path: Path) -> Deployed:
    made = Deployed(tmp_path / "run")
    made.train()
    return made


def drawn_client(there: Deployed) -> int:
    return next(client for client in range(5) if there.memory.first_steps(client))


def test_run_is_replayed_by_its_clients(there: Deployed) -> None:
    before = {path.name: path.read_bytes() for path in there.path.iterdir() if path.is_file()}
    found = there.verify()
    assert (found.ok, found.problems) == (True, [])
    assert (found.rounds_replayed, found.models_compared, found.bitwise_equal) == (6, 6, True)
    assert {path.name: path.read_bytes() for path in there.path.iterdir() if path.is_file()} == before


def test_run_that_forgot_is_replayed_by_its_clients(there: Deployed) -> None:
    there.withdraw(4, 2)
    there.run_pending()
    there.forget(Request(2))
    assert there.verify().ok


def test_model_that_no_round_gives_is_found(there: Deployed) -> None:
    with run_directory.reading(there.path) as run:
        kept = run.server.kept()
    take_off_seals(there.path)
    alter(there.path, "server.db", f"UPDATE rounds SET model = '{kept[3]}' WHERE round = 4")
    found = there.verify()
    assert not found.ok
    assert "the model of round 4 differs from its replay" in found.problems


def test_client_that_noted_something_else_is_named(there: Deployed) -> None:
    client = drawn_client(there)
    sample = next(iter(there.memory.first_steps(client)))
    there.memory._first[client][sample] += 1
    found = there.verify()
    assert not found.ok
    assert f"client {client} holds other samples or notes than the server knows of" in found.problems


def test_client_whose_witness_is_another_is_named(there: Deployed) -> None:
    client = drawn_client(there)
    round_ = next(iter(there.memory.witnesses(client)))
    there.memory._witnesses[client][round_] = bytes(len(there.memory.witnesses(client)[round_]))
    with run_directory.writing(there.path) as run:  # the server was told so
        standing = there.ledger(client).standing()
        run.remote.held.hear(client, (standing.root or b"", standing.notes or b""))
        run.server.rewind(run.server.rounds_done, ())
    found = there.verify()
    assert not found.ok
    assert f"what client {client} noted of round {round_} is not what its replay gives" in found.problems


def test_client_that_does_not_answer_is_named(there: Deployed) -> None:
    there.silence(3)
    found = there.verify()
    assert not found.ok
    assert found.problems == ["client 3 did not answer"]
