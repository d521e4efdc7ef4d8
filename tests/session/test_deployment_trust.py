"""Who is who in a deployment: answers are signed, roots and seeds are those of the roster, and lies change nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message

from fedforget import Request
from fedforget.errors import ClientUnreachable, FedForgetError, InvalidInput, LearnerDiffers, SignatureRefused
from fedforget.federation.flower.records import pack, unpack
from fedforget.federation.parcels import Parcel
from fedforget.federation.party import ClientParty
from fedforget.session.enrolling import enroll
from fedforget.store import run_directory
from fedforget.store.contacts import EnrolledClient
from tests.federation.flower_in_process import OwnPart, app_of
from tests.requests.world import opened
from tests.session.deployed import Deployed


@pytest.fixture
def there(tmp_path: Path) -> Deployed:
    return Deployed(tmp_path / "run")


def change_answers(there: Deployed, client: Any, change: Any, kind: str = "train") -> None:
    """Let a node give other answers to messages of a kind."""
    node, answer = there.node_of(client), there.grid.apps[there.node_of(client)]

    def changed(message: Message, context: Any) -> Message:
        reply = answer(message, context)
        if unpack(message.content).body["kind"] != kind:
            return reply
        return Message(pack(change(unpack(reply.content))), reply_to=message)

    there.grid.apps[node] = changed  # type: ignore[assignment]


def impostor(there: Deployed, of: Any, key: Ed25519PrivateKey) -> Any:
    """A node that answers for a client with another key."""
    return app_of(
        ClientParty(
            there.run_id, of, there.plan, OwnPart(there.memory, of), there.learner, there.epochs[of],
            ledger=there.ledger(of), key=key,
        )
    )  # fmt: skip


def test_node_with_another_key_is_not_taken_for_a_client(there: Deployed) -> None:
    there.grid.apps = {there.node_of(4): impostor(there, 4, Ed25519PrivateKey.generate())}
    with pytest.raises((ClientUnreachable, SignatureRefused)):
        there.train(6)
    with run_directory.reading(there.path, only_idle=False) as run:
        assert dict(run.remote.contacts.nodes) == {}
        assert run.server.rounds_done == 0


def test_client_cannot_answer_for_another(there: Deployed, tmp_path: Path) -> None:
    """A node of client 3 claims to be client 4, with its own key; the real one answers too."""
    there.grid.apps[999] = impostor(there, 4, there.keys[3])
    there.train()
    never = opened(tmp_path / "inline")
    never.train()
    assert there.digest() == never.state_digest()
    with run_directory.reading(there.path) as run:
        assert 999 not in run.remote.contacts.nodes.values()


def test_altered_answer_is_refused_and_its_round_is_not_committed(there: Deployed, tmp_path: Path) -> None:
    there.train(2)

    def larger(answer: Parcel) -> Parcel:
        assert answer.model is not None
        return Parcel(answer.body, {name: tensor * 2 for name, tensor in answer.model.items()})

    for client in range(5):
        change_answers(there, client, larger)
    with pytest.raises(SignatureRefused, match="was altered"):
        there.train()
    assert there.status().rounds_done == 2
    assert there.digest() == digest_after(tmp_path, 2)


def digest_after(tmp_path: Path, rounds: int) -> str:
    run = opened(tmp_path / "inline")
    run.train(rounds)
    return run.state_digest()


def test_old_answer_is_refused(there: Deployed) -> None:
    kept: list[Parcel] = []

    def repeated(answer: Parcel) -> Parcel:
        kept.append(answer)
        return kept[0]

    change_answers(there, 4, repeated)
    with pytest.raises(FedForgetError, match="old one"):
        there.train()


def test_client_cannot_request_erasure_of_another_client(there: Deployed, tmp_path: Path) -> None:
    """What a client tells is about itself: a withdrawal names a handle of its own, and no client."""
    there.train()
    there.withdraw(3, 1)
    body = there.ledger(3).standing().fields()
    assert "client" not in body["withdrawals"][0]
    there.run_pending()
    never = opened(tmp_path / "never", without=[Request(3, 1)])
    never.train()
    assert there.digest() == never.state_digest()


def test_client_with_another_seed_or_key_is_not_enrolled_twice(there: Deployed) -> None:
    own = there.enrolment(4)
    assert enroll(there.path, [own]) == []
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    for changed in (
        EnrolledClient(4, own.commitment, own.root, other),
        EnrolledClient(4, bytes(32), own.root, own.public_key),
    ):
        with pytest.raises(InvalidInput, match=r"enrolled in .* with another key or another seed") as refused:
            enroll(there.path, [changed])
        assert "restore it from a backup" in refused.value.hint
        assert "erase the client" in refused.value.hint


def test_erased_client_returns_only_with_returning(there: Deployed, tmp_path: Path) -> None:
    there.train()
    there.forget(Request(4))
    with pytest.raises(InvalidInput, match="client 4 was erased"):
        enroll(there.path, [there.enrolment_of_new(4)])
    enroll(there.path, [there.enrolment_of_new(4)], returning=True)
    there.train()
    whole = opened(tmp_path / "whole")
    whole.train()
    assert there.digest() == whole.state_digest()
    there.withdraw(4, 0, number=7)
    there.run_pending()
    never = opened(tmp_path / "never", without=[Request(4, 0)])
    never.train()
    assert there.digest() == never.state_digest()


def test_client_with_an_older_state_is_named_with_the_ways_out(there: Deployed, tmp_path: Path) -> None:
    """A backup of its directory was restored: it does not know its last rounds."""
    there.train(5)
    drawn = {client: there.memory.first_steps(client) for client in there.memory.commitments()}
    client = next(each for each in drawn if drawn[each] and max(there.memory.witnesses(each)) < 5)
    there.memory._first[client], there.memory._witnesses[client] = {}, {}
    there.withdraw(client, 0)
    with pytest.raises(FedForgetError, match=f"local state of client {client} is not the one") as refused:
        there.run_pending()
    assert "restore its state directory" in refused.value.hint
    assert "erase the client" in refused.value.hint
    there.forget(Request(client))
    never = opened(tmp_path / "never", without=[Request(client)])
    never.train(there.status().rounds_done)
    assert there.digest() == never.state_digest()


def test_client_whose_loss_computes_something_else_is_named_before_anything_changes(there: Deployed) -> None:
    there.train(4)
    drawn = next(each for each in range(5) if 4 in there.memory.witnesses(each))
    there.learner_of(drawn, loss=lambda output, target: 2 * torch.nn.functional.cross_entropy(output, target))
    before = there.digest()
    with pytest.raises(LearnerDiffers, match=f"the loss of client {drawn} computes something else") as refused:
        there.train()
    assert "start its node with the model" in refused.value.hint
    assert there.digest() == before


def test_client_that_lost_its_state_is_named_with_the_ways_out(there: Deployed) -> None:
    """Its directory is gone, and it was initialised anew: another seed under the same id."""
    there.train(2)
    there.grid.apps[there.node_of(4)] = impostor(there, 4, Ed25519PrivateKey.generate())
    with pytest.raises((SignatureRefused, ClientUnreachable)) as refused:
        there.train()
    assert "erase the client" in refused.value.hint or "directory" in refused.value.hint
    there.forget(Request(4))
    there.train()


# What the operator is told of clients that are not in order


def told_of(there: Deployed, client: Any) -> dict[str, Any]:
    """The problem that a status names, and ``status --check`` and ``--json`` of the command."""
    [problem] = there.status().problems
    assert problem["client"] == client
    asked = [sys.executable, "-m", "fedforget", "status", str(there.path), "--check", "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 17
    assert json.loads(done.stdout)["problems"] == [problem]
    assert f"warning: {problem['problem']}" in done.stderr
    return problem


def test_contact_with_a_stale_client_names_it_and_what_helps(there: Deployed) -> None:
    there.train()
    kept = dict(there.memory._first[3]), dict(there.memory._witnesses[3])
    there.memory._first[3], there.memory._witnesses[3] = {}, {}
    assert kept[1], "it took part"
    assert there.run_pending() == []
    problem = told_of(there, 3)
    assert "the local state of client 3 is not the one of this run" in problem["problem"]
    assert "restore its state directory" in problem["remedy"]
    assert "erase the client" in problem["remedy"]
    there.memory._first[3], there.memory._witnesses[3] = kept
    there.run_pending()
    assert there.status().problems == [], "it is in order again"


def test_contact_with_an_impostor_names_whom_it_claims_to_be(there: Deployed) -> None:
    there.train()
    own = there.grid.apps[there.node_of(4)]
    there.grid.apps[there.node_of(4)] = impostor(there, 4, Ed25519PrivateKey.generate())
    assert there.run_pending() == []
    problem = told_of(there, 4)
    assert "a node that claims to be client 4 was not accepted" in problem["problem"]
    assert "Restore it as it was last; or erase the client" in problem["remedy"]
    there.grid.apps[there.node_of(4)] = own
    there.run_pending()
    assert there.status().problems == []
    there.grid.apps[999] = impostor(there, 4, there.keys[3])  # beside the real one
    there.run_pending()
    assert there.status().problems == [], "the client itself has answered"
