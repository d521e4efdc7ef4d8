"""A run whose clients are on other machines: its states are those of one process, whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedforget import Request
from fedforget.algorithm.ids import Id
from fedforget.errors import ClientUnreachable, InvalidInput
from fedforget.evidence.receipts.envelope import unseal
from fedforget.evidence.receipts.issue import issue
from fedforget.evidence.receipts.proofs import Proof, Target, absence_problem
from fedforget.evidence.receipts.receipt_key import read_public_key
from fedforget.evidence.receipts.shape import require_shape
from fedforget.requests.lifecycle import Basis
from fedforget.store import run_directory
from fedforget.store.names import PUBLIC_KEY
from tests.requests.world import DATA, PLAN, opened
from tests.session.deployed import Deployed


def inline(path: Path, *without: Request, data: Any = DATA, until: int | None = None) -> str:
    """The digest of a run in one process that never had some of the data."""
    run = opened(path, without=without, data=data)
    if until != 0:
        run.train(until)
    return run.state_digest()


@pytest.fixture
def there(tmp_path: Path) -> Deployed:
    return Deployed(tmp_path / "run")


def used(there: Deployed, client: Id) -> Id:
    """A sample of a client that was used late."""
    steps = there.memory.first_steps(client)
    return max(steps, key=lambda sample: steps[sample])


def test_new_run_has_the_state_of_one_process(there: Deployed, tmp_path: Path) -> None:
    assert there.digest() == inline(tmp_path / "inline", until=0)


@pytest.mark.parametrize("until", [1, 3, 6])
def test_trained_run_has_the_state_of_one_process(there: Deployed, tmp_path: Path, until: int) -> None:
    assert there.train(until).rounds_done == until
    assert there.digest() == inline(tmp_path / "inline", until=until)


def test_run_directory_holds_no_books(there: Deployed) -> None:
    there.train()
    names = {path.name for path in there.path.iterdir()}
    assert names >= {"server.db", "contacts.db", "metrics.db", "record.db", "seals", "plan.toml"}
    assert not any(name == "uses.db" or name.endswith(".book") for name in names)


def test_roster_is_listed_without_sizes(there: Deployed) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedforget", "clients", str(there.path), "--json"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["clients"] == [{"client": client, "samples": None} for client in DATA]


def test_reading_samples_of_deployed_run_is_refused_with_the_client_command(there: Deployed) -> None:
    with (
        run_directory.reading(there.path) as run,
        pytest.raises(InvalidInput, match="on their own machines") as refused,
    ):
        _ = run.clients
    assert "fedforget client status" in refused.value.hint
    with pytest.raises(InvalidInput, match="only client 3 knows its samples") as refused:
        there.forget(Request(3, 1))
    assert "fedforget client forget --state-dir DIR --sample 1" in refused.value.hint


# --------------------------------------------------------------------------------------------------- whole clients


@pytest.mark.parametrize("until", [0, 2, 6])
def test_forgotten_client_leaves_no_trace(there: Deployed, tmp_path: Path, until: int) -> None:
    there.train(until)
    (receipt,) = there.forget(Request(3))
    assert (receipt.state, receipt.client) == ("purged", 3)
    there.train()
    assert there.digest() == inline(tmp_path / "never", Request(3))
    assert 3 not in there.memory.commitments()
    assert there.status().undelivered == 0
    with run_directory.reading(there.path) as run:
        assert 3 not in run.remote.contacts.enrolled()
        assert 3 not in run.remote.contacts.nodes


def test_client_that_leaves_by_itself_is_erased(there: Deployed, tmp_path: Path) -> None:
    there.train()
    handle = there.withdraw(2, whole=True)
    there.train()
    assert there.digest() == inline(tmp_path / "never", Request(2))
    assert there.ledger(2).finished.keys() == {handle}
    assert [receipt.level for receipt in there.receipts()] == ["client"]


def test_last_client_withdraws_the_model(there: Deployed) -> None:
    there.train(2)
    there.forget(*map(Request, DATA))
    assert there.status().withdrawn


# -------------------------------------------------------------------------------------------- requests made at clients


@pytest.mark.parametrize("until", [0, 2, 6])
def test_sample_withdrawn_at_its_client_leaves_no_trace(there: Deployed, tmp_path: Path, until: int) -> None:
    there.train(until)
    handle = there.withdraw(4, 2, 5)
    there.run_pending()
    there.train()
    assert there.digest() == inline(tmp_path / "never", Request(4, 2), Request(4, 5))
    (receipt,) = there.receipts()
    assert (receipt.level, receipt.state, receipt.guarantee) == ("sample", "purged", "path")
    facts = there.ledger(4).finished[handle]
    assert facts["server_receipt"] == receipt.id
    assert facts["rounds_done"] == until
    there.run_pending()
    assert len(there.receipts()) == 1


def test_withdrawal_during_training_is_carried_out_between_its_rounds(there: Deployed, tmp_path: Path) -> None:
    def later(message: Any) -> Any:
        if message.metadata.message_type == "train" and message.metadata.group_id == "3":
            there.withdraw(4, 0)
            there.grid.fault = lambda each: each
        return message

    there.grid.fault = later
    there.train()
    assert there.digest() == inline(tmp_path / "never", Request(4, 0))
    assert [receipt.state for receipt in there.receipts()] == ["purged"]


def test_withdrawal_that_empties_a_client_erases_the_client(there: Deployed, tmp_path: Path) -> None:
    there.train()
    there.withdraw(0, *DATA[0])
    there.run_pending()
    assert there.digest() == inline(tmp_path / "never", Request(0))
    assert there.status().clients == len(DATA) - 1


def test_server_learns_no_sample_id(there: Deployed) -> None:
    there.train()
    there.withdraw(4, 3)
    there.run_pending()
    for message in there.grid.delivered:
        assert '"samples": [3]' not in str(message.content.config_records["fedforget"]["body"])


def test_addition_found_at_a_client_joins(tmp_path: Path) -> None:
    later = [8, 9, 10]
    there = Deployed(tmp_path / "run", later={4: later})
    there.train()
    small = {**DATA, 4: {sample: DATA[4][sample] for sample in DATA[4] if sample not in later}}
    assert there.digest() == inline(tmp_path / "small", data=small)
    there.ledger(4).add("5" * 32, later)
    there.train()
    assert there.digest() == inline(tmp_path / "all")
    assert there.ledger(4).finished.keys() == {"5" * 32}


def test_enrolled_newcomer_joins_with_the_next_contact(tmp_path: Path) -> None:
    there = Deployed(tmp_path / "run", clients=[0, 1, 2, 3])
    there.train(4)
    without_last = {client: DATA[client] for client in DATA if client != 4}
    assert there.digest() == inline(tmp_path / "without", data=without_last, until=4)
    with run_directory.writing(there.path) as run:
        run.remote.contacts.enroll(there.enrolment(4))
    assert there.status().enrolled == 1
    there.train()
    assert there.status().enrolled == 0
    assert there.digest() == inline(tmp_path / "with")


# ------------------------------------------------------------------------------------------------------ silent clients


def test_silent_client_blocks_its_round_and_is_named(there: Deployed, tmp_path: Path) -> None:
    there.train(1)
    there.silence(4)
    with pytest.raises(ClientUnreachable, match="client 4 has not answered"):
        there.train()
    (silence,) = there.status().silent
    assert silence["client"] == 4
    assert silence["round"] == there.status().rounds_done + 1
    there.silence()
    there.train()
    assert there.status().silent == []
    assert there.digest() == inline(tmp_path / "inline")


def test_erased_silent_client_is_sent_the_removal_when_it_is_back(there: Deployed, tmp_path: Path) -> None:
    there.train(1)
    there.silence(4)
    with pytest.raises(ClientUnreachable):
        there.train()
    (receipt,) = there.forget(Request(4), basis=Basis.MODEL_INFORMED)
    assert (receipt.state, receipt.guarantee) == ("purged", "path")
    assert there.status().tainted
    there.train()
    assert there.digest() == inline(tmp_path / "never", Request(4))
    assert there.status().undelivered == 1
    assert 4 in there.memory.commitments()
    there.silence()
    there.train()
    assert 4 not in there.memory.commitments()
    assert there.status().undelivered == 0
    with run_directory.reading(there.path) as run:
        assert 4 not in run.remote.contacts.enrolled()


def test_erasing_silent_client_finishes_its_own_waiting_request(there: Deployed, tmp_path: Path) -> None:
    there.train()
    there.withdraw(4, used(there, 4))

    there.silence_at_removal(4)
    with pytest.raises(ClientUnreachable):
        there.run_pending()
    there.silence(4)
    there.forget(Request(4), basis=Basis.MODEL_INFORMED)
    assert there.digest() == inline(tmp_path / "never", Request(4))
    assert {receipt.state for receipt in there.receipts()} == {"purged"}
    assert PLAN.rounds == there.status().rounds_done


# ------------------------------------------------------------------------------------------------------------ receipts


def test_receipt_of_an_erased_client_proves_its_absence(there: Deployed) -> None:
    there.train()
    (receipt,) = there.forget(Request(3))
    envelope = issue(there.path, receipt.id).envelope
    statement = unseal(envelope, read_public_key(there.path / PUBLIC_KEY))
    predicate = statement["predicate"]
    require_shape(there.path, statement)
    root = bytes.fromhex(predicate["data_root_after"])
    assert absence_problem(Target.parse(predicate["target"]), Proof.parse(predicate["absence"]), root) is None
    assert predicate["presence"] is not None
    assert "messages that Flower keeps" in predicate["out_of_reach"]["unknown"]


def test_receipt_of_a_withdrawal_names_no_sample(there: Deployed) -> None:
    there.train()
    there.withdraw(3, 1)
    there.run_pending()
    (receipt,) = there.receipts()
    statement = unseal(issue(there.path, receipt.id).envelope, read_public_key(there.path / PUBLIC_KEY))
    require_shape(there.path, statement)
    assert statement["predicate"]["target"] is None
    with run_directory.reading(there.path) as run:
        assert statement["predicate"]["data_root_after"] == run.part.data_root().hex()
