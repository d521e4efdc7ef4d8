"""A request's life: never backwards, once per key, met in time, and absorbed by a recomputation that is under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedforget import Request, Run
from fedforget.disk.lock import RunLock
from fedforget.errors import InvalidInput, UnknownTarget
from fedforget.requests import chain
from fedforget.requests.chain import EventChain
from fedforget.requests.inbox import Inbox
from fedforget.requests.lifecycle import Stage, Submission, one_month_after
from fedforget.requests.policy import Policy
from fedforget.session.deferral import hand_in
from fedforget.store import run_directory
from tests.helpers import function_files
from tests.requests.elsewhere import BUSY, OURS, Asking, forget_elsewhere
from tests.requests.world import DATA, PLAN, opened

ORDER = ["received", "accepted", "removed", "recomputed", "completed", "purged"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = opened(tmp_path / "run")
    made.train()
    return made


def without(path: Path, *requests: Request) -> dict[str, bytes]:
    made = opened(path, without=requests)
    made.train()
    return function_files(made.path)


def receipts(run: Run) -> dict[str, Any]:
    with run_directory.reading(run.path, only_idle=False) as found:
        return {receipt.id: receipt for receipt in found.record.book.receipts()}


# ------------------------------------------------------------------------------------------------------------- deferred


def test_deferred_requests_change_nothing_until_they_are_met_by_one_rewind(run: Run, tmp_path: Path) -> None:
    before = function_files(run.path)
    asked = [Request(3, 1), Request(4), Request(1, 0)]
    ids = [run.forget(request, defer=True)[0].id for request in asked]
    assert function_files(run.path) == before
    assert [receipts(run)[identifier].state for identifier in ids] == ["accepted"] * 3
    assert {each["id"] for each in run.status().open_requests} == set(ids)
    assert run.verify().ok
    met = run.run_pending()
    assert {receipt.id for receipt in met} == set(ids)
    assert len({receipt.batch_id for receipt in met}) == 1
    assert function_files(run.path) == without(tmp_path / "never", *asked)
    assert run.verify().ok
    for receipt in receipts(run).values():
        assert list(receipt.times) == ORDER
        assert sorted(receipt.times.values()) == list(receipt.times.values())
    assert sum(r.steps_alone or 0 for r in met) >= (met[0].recomputed_steps or 0)
    assert run.run_pending() == []


def test_what_waits_can_be_cancelled_and_what_has_begun_cannot(run: Run, tmp_path: Path) -> None:
    (kept,), (taken_back,) = run.forget(Request(2), defer=True), run.forget(Request(3), defer=True)
    assert run.cancel(taken_back.id).state == "cancelled"
    assert run.cancel(taken_back.id).state == "cancelled"  # the same command again
    assert list(receipts(run)[taken_back.id].times) == ["received", "accepted", "cancelled"]
    run.run_pending()
    assert function_files(run.path) == without(tmp_path / "never", Request(2))
    with pytest.raises(InvalidInput, match="is purged, too late"):
        run.cancel(kept.id)
    with pytest.raises(UnknownTarget, match="no request r-0"):
        run.cancel("r-0")
    (again,) = run.forget(Request(3), defer=True)
    assert again.id != taken_back.id
    assert list(receipts(run)[taken_back.id].times) == ["received", "accepted", "cancelled"]
    assert run.verify().ok


def test_an_unknown_target_that_is_deferred_is_rejected_on_record(run: Run) -> None:
    before = function_files(run.path)
    with pytest.raises(UnknownTarget):
        run.forget([Request(1), Request(99)], defer=True)
    found = list(receipts(run).values())
    assert [(r.state, r.reason) for r in sorted(found, key=lambda each: each.reason)] == [
        ("rejected", "another request of its batch was rejected"),
        ("rejected", "there is no such client or sample"),
    ]
    assert all(list(r.times) == ["received", "rejected"] for r in found)
    with pytest.raises(UnknownTarget):
        run.forget(Request(99))
    assert len(receipts(run)) == 2, "asked for at once, it is only an error"
    assert function_files(run.path) == before
    assert run.verify().ok


def test_a_request_that_waits_goes_with_what_takes_its_target(run: Run, tmp_path: Path) -> None:
    """Deferred for a sample, whose client then leaves at once: both are met, and nothing waits for what is gone."""
    (waits,) = run.forget(Request(4, 2), defer=True)
    (other,) = run.forget(Request(1, 1), defer=True)
    run.forget(Request(4))
    assert receipts(run)[waits.id].state == "purged"
    assert receipts(run)[other.id].state == "accepted"
    assert function_files(run.path) == without(tmp_path / "never", Request(4))
    run.forget([Request(1, sample) for sample in run.samples(1)])  # empties client 1
    assert receipts(run)[other.id].state == "purged"
    assert run.run_pending() == []
    assert run.verify().ok


def test_asking_at_once_for_what_waits_meets_it(run: Run, tmp_path: Path) -> None:
    (waits,) = run.forget(Request(2, 1), defer=True)
    (met,) = run.forget(Request(2, 1))
    assert (met.id, met.state) == (waits.id, "purged")
    assert function_files(run.path) == without(tmp_path / "never", Request(2, 1))


# ----------------------------------------------------------------------------------------------------- keys, deadlines


@pytest.mark.parametrize("defer", [True, False])
def test_the_same_key_is_the_same_request(run: Run, defer: bool) -> None:
    first = run.forget([Request(2), Request(3, 1)], idempotency_key="mail 7", defer=defer)
    again = run.forget([Request(2), Request(3, 1)], idempotency_key="mail 7", defer=defer)
    assert [r.id for r in again] == [r.id for r in first]
    for other in ([Request(2)], [Request(3, 1), Request(2)], [Request(4)]):
        with pytest.raises(InvalidInput, match="'mail 7' came with other requests"):
            run.forget(other, idempotency_key="mail 7")
    another = run.forget([Request(2), Request(3, 1)], idempotency_key="mail 8", defer=defer)
    assert [r.id for r in another] == [r.id for r in first], "what is gone or waits keeps its receipt"
    assert len(receipts(run)) == 2
    assert b"mail 7" not in (run.path / "record.db").read_bytes()


def test_a_key_of_a_deferred_request_given_at_once_meets_it(run: Run) -> None:
    (waits,) = run.forget(Request(2), idempotency_key="k", defer=True)
    (met,) = run.forget(Request(2), idempotency_key="k")
    assert (met.id, met.state) == (waits.id, "purged")


@pytest.mark.parametrize(
    ("received", "due"),
    [
        ("2027-01-31", "2027-02-28"),
        ("2028-01-30", "2028-02-29"),
        ("2027-12-31", "2028-01-31"),
        ("2027-04-15", "2027-05-15"),
    ],
)
def test_a_month_is_counted_as_the_law_does(received: str, due: str) -> None:
    assert one_month_after(datetime.fromisoformat(received)) == datetime.fromisoformat(due)


def test_deadlines(run: Run) -> None:
    (usual,) = run.forget(Request(1), defer=True)
    assert usual.deadline is not None
    assert 27 < (usual.days_left() or 0) < 31.1
    day = (datetime.now(UTC) + timedelta(days=5)).strftime("%Y-%m-%d")
    (soon,) = run.forget(Request(2), defer=True, deadline=day)
    assert (soon.deadline or "").startswith(f"{day}T23:59:59")
    for wrong, why in (("2020-01-01", "has passed"), ("tomorrow", "neither a day nor a time")):
        with pytest.raises(InvalidInput, match=why):
            run.forget(Request(3), defer=True, deadline=wrong)
    run.run_pending()
    assert all(r.days_left() is None for r in receipts(run).values())


# --------------------------------------------------------------------------------------------------------------- policy


def test_a_batch_is_collected_until_its_window_ends_or_a_deadline_is_near(run: Run) -> None:
    run.set_policy(Policy("batch", timedelta(days=7)))
    (first,) = run.forget(Request(1))
    assert first.state == "accepted", "under this policy nothing is met at once"
    assert run.run_pending() == []
    with run_directory.reading(run.path) as found:
        policy, waiting = found.record.policy, found.record.book.receipts()
    received = datetime.fromisoformat(first.received)
    assert policy.due(waiting) == received + timedelta(days=7)
    assert not policy.is_due(waiting, received + timedelta(days=6.9))
    assert policy.is_due(waiting, received + timedelta(days=7))
    run.forget(Request(2), deadline=(received + timedelta(hours=20)).isoformat())
    assert {r.client for r in run.run_pending()} == {1, 2}, "a deadline within a day needs it, and all go along"
    run.forget(Request(3))
    assert [r.state for r in run.run_pending(everything=True)] == ["purged"]
    run.set_policy(Policy())
    assert run.forget(Request(4))[0].state == "purged"
    assert run.verify().ok


@pytest.mark.parametrize(
    ("name", "window"), [("later", 0.0), ("batch", 0.0), ("batch", -1.0), ("immediate", 1.0), ("batch", 1e5)]
)
def test_impossible_policies(name: str, window: float) -> None:
    with pytest.raises(InvalidInput):
        Policy(name, timedelta(days=window))


# ---------------------------------------------------------------------------------------------------------- concurrency


def once(round_: int, act: Callable[[], int], outcomes: list[int]) -> Callable[[int], None]:
    """After this round, the first time that it is done."""

    def on_round(done: int) -> None:
        if done == round_ and not outcomes:
            outcomes.append(act())

    return on_round


def test_request_that_arrives_after_one_recomputed_round_costs_that_round_and_no_second_recomputation(
    run: Run,
) -> None:
    with run_directory.reading(run.path) as found:
        first, second = (c for c, round_ in found.server.first_rounds().items() if round_ == 1)
    outcomes: list[int] = []
    rounds: list[int] = []
    arrive = once(1, lambda: forget_elsewhere(run.path, Request(second), defer=True), outcomes)

    def on_round(done: int) -> None:
        rounds.append(done)
        arrive(done)

    run.forget(Request(first), on_round=on_round)
    assert outcomes == [0]
    assert rounds == [1, *range(1, PLAN.rounds + 1)]
    assert {receipt.state for receipt in receipts(run).values()} == {"purged"}


@pytest.mark.parametrize("second", [Request(1, 0), Request(2), Request(0, 99)])
def test_a_recomputation_absorbs_what_arrives(tmp_path: Path, second: Request) -> None:
    require_absorbed(tmp_path, 3, second)


@pytest.mark.slow
@pytest.mark.parametrize("arrives", range(1, PLAN.rounds + 1))
@pytest.mark.parametrize("second", [Request(1, 0), Request(4, 3), Request(2), Request(0, 1), Request(0, 99)])
def test_a_recomputation_absorbs_what_arrives_at_any_round(tmp_path: Path, arrives: int, second: Request) -> None:
    require_absorbed(tmp_path, arrives, second)


def require_absorbed(tmp_path: Path, arrives: int, second: Request) -> None:
    """One that hits the part being recomputed and one that doesn't: it goes on without the data, or rewinds further."""
    run = opened(tmp_path / "run")
    run.train()
    with run_directory.reading(run.path) as found:
        first = next(
            Request(client) for client in (3, 4, 1) if found.server.first_round(client) == 1 and client != second.client
        )
    outcomes: list[int] = []
    run.forget(first, on_round=once(arrives, lambda: forget_elsewhere(run.path, second, defer=True), outcomes))
    known = second.sample != 99
    assert outcomes == [0 if known else OURS]
    never = [first, second] if known else [first]
    assert function_files(run.path) == without(tmp_path / "never", *never)
    assert sorted(r.state for r in receipts(run).values()) == ["purged"] * len(never)
    assert run.verify().ok
    assert not (run.path / "inbox").exists()


