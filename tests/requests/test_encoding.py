"""Intents and submissions as text: what is written is what is read, and any other text is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.ports import Newcomer
from fedforget.algorithm.seeds import SeedSource
from fedforget.errors import InvalidInput
from fedforget.requests.intents import Intent, Pledge
from fedforget.requests.lifecycle import Receipt, Stage, Submission, as_written
from fedforget.requests.policy import Policy
from fedforget.requests.targets import attach_known_targets, attach_targets

DECISION = Decision(
    requests=(Request("a", 3), Request(7)),
    first_changed_steps=(5, None),
    leaving=(7,),
    goal=9,
    rewind_to=2,
    joining=(Newcomer("b", SeedSource(1).client("b"), ((0, b"\1"),)), Newcomer(3, None, (("x", b"\2"), (4, b"\3")))),
    new_seeds=b"\5" * 32,
    batch_id="b-1",
)
INTENT = Intent(("r-1", "r-2"), DECISION, Pledge("a", "here", b"\7" * 16))
NOTHING = Decision((), (), (), 9, 0, batch_id="b-1")
NOW = "2027-01-31T12:00:00.000+00:00"


# -------------------------------------------------------------------------------------------------------------- intents


@pytest.mark.parametrize("intent", [INTENT, Intent((), NOTHING), replace(INTENT, pledge=None)])
def test_intent_is_read_as_it_was_written(intent: Intent) -> None:
    assert Intent.decode("b-1", intent.ids, intent.encode()) == intent


@pytest.mark.parametrize(
    "change",
    [
        {"goal": -1}, {"goal": True}, {"goal": 1.0}, {"rewind_to": "2"}, {"first_changed_steps": [5]},
        {"first_changed_steps": [-1, None]}, {"requests": [["a", 3]]}, {"reseed": "no hex"},
    ],
    ids=str,
)  # fmt: skip
def test_malformed_intent_is_refused(change: dict[str, Any]) -> None:
    body = json.dumps({**json.loads(INTENT.encode()), **change})
    with pytest.raises(ValueError, match=r".+"):
        Intent.decode("b-1", INTENT.ids, body)


def test_intent_that_begins_at_round_zero_is_read() -> None:
    intent = Intent((), replace(NOTHING, goal=0))
    assert Intent.decode("b-1", (), intent.encode()) == intent


@pytest.mark.parametrize(
    ("intent", "only"),
    [
        (Intent((), NOTHING), True),
        (Intent(("r-1",), NOTHING), False),
        (Intent((), replace(NOTHING, new_seeds=b"\5" * 32)), False),
        (Intent((), replace(NOTHING, joining=DECISION.joining)), False),
    ],
)
def test_intent_only_recomputes_if_nothing_leaves_joins_or_is_reseeded(intent: Intent, only: bool) -> None:
    assert intent.only_recomputes is only


# ---------------------------------------------------------------------------------------------------------- submissions


@pytest.mark.parametrize(("key", "deadline"), [(None, None), ("k", "2999-01-31")])
def test_submission_is_read_as_it_was_written(key: str | None, deadline: str | None) -> None:
    made = Submission.of((Request("a", 3), Request(7)), "exogenous", key=key, deadline=deadline)
    assert Submission.decode(made.encode()) == made
    assert made.urgent is (deadline is not None)
    receipts = made.receipts()
    assert [(each.id, each.client, each.sample, each.level) for each in receipts] == [
        (made.ids[0], "a", 3, "sample"),
        (made.ids[1], 7, None, "client"),
    ]
    assert {each.state for each in receipts} == {Stage.RECEIVED}


@pytest.mark.parametrize(
    "change",
    [
        {"ids": []}, {"ids": ["r-1"]}, {"ids": ["r-1", "r-1"]}, {"ids": ["r-1", 2]}, {"ids": ["r-1", "R 2"]},
        {"ids": ["r-1", "r-2", "r-3"]}, {"key": ""}, {"key": 5}, {"basis": "guess"}, {"received": "yesterday"},
        {"deadline": "2027-01-31"}, {"ids": ["r-1", "r" * 65]}, {"requests": [], "ids": []},
    ],
    ids=str,
)  # fmt: skip
def test_malformed_submission_is_refused(change: dict[str, Any]) -> None:
    made = Submission.of((Request("a", 3), Request(7)), "exogenous", key="k")
    body = json.dumps({**json.loads(made.encode()), **change})
    with pytest.raises(ValueError, match=r".+"):
        Submission.decode(body.encode())


def test_submission_of_many_requests_is_read_as_it_was_written() -> None:
    made = Submission.of(tuple(Request("a", sample) for sample in range(400)), "exogenous")
    assert Submission.decode(made.encode()) == made


def test_id_may_have_sixty_four_characters() -> None:
    made = replace(Submission.of((Request(7),), "exogenous"), ids=("r" * 64,))
    assert Submission.decode(made.encode()) == made


def test_submission_body_holds_targets_basis_and_new_seed() -> None:
    first, second = (Submission.of((Request("a", 3),), "exogenous", key="k") for _ in range(2))
    assert first.body() == second.body()
    others = (
        Submission.of((Request("a", 4),), "exogenous"),
        Submission.of((Request("a", 3),), "unknown"),
        Submission.of((Request("a", 3),), "exogenous", new_seed=True),
    )
    assert len({first.body(), *(other.body() for other in others)}) == 4


def test_submission_received_ahead_of_the_clock_is_accepted_now() -> None:
    made = Submission.of((Request(7),), "exogenous")
    assert made.with_acceptance_time() == made
    ahead = replace(made, received="2999-01-01T00:00:00.000+00:00")
    assert ahead.with_acceptance_time().received < "2999"


@pytest.mark.parametrize(
    ("deadline", "due"),
    [
        ("2999-01-31", "2999-01-31T23:59:59.999+00:00"),
        ("2999-01-31T12:00", "2999-01-31T12:00:00.000+00:00"),
        ("2999-01-31T12:00+01:00", "2999-01-31T11:00:00.000+00:00"),
        ("29990131", "2999-01-31T23:59:59.999+00:00"),
    ],
)
def test_deadline_is_the_end_of_a_day_or_a_time_in_utc(deadline: str, due: str) -> None:
    assert Submission.of((Request(7),), "exogenous", deadline=deadline).deadline == due


@pytest.mark.parametrize("key", ["", "  ", "\ud800", "a\udfff", 5])
def test_idempotency_key_must_be_text(key: Any) -> None:
    with pytest.raises(InvalidInput, match="idempotency key"):
        Submission.of((Request(7),), "exogenous", key=key)


def test_time_has_one_spelling() -> None:
    assert as_written(NOW) == NOW
    beyond = "0001-01-01T00:00:00.000+23:59", "9999-12-31T23:59:59.999-23:59"
    for other in ("2027-01-31T12:00:00+00:00", "2027-01-31T13:00:00.000+01:00", *beyond, 5, None):
        with pytest.raises(ValueError, match="is not a time"):
            as_written(other)


# ----------------------------------------------------------------------------------------------- receipts and policies


def receipt(state: Stage = Stage.ACCEPTED, deadline: str | None = NOW, received: str = NOW) -> Receipt:
    return Receipt("r-1", None, "client", None, None, "unknown", state, received, deadline)


@pytest.mark.parametrize(("days", "overdue"), [(-2.0, True), (0.0, False), (1.5, False)])
def test_days_left_are_counted_to_the_deadline(days: float, overdue: bool) -> None:
    now = datetime.fromisoformat(NOW) - timedelta(days=days)
    assert receipt().days_left(now) == days
    assert receipt().is_overdue(now) is overdue
    for closed in (receipt(Stage.PURGED), receipt(Stage.REJECTED), receipt(Stage.CANCELLED), receipt(deadline=None)):
        assert closed.days_left(now) is None
        assert not closed.is_overdue(now)
    assert receipt().as_dict()["overdue"] == (datetime.now(UTC) > datetime.fromisoformat(NOW))


def test_batch_is_due_when_its_window_ends_or_a_day_before_the_earliest_deadline() -> None:
    policy, received = Policy.of_days("batch", 7), datetime.fromisoformat(NOW)
    later = "2027-02-05T12:00:00.000+00:00"
    assert policy.due([]) is None
    assert not policy.is_due([])
    assert policy.due([receipt(deadline=None)]) == received + timedelta(days=7)
    assert policy.due([receipt(deadline=later)]) == received + timedelta(days=4)
    assert policy.due([receipt(deadline=None), receipt(deadline=later)]) == received + timedelta(days=4)
    assert policy.is_due([receipt(deadline=None)], received + timedelta(days=7))
    assert not policy.is_due([receipt(deadline=None)], received + timedelta(days=6.9))
    assert (policy.collects, Policy().collects) == (True, False)


@pytest.mark.parametrize("policy", [Policy(), Policy.of_days("batch", 0.5), Policy.of_days("batch", 3650)])
def test_policy_is_read_as_it_was_written(policy: Policy) -> None:
    assert Policy.decode(policy.encode()) == policy


class Erased:
    def id_of(self, target: Request) -> str | None:
        return None

    def was_erased_by(self, identifier: str, target: Request) -> bool:
        return target == Request("a")


def test_receipt_of_another_request_names_no_sample() -> None:
    requests = [Request("a", 3), Request("a")]
    closed, open_ = receipt(Stage.PURGED), receipt()
    assert [(r.client, r.sample) for r in attach_targets([closed, open_], requests)] == [("a", 3), ("a", None)]
    own = [(r.client, r.sample) for r in attach_known_targets(Erased(), [closed, closed], requests)]
    assert own == [("a", None), ("a", None)]
    assert [r.sample for r in attach_known_targets(Erased(), [open_], requests[:1])] == [3]


@pytest.mark.parametrize(
    ("received", "deadline", "now"),
    [(NOW, "0001-01-01T00:00:00.000+00:00", True), ("9999-12-31T00:00:00.000+00:00", None, False)],
)
def test_requests_at_the_ends_of_the_calendar_are_due_or_not(received: str, deadline: str | None, now: bool) -> None:
    asked = replace(Submission.of((Request(7),), "unknown"), received=received, deadline=deadline or received)
    assert Policy.of_days("batch", 7).is_due(asked.receipts()) == now
