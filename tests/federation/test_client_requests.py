"""Requests made at clients: the server carries them out by handles, and the states are those of one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request, forget
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.join import join
from fedforget.algorithm.learn import learn
from fedforget.algorithm.notes import NO_NOTES
from fedforget.algorithm.ports import ForgetQuery, Newcomer
from fedforget.errors import SignatureRefused, TrainingFailed
from fedforget.federation import parcels
from fedforget.federation.ledger import LedgerInMemory
from fedforget.federation.parcels import Parcel
from fedforget.federation.party import ClientParty, EpochInMemory
from fedforget.federation.signing import sign, verified
from fedforget.federation.standing import (
    Addition,
    ClientRequest,
    Standing,
    addition_id,
    addition_in,
    standing_in,
    withdrawal_id,
    withdrawal_in,
)
from tests.federation.flower_in_process import RUN, OwnPart
from tests.federation.test_flower import KINDS, PLAN, WORLD, Faults, Life
from tests.helpers import Erasure, HistoryIsTheModel, World, erasures, prf_server, view, without


def handle(number: int) -> str:
    return f"{number:032x}"


def withdrawal(number: int, *, whole: bool = False) -> ClientRequest:
    return ClientRequest(handle(number), "exogenous", None, "2027-01-31T12:00:00.000+00:00", whole)


def ledger_of(life: Life, client: Id) -> LedgerInMemory:
    found = life.flower.parties[client].ledger
    assert isinstance(found, LedgerInMemory)
    return found


@dataclass
class Twins:
    """A federation of clients that make their own requests, and one process that is given the ids."""

    life: Life
    inline: Any
    number: int = 0

    def learn(self, until: int) -> None:
        for server in (self.life.server, self.inline):
            learn(server, until)

    def forget(self, batch: Sequence[Request]) -> None:
        """Each client makes its requests itself; the server sees one withdrawal per client, and whole clients."""
        by_client: dict[Id, list[Request]] = {}
        for each in batch:
            by_client.setdefault(each.client, []).append(each)
        asked = []
        for client, requests in by_client.items():
            self.number += 1
            whole = any(each.sample is None for each in requests)
            samples = [each.sample for each in requests if each.sample is not None]
            ledger_of(self.life, client).withdraw(withdrawal(self.number, whole=whole), samples)
            asked += [
                Request(client) if each.whole else Request(client, withdrawal_id(each.handle))
                for each in ledger_of(self.life, client).standing().withdrawals
            ]
        forget(self.life.server, asked)
        forget(self.inline, batch)
        self.require_equal()
        for client in by_client:
            assert ledger_of(self.life, client).standing().withdrawals == ()

    def add(self, client: Id, samples: Sequence[Id]) -> None:
        self.number += 1
        ledger = ledger_of(self.life, client)
        ledger.add(handle(self.number), samples)
        new = tuple((addition_id(each.handle), b"") for each in ledger.standing().additions)
        join(self.life.server, [Newcomer(client, None, new)])
        join(self.inline, [Newcomer(client, None, tuple((sample, bytes(16)) for sample in samples))])
        self.require_equal()
        assert ledger.standing().additions == ()

    def require_equal(self) -> None:
        assert self.life.view() == view(self.inline)


def live(erasure: Erasure, later: dict[Id, tuple[Id, ...]], choose: Callable[[], str]) -> None:
    """Live with requests that clients make, then add the samples that come later."""
    left: World = dict(erasure.world)
    twins = Twins(Life(left, erasure.plan, erasure.seed), prf_server(left, erasure.plan, erasure.seed))
    twins.life.flower.grid.fault = Faults(twins.life.flower, choose)
    for when, batch in erasure.arrivals:
        twins.learn(when)
        pending = [
            each for each in batch if each.client in left and (each.sample is None or each.sample in left[each.client])
        ]
        if pending:
            twins.forget(pending)
            left = without(left, pending)
    for client, samples in later.items():
        new = [sample for sample in samples if sample not in left.get(client, samples)]
        if new:
            twins.add(client, new)
    twins.learn(erasure.plan.rounds)
    twins.require_equal()


@st.composite
def lives(draw: st.DrawFn) -> tuple[Erasure, dict[Id, tuple[Id, ...]]]:
    erasure = draw(erasures())
    later: tuple[Id, ...] = (100, 101, "new", 0, "a")
    new = st.lists(st.sampled_from(later), unique=True, max_size=2)
    return erasure, {client: tuple(draw(new)) for client in erasure.world}


@settings(max_examples=12)
@given(lives())
def test_states_are_those_of_one_process(life: tuple[Erasure, dict[Id, tuple[Id, ...]]]) -> None:
    live(*life, lambda: "arrives")


@settings(max_examples=12)
@given(lives(), st.data())
def test_states_are_the_same_if_messages_and_answers_get_lost(
    life: tuple[Erasure, dict[Id, tuple[Id, ...]]], data: st.DataObject
) -> None:
    live(*life, lambda: data.draw(KINDS))


# ------------------------------------------------------------------------------------------- what the server is told


@pytest.fixture
def life() -> Life:
    return Life(WORLD, PLAN, 4)


def test_server_never_learns_withdrawn_sample_ids(life: Life) -> None:
    learn(life.server, 6)
    ledger_of(life, "03").withdraw(withdrawal(1), ["x", "z"])
    forget(life.server, [Request("03", withdrawal_id(handle(1)))])
    assert life.memory.samples("03").ids == IdSet(["y", 1, 2]).ids
    for message in life.flower.grid.delivered:
        body = json.loads(str(message.content.config_records["fedforget"]["body"]))
        named = [*body.get("samples", ()), *body.get("leaving", ())] if body.get("samples") else []
        assert all(withdrawal_in(each) for each in named)


def test_first_step_of_a_withdrawal_is_the_first_of_its_round(life: Life) -> None:
    learn(life.server, 6)
    for client in WORLD:
        for number, sample in enumerate(life.memory.samples(client)):
            ledger_of(life, client).withdraw(withdrawal(number), [sample])
            first = life.memory.first_steps(client).get(sample)
            [reply] = life.flower.federation.what_would_change([ForgetQuery(client, (withdrawal_id(handle(number)),))])
            assert reply.first_steps == (None if first is None else PLAN.step_of(PLAN.round_of(first), 0),)


def test_withdrawal_of_all_samples_says_that_the_client_is_empty(life: Life) -> None:
    ledger_of(life, 0).withdraw(withdrawal(1), [0, 1])
    ledger_of(life, 0).withdraw(withdrawal(2), [2, 3])
    both = tuple(withdrawal_id(handle(number)) for number in (1, 2))
    [one] = life.flower.federation.what_would_change([ForgetQuery(0, both[:1])])
    [all_] = life.flower.federation.what_would_change([ForgetQuery(0, both)])
    assert (one.now_empty, all_.now_empty) == (False, True)


def test_addition_waits_while_a_sample_of_its_ids_is_present(life: Life) -> None:
    ledger = ledger_of(life, 0)
    ledger.withdraw(withdrawal(1), [2])
    ledger.add(handle(2), [2])
    assert ledger.standing().additions == ()
    forget(life.server, [Request(0, withdrawal_id(handle(1)))])
    assert ledger.standing().additions == (Addition(handle(2)),)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("withdrawal:" + "0" * 31, None),
        ("withdrawal:" + "A" * 32, None),
        (3, None),
        ("x", None),
        (withdrawal_id(handle(1)), handle(1)),
    ],
)
def test_only_whole_handles_are_handles(given: Id, kind: str | None) -> None:
    assert withdrawal_in(given) == kind
    assert addition_in(given) is None
    assert addition_in(addition_id(handle(3))) == handle(3)


def asked_of(party: ClientParty, kind: str, **fields: Any) -> Parcel:
    return party.answer(parcels.request(RUN, party._epoch.now(), kind, party.client, **fields))


def test_every_answer_carries_the_client_and_its_report(life: Life) -> None:
    party = life.flower.parties[0]
    before = standing_in(asked_of(party, parcels.PRESENCE), 0)
    assert before.root is not None
    assert before.notes == NO_NOTES
    assert before.commitment == life.memory.commitments()[0]
    learn(life.server, 6)
    trained = standing_in(asked_of(party, parcels.REWIND, rounds_done=6), 0)
    assert (trained.root == before.root, trained.notes == before.notes) == (True, False)
    asked_of(party, parcels.REMOVE, samples=[3])
    assert standing_in(asked_of(party, parcels.PRESENCE), 0).root != before.root
    left = asked_of(party, parcels.REMOVE, samples=None)
    assert standing_in(left, 0) == Standing()
    assert left.body["client"] == 0


def test_done_is_kept_once(life: Life) -> None:
    party, ledger = life.flower.parties[0], ledger_of(life, 0)
    ledger.withdraw(withdrawal(1), [2])
    asked_of(party, parcels.REMOVE, samples=[withdrawal_id(handle(1))])
    for receipt in ("first", "second"):
        answer = asked_of(party, parcels.DONE, handles=[handle(1)], facts={"receipt": receipt})
        assert answer.body["done"] == [handle(1)]
    assert ledger.finished == {handle(1): {"receipt": "first"}}


GOOD: dict[str, Any] = Standing(
    bytes(32), bytes(32), None, {"torch": "2"}, (withdrawal(1),), (Addition(handle(2)),)
).fields()


@pytest.mark.parametrize(
    "change",
    [
        {"root": "00"}, {"root": 3}, {"notes": "Z" * 64}, {"environment": {"torch": 2}}, {"environment": None},
        {"withdrawals": [{"handle": handle(1)}]}, {"withdrawals": [{**GOOD["withdrawals"][0], "basis": "whim"}]},
        {"withdrawals": [{**GOOD["withdrawals"][0], "handle": "1"}]},
        {"withdrawals": [{**GOOD["withdrawals"][0], "whole": 1}]}, {"additions": [{}]}, {"additions": ["x"]},
    ],
)  # fmt: skip
def test_malformed_reports_are_refused(change: dict[str, Any]) -> None:
    assert standing_in(Parcel({"now": GOOD}), 0).fields() == GOOD
    with pytest.raises(TrainingFailed, match="client 0 sent a description of itself"):
        standing_in(Parcel({"now": GOOD | change}), 0)


# -------------------------------------------------------------------------------------------------------- signatures

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3)}
ASKED = parcels.request(RUN, 3, parcels.TRAIN, 0, MODEL, round=2)
ANSWER = Parcel({"client": 0, "now": GOOD}, MODEL)


def test_signed_answer_is_accepted_and_comes_without_its_signature() -> None:
    found = verified(KEY.public_key(), ASKED, sign(KEY, ASKED, ANSWER))
    assert found.body == ANSWER.body
    assert found.model is MODEL


@pytest.mark.parametrize(
    "change",
    [
        lambda asked, answer: (asked, Parcel(answer.body | {"client": 1}, answer.model)),
        lambda asked, answer: (asked, Parcel(answer.body | {"more": 1}, answer.model)),
        lambda asked, answer: (asked, Parcel(answer.body, None)),
        lambda asked, answer: (asked, Parcel(answer.body, MODEL | {"n": np.array(4)})),
        lambda asked, answer: (asked, Parcel(answer.body, MODEL | {"n": np.array(3, np.int32)})),
        lambda asked, answer: (asked, Parcel(answer.body, MODEL | {"w": MODEL["w"].reshape(3, 2)})),
        lambda asked, answer: (asked, Parcel(answer.body | {"signature": "00"}, answer.model)),
        lambda asked, answer: (asked, Parcel({k: v for k, v in answer.body.items() if k != "signature"}, answer.model)),
        lambda asked, answer: (Parcel(asked.body | {"epoch": 4}), answer),
        lambda asked, answer: (Parcel(asked.body | {"run": "another"}), answer),
        lambda asked, answer: (Parcel(asked.body | {"kind": parcels.REPEAT}), answer),
        lambda asked, answer: (parcels.request(RUN, 3, parcels.TRAIN, 0, MODEL, round=2), answer),
        lambda asked, answer: (asked, sign(OTHER, asked, ANSWER)),
    ],
)  # fmt: skip
def test_answer_that_was_altered_or_belongs_to_another_message_is_refused(change: Any) -> None:
    asked, answer = change(ASKED, sign(KEY, ASKED, ANSWER))
    with pytest.raises(SignatureRefused, match="answer for client 0"):
        verified(KEY.public_key(), asked, answer)


def test_unsigned_error_is_refused_with_what_it_says() -> None:
    with pytest.raises(SignatureRefused, match="its node says: the disk is gone"):
        verified(KEY.public_key(), ASKED, Parcel({"error": {"message": "the disk is gone"}}))


def test_party_with_a_key_signs_what_it_answers_and_its_errors(life: Life) -> None:
    memory = OwnPart(life.memory, 0)
    party = ClientParty(RUN, 0, PLAN, memory, HistoryIsTheModel(), EpochInMemory(), PrfPriorities, key=KEY)
    for kind in (parcels.PRESENCE, "sing"):
        asked = parcels.request(RUN, 0, kind, 0)
        assert verified(KEY.public_key(), asked, party.answer(asked)).body["client"] == 0


def test_every_message_has_a_nonce_of_its_own() -> None:
    assert len({parcels.request(RUN, 0, parcels.PRESENCE, None).body["nonce"] for _ in range(9)}) == 9