def test_forget_on_a_busy_run_is_refused_and_not_recorded(run: Run) -> None:
    with run_directory.reading(run.path) as found:
        first = next(client for client in found.server.roster if found.server.first_round(client) == 1 and client != 2)
    outcomes: list[int] = []
    run.forget(Request(first), on_round=once(4, lambda: forget_elsewhere(run.path, Request(2)), outcomes))
    assert outcomes == [BUSY]
    assert len(receipts(run)) == 1
    assert 2 in run.clients()


def test_who_asks_under_the_policy_batch_while_somebody_works_is_collected(run: Run) -> None:
    run.set_policy(Policy("batch", timedelta(days=7)))
    with RunLock(run.path):
        assert forget_elsewhere(run.path, Request(2)) == 0
    assert [each["state"] for each in run.status().open_requests] == ["received"]
    assert [r.client for r in run.run_pending(everything=True)] == [2]


def test_what_is_handed_in_during_training_waits_for_its_turn(tmp_path: Path) -> None:
    run, outcomes = opened(tmp_path / "run"), list[int]()
    run.train(on_round=once(2, lambda: forget_elsewhere(run.path, Request(2), defer=True), outcomes))
    assert outcomes == [0]
    assert run.status().rounds_done == PLAN.rounds
    run.run_pending()
    assert function_files(run.path) == without(tmp_path / "never", Request(2))


def test_parallel_submitters_with_the_same_and_with_different_keys(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")

    def submit() -> None:
        targets = [Request(2)] * 4 + [Request(3, 0), Request(3, 1)]
        asking = [
            Asking(run.path, "forget", target, defer=True, idempotency_key=f"key {max(number, 2)}")
            for number, target in enumerate(targets)
        ]
        assert [each.outcome() for each in asking] == [0] * len(targets)

    run.train(on_round=lambda done: submit() if done == 3 else None)
    run.run_pending()
    asked = (Request(2), Request(3, 0), Request(3, 1))
    assert len(receipts(run)) == len(asked), "one receipt per request, however often it was handed in"
    assert function_files(run.path) == without(tmp_path / "never", *asked)
    assert run.verify().ok


def test_who_cancels_what_is_being_met_is_told_that_somebody_works(run: Run, tmp_path: Path) -> None:
    (waiting,) = run.forget(Request(2), defer=True)
    outcomes: list[int] = []
    run.run_pending(on_round=once(4, lambda: Asking(run.path, "cancel", waiting.id).outcome(), outcomes))
    assert outcomes == [BUSY]
    assert receipts(run)[waiting.id].state == "purged"
    assert function_files(run.path) == without(tmp_path / "never", Request(2))


def test_cancelling_against_starting_one_of_them_wins(tmp_path: Path) -> None:
    """At the same time, in processes of their own: cancelled and untouched, or met and erased, never in between."""
    untouched = without(tmp_path / "all")
    erased = without(tmp_path / "never", Request(2))
    for attempt in range(12):
        run = opened(tmp_path / f"run{attempt}")
        run.train()
        (waiting,) = run.forget(Request(2), defer=True)
        asked = [("cancel", waiting.id), ("run_pending",)]
        asking = [Asking(run.path, *each) for each in (asked if attempt % 2 else reversed(asked))]
        outcomes = [each.outcome() for each in asking]
        assert outcomes[0] == 0 or outcomes[1] == 0
        assert all(outcome in (0, BUSY, OURS) for outcome in outcomes)
        run.run_pending()
        ended = receipts(run)[waiting.id].state
        assert ended in ("cancelled", "purged")
        assert function_files(run.path) == (untouched if ended == "cancelled" else erased)
        assert run.verify().ok


@pytest.mark.parametrize("command", ["run_pending", "train"])
def test_two_at_once_do_the_work_once(run: Run, tmp_path: Path, command: str) -> None:
    run.forget([Request(2), Request(3, 1)], defer=True)
    outcomes = [each.outcome() for each in [Asking(run.path, command) for _ in range(3)]]
    assert 0 in outcomes
    assert set(outcomes) <= {0, BUSY}
    run.run_pending()
    assert [r.state for r in receipts(run).values()] == ["purged"] * 2
    assert function_files(run.path) == without(tmp_path / "never", Request(2), Request(3, 1))
    assert run.verify().ok


def test_a_crash_after_taking_in_and_before_taking_away_doubles_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = Submission.of((Request(2), Request(3, 1)), "unknown")
    Inbox(run.path).leave(submission)
    assert {(each["id"], each["state"]) for each in run.status().open_requests} == {
        (identifier, "received") for identifier in submission.ids
    }
    with monkeypatch.context() as broken:
        broken.setattr(Inbox, "take_away", lambda self, path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.run_pending()
    assert (run.path / "inbox").exists()
    assert {r.id for r in run.run_pending()} == set(submission.ids)
    assert set(receipts(run)) == set(submission.ids)
    assert all(r.state == Stage.PURGED for r in receipts(run).values())


def test_a_key_that_came_with_other_requests_meanwhile_is_rejected_on_record(run: Run) -> None:
    inbox = Inbox(run.path)
    inbox.leave(Submission.of((Request(2),), "unknown", key="k"))
    second = Submission.of((Request(3),), "unknown", key="k")
    inbox.leave(second)
    run.run_pending()
    found = receipts(run)
    assert sorted(r.state for r in found.values()) == ["purged", "rejected"]
    assert found[second.ids[0]].state == "rejected"
    assert "key" in (found[second.ids[0]].reason or "")


def test_receipts_stand_in_the_order_of_receipt_though_the_clock_went_back(run: Run) -> None:
    hours = [
        replace(Submission.of((Request(client),), "unknown"), received=f"2026-01-0{9 - client}T00:00:00.000+00:00")
        for client in (1, 2, 3, 4)
    ]
    for each in hours:
        Inbox(run.path).leave(each)
    run.forget(Request(0), defer=True)
    found = run.receipts()
    assert [receipt.id for receipt in found[:4]] == [each.ids[0] for each in hours]
    assert [receipt.received for receipt in found[:4]] == [each.received for each in hours], "as their clocks said"


def test_a_key_is_nowhere_in_the_record_also_where_it_is_refused(run: Run) -> None:
    """Somebody may have put the id of a person into it."""
    run.cancel(run.forget(Request(4), defer=True, idempotency_key="key-of-somebody")[0].id)
    inbox = Inbox(run.path)
    for target in (Request(2), Request(3)):
        inbox.leave(Submission.of((target,), "unknown", key="key-of-somebody-else"))
    inbox.leave(Submission.of((Request(4),), "unknown", key="key-of-somebody"))
    run.run_pending()
    assert sorted(r.state for r in receipts(run).values()) == ["cancelled", "purged", "rejected", "rejected"]
    assert all(b"key-of-somebody" not in file.read_bytes() for file in run.path.rglob("*") if file.is_file())


def test_one_request_that_looked_costs_the_whole_batch_its_law(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", seed=None)
    run.train()
    run.forget(Request(2, 1), basis="exogenous", defer=True)
    (lone,) = run.run_pending()
    assert lone.guarantee == "law-and-path"
    run.forget(Request(3, 1), basis="model-informed", defer=True)
    (client,) = run.forget(Request(3), basis="exogenous")  # takes the sample's request along
    assert client.guarantee == "path"
    assert run.status().tainted
    assert run.verify().seeds_tainted
    assert run.verify().ok
    run.forget(new_seed=True)
    assert not run.status().tainted
    (after,) = run.forget(Request(1), basis="exogenous")
    assert after.guarantee == "law-and-path"


def test_asking_again_writes_nothing(run: Run) -> None:
    run.forget([Request(2), Request(3, 1)])
    before = (run.path / "record.db").read_bytes()
    run.forget([Request(2), Request(3, 1)])
    run.forget(Request(2, 0), defer=True)
    assert (run.path / "record.db").read_bytes() == before


def test_a_larger_batch_does_not_read_the_events_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a batch of a thousand takes minutes instead of a second."""
    real, reads = EventChain.events, [0]

    def events(self: EventChain) -> Any:
        reads[0] += 1
        return real(self)

    monkeypatch.setattr(EventChain, "events", events)
    seen = []
    for count in (2, 9):
        run = opened(tmp_path / f"run{count}")
        run.train()
        reads[0] = 0
        run.forget([Request(4, sample) for sample in range(count)])
        run.forget([Request(4, sample) for sample in range(count)])
        seen.append(reads[0])
    assert seen[0] == seen[1]


# ------------------------------------------------------------------------------------------------- what an answer means


def test_a_key_never_says_gone_of_what_is_there(run: Run) -> None:
    run.forget(Request(3, 1), idempotency_key="k")
    assert run.forget(Request(3, 1), idempotency_key="k")[0].state == "purged"
    run.add(Request(3, 1), returning=True, seed=1)
    with pytest.raises(InvalidInput, match="brought back"):
        run.forget(Request(3, 1), idempotency_key="k")
    assert run.forget(Request(3, 1), idempotency_key="another")[0].state == "purged"
    (waiting,) = run.forget(Request(4), defer=True, idempotency_key="taken back")
    run.cancel(waiting.id)
    for defer in (True, False):
        with pytest.raises(InvalidInput, match="was cancelled"):
            run.forget(Request(4), defer=defer, idempotency_key="taken back")
        with pytest.raises(UnknownTarget):
            run.forget(Request(0, 99), defer=True, idempotency_key="rejected")
    with pytest.raises(UnknownTarget):
        run.forget(Request(0, 99), idempotency_key="rejected")


def test_whoever_was_told_an_id_finds_the_request(run: Run) -> None:
    """Also if three were handed in under one key while somebody worked."""
    told: list[str] = []

    def hand_in_three(done: int) -> None:
        if done == PLAN.rounds and not told:
            told.extend(hand_in(run.path, Submission.of((Request(2, 1),), "unknown", key="k"))[0].id for _ in range(3))

    run.forget(Request(1), on_round=hand_in_three)
    if not told:  # nothing was recomputed
        pytest.fail("the request must hit")
    run.run_pending()
    with run_directory.reading(run.path) as found:
        assert {found.record.book.receipt(identifier).state for identifier in told} == {"purged"}
        assert len({found.record.book.receipt(identifier).id for identifier in told}) == 1
    (again,) = run.forget(Request(2, 1), idempotency_key="k")
    assert again.state == "purged"


def test_asking_again_brings_the_deadline_forward_and_never_the_law(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", seed=None)
    run.train()
    (first,) = run.forget(Request(2), defer=True, basis="exogenous")
    soon = f"{datetime.now(UTC) + timedelta(days=3):%Y-%m-%d}"
    (again,) = run.forget(Request(2), defer=True, basis="exogenous", deadline=soon)
    assert again.id == first.id
    assert (again.deadline or "").startswith(soon)
    later = f"{datetime.now(UTC) + timedelta(days=300):%Y-%m-%d}"
    assert run.forget(Request(2), defer=True, basis="exogenous", deadline=later)[0].deadline == again.deadline
    assert run.forget(Request(2), defer=True, basis="exogenous")[0].deadline == again.deadline
    (met,) = run.forget(Request(2), basis="model-informed")
    assert (met.basis, met.guarantee) == ("model-informed", "path")
    assert run.status().tainted
    assert run.verify().ok


@pytest.mark.parametrize(("basis", "law"), [("exogenous", True), ("unknown", False), ("model-informed", False)])
def test_what_is_taken_back_or_brought_in_by_looking_costs_the_law(tmp_path: Path, basis: str, law: bool) -> None:
    for act in ("cancel", "add"):
        run = opened(tmp_path / act, seed=None, without=[Request(4, 1)])
        run.train()
        (waiting,) = run.forget(Request(2), defer=True, basis="exogenous")
        if act == "cancel":
            run.cancel(waiting.id, basis=basis)
        else:
            run.add(Request(4, 1), basis=basis)
        assert run.status().tainted is not law
        (receipt,) = run.forget(Request(3), basis="exogenous")
        assert receipt.guarantee == ("law-and-path" if law else "path")
        assert run.verify().ok


def test_received_is_when_it_was_handed_in(run: Run) -> None:
    submission = Submission.of((Request(2),), "unknown")
    early = replace(submission, received="2026-01-01T00:00:00.000+00:00")
    Inbox(run.path).leave(early)
    run.run_pending()
    assert receipts(run)[early.ids[0]].times["received"] == early.received


def test_a_clock_that_is_set_back_does_not_turn_the_story_round(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "now", lambda: "1999-01-01T00:00:00.000+00:00")
    run.forget(Request(2))
    with run_directory.reading(run.path) as found:
        times = [event.time for event in found.record.chain.events()]
    assert times == sorted(times)
    assert run.verify().ok


def test_what_went_by_itself_did_not_go_with_its_client(run: Run) -> None:
    (by_itself,) = run.forget(Request(3, 1))
    (with_client,) = run.forget(Request(3))
    (again,) = run.forget(Request(3, 1))
    assert (again.id, again.level, again.sample) == (by_itself.id, "sample", 1)
    assert run.forget(Request(3)) == [with_client]
    (another,) = run.forget(Request(3, 2))  # which went with it: the receipt is the client's
    assert (another.id, another.level, another.sample) == (with_client.id, "client", None)


def test_a_client_that_lost_its_last_sample_is_not_told_another(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", data={**DATA, 7: {0: DATA[1][0]}})
    run.train()
    (last,) = run.forget(Request(7, 0))
    (client,), (other,) = run.forget(Request(7)), run.forget(Request(7, 77))
    assert {(r.id, r.level, r.client, r.sample) for r in (client, other)} == {(last.id, "sample", 7, None)}
    assert run.forget(Request(7, 0)) == [last]


def test_who_was_told_a_second_id_can_cancel_with_it(run: Run) -> None:
    inbox = Inbox(run.path)
    first, second = (Submission.of((Request(2),), "unknown") for _ in range(2))
    inbox.leave(first)
    inbox.leave(second)
    run.forget(Request(1), defer=True)
    assert run.cancel(second.ids[0]).state == "cancelled"
    assert run.cancel(first.ids[0]).state == "cancelled"


def test_a_clock_that_was_set_back_does_not_accept_before_it_receives(run: Run) -> None:
    ahead = Submission.of((Request(2),), "unknown")
    later = datetime.fromisoformat(ahead.received) + timedelta(hours=1)
    Inbox(run.path).leave(replace(ahead, received=later.isoformat(timespec="milliseconds")))
    run.run_pending()
    moments = list(receipts(run)[ahead.ids[0]].times.values())
    assert moments == sorted(moments)


def interrupt(round_: int) -> None:
    raise KeyboardInterrupt


def test_new_seeds_change_every_draw_and_are_drawn_once(run: Run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run.forget(Request(2), new_seed=True, on_round=interrupt)
    seeds = (run.path / "plan.toml").read_bytes()
    (receipt,) = run.forget(Request(2), new_seed=True)  # the same command again
    assert (run.path / "plan.toml").read_bytes() == seeds
    assert (receipt.first_changed_step, receipt.recomputed_steps) == (1, PLAN.steps)
    assert run.verify().ok
    assert run.forget(Request(2), new_seed=True)[0].id == receipt.id  # done, and asked for anew
    assert (run.path / "plan.toml").read_bytes() != seeds


def test_a_key_stands_for_new_seeds_too(run: Run) -> None:
    run.forget(Request(2), idempotency_key="k")
    with pytest.raises(InvalidInput, match="came with other requests"):
        run.forget(Request(2), idempotency_key="k", new_seed=True)


def test_a_state_that_somebody_looked_at_has_no_law_for_anybody(tmp_path: Path) -> None:
    """Also for a request that was begun with before, and is finished together with the one that looked."""
    run = opened(tmp_path / "run", seed=None)
    run.train()
    with run_directory.reading(run.path) as found:
        drawn = int(next(iter(found.server.first_rounds())))
    with pytest.raises(KeyboardInterrupt):
        run.forget([Request(drawn), Request((drawn + 1) % 5)], basis="exogenous", on_round=interrupt)
    run.forget(Request((drawn + 2) % 5), basis="model-informed")
    assert {receipt.guarantee for receipt in run.receipts()} == {"path"}
    assert run.verify().ok


def test_what_was_interrupted_is_told_by_who_finishes_it(run: Run) -> None:
    run.forget([Request(2), Request(4, 1)], defer=True)
    with pytest.raises(KeyboardInterrupt):
        run.run_pending(on_round=interrupt)
    told = {(r.client, r.sample, r.state) for r in run.run_pending()}
    assert told == {(2, None, "purged"), (4, 1, "purged")}


def test_the_latest_request_is_the_one_it_went_under(run: Run) -> None:
    (by_itself,) = run.forget(Request(3, 1))
    run.add(Request(3, 1), returning=True, seed=1)
    (with_client,) = run.forget(Request(3))
    (asked,) = run.forget(Request(3, 1))
    assert asked.id == with_client.id != by_itself.id


@pytest.mark.parametrize(
    "given", [{"deadline": 5}, {"deadline": "9999-12-31T23:59-12:00"}, {"idempotency_key": 5}, {"basis": "guess"}]
)
def test_what_cannot_be_meant_is_refused(run: Run, given: dict[str, Any]) -> None:
    before = function_files(run.path)
    with pytest.raises(InvalidInput):
        run.forget(Request(2), **given)
    assert function_files(run.path) == before
    assert receipts(run) == {}


@pytest.mark.parametrize("days", [0.0, -1.0, float("nan"), float("inf"), 1e10, 1e308])
def test_windows_that_cannot_be(days: float) -> None:
    with pytest.raises(InvalidInput, match="window"):
        Policy.of_days("batch", days)


def test_a_window_is_kept_as_it_was_given(run: Run) -> None:
    run.set_policy(Policy.of_days("batch", 1000.123))
    with run_directory.reading(run.path) as found:
        assert found.record.policy.window == timedelta(days=1000.123)
    with pytest.raises(InvalidInput):
        run.set_policy("batch")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        run.add(5)  # type: ignore[arg-type]


def test_those_who_look_disturb_nobody_and_see_one_moment(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    run.train()
    looking = [Asking(run.path, "look_often") for _ in range(2)]
    for request in (Request(3), Request(1, 0), Request(4)):
        run.forget(request)
        run.add(request, returning=True, seed=1)
    assert [each.outcome() for each in looking] == [0, 0]
    assert run.verify().ok
