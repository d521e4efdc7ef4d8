"""The life of a request: its stages, keys, deadlines and policies, and concurrent callers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
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
from fedforget.requests.lifecycle import Basis, Stage, Submission, one_month_after
from fedforget.requests.policy import Policy
from fedforget.store import run_directory
from fedforget.store.server_store import ServerStore
from tests.helpers import function_files, hand_in
from tests.requests.other_process import BUSY, REFUSED, OtherProcess, forget_in_other_process
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
    """Every receipt of the run by its id, read without waiting for an idle run."""
    with run_directory.reading(run.path, only_idle=False) as found:
        return {receipt.id: receipt for receipt in found.record.book.receipts()}


# ------------------------------------------------------------------------------------------------------------- deferred


def test_deferred_requests_change_nothing_until_one_rewind_carries_them_out(run: Run, tmp_path: Path) -> None:
    before = function_files(run.path)
    requests = [Request(3, 1), Request(4), Request(1, 0)]
    ids = [run.forget(request, defer=True)[0].id for request in requests]
    assert function_files(run.path) == before
    assert [receipts(run)[identifier].state for identifier in ids] == ["accepted"] * 3
    assert {each["id"] for each in run.status().open_requests} == set(ids)
    assert run.verify().ok
    completed = run.run_pending()
    assert {receipt.id for receipt in completed} == set(ids)
    assert len({receipt.batch_id for receipt in completed}) == 1
    assert function_files(run.path) == without(tmp_path / "never", *requests)
    assert run.verify().ok
    for receipt in receipts(run).values():
        assert list(receipt.times) == ORDER
        assert sorted(receipt.times.values()) == list(receipt.times.values())
    assert sum(r.steps_alone or 0 for r in completed) >= (completed[0].recomputed_steps or 0)
    assert run.run_pending() == []


def test_pending_request_can_be_cancelled_and_a_completed_one_cannot(run: Run, tmp_path: Path) -> None:
    (kept,), (cancelled,) = run.forget(Request(2), defer=True), run.forget(Request(3), defer=True)
    assert run.cancel(cancelled.id).state == "cancelled"
    assert run.cancel(cancelled.id).state == "cancelled"  # cancelling twice is no error
    assert list(receipts(run)[cancelled.id].times) == ["received", "accepted", "cancelled"]
    run.run_pending()
    assert function_files(run.path) == without(tmp_path / "never", Request(2))
    with pytest.raises(InvalidInput, match="is purged, too late"):
        run.cancel(kept.id)
    with pytest.raises(UnknownTarget, match="no request r-0"):
        run.cancel("r-0")
    (again,) = run.forget(Request(3), defer=True)
    assert again.id != cancelled.id
    assert list(receipts(run)[cancelled.id].times) == ["received", "accepted", "cancelled"]
    assert run.verify().ok


def test_deferred_request_for_an_unknown_target_is_rejected_and_recorded(run: Run) -> None:
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
    assert len(receipts(run)) == 2, "an immediate request for an unknown target is not recorded"
    assert function_files(run.path) == before
    assert run.verify().ok


def test_pending_request_is_completed_when_another_request_erases_its_target(run: Run, tmp_path: Path) -> None:
    """A sample's request is deferred, then its client is erased: both requests are purged, none stays pending."""
    (pending,) = run.forget(Request(4, 2), defer=True)
    (other,) = run.forget(Request(1, 1), defer=True)
    run.forget(Request(4))
    assert receipts(run)[pending.id].state == "purged"
    assert receipts(run)[other.id].state == "accepted"
    assert function_files(run.path) == without(tmp_path / "never", Request(4))
    run.forget([Request(1, sample) for sample in run.samples(1)])  # empties client 1
    assert receipts(run)[other.id].state == "purged"
    assert run.run_pending() == []
    assert run.verify().ok


def test_immediate_forget_of_a_deferred_target_completes_the_deferred_request(run: Run, tmp_path: Path) -> None:
    (deferred,) = run.forget(Request(2, 1), defer=True)
    (completed,) = run.forget(Request(2, 1))
    assert (completed.id, completed.state) == (deferred.id, "purged")
    assert function_files(run.path) == without(tmp_path / "never", Request(2, 1))


# ----------------------------------------------------------------------------------------------------- keys, deadlines


@pytest.mark.parametrize("defer", [True, False])
def test_repeated_idempotency_key_returns_the_same_request(run: Run, defer: bool) -> None:
    first = run.forget([Request(2), Request(3, 1)], idempotency_key="mail 7", defer=defer)
    again = run.forget([Request(2), Request(3, 1)], idempotency_key="mail 7", defer=defer)
    assert [r.id for r in again] == [r.id for r in first]
    for other in ([Request(2)], [Request(3, 1), Request(2)], [Request(4)]):
        with pytest.raises(InvalidInput, match="'mail 7' was used for other requests"):
            run.forget(other, idempotency_key="mail 7")
    another = run.forget([Request(2), Request(3, 1)], idempotency_key="mail 8", defer=defer)
    assert [r.id for r in another] == [r.id for r in first], "a target that is erased or pending keeps its receipt"
    assert len(receipts(run)) == 2
    assert b"mail 7" not in (run.path / "record.db").read_bytes()


def test_immediate_forget_with_the_key_of_a_deferred_request_completes_it(run: Run) -> None:
    (deferred,) = run.forget(Request(2), idempotency_key="k", defer=True)
    (completed,) = run.forget(Request(2), idempotency_key="k")
    assert (completed.id, completed.state) == (deferred.id, "purged")


@pytest.mark.parametrize(
    ("received", "due"),
    [
        ("2027-01-31", "2027-02-28"),
        ("2028-01-30", "2028-02-29"),
        ("2027-12-31", "2028-01-31"),
        ("2027-04-15", "2027-05-15"),
    ],
)
def test_one_month_after_ends_on_the_last_day_of_a_shorter_month(received: str, due: str) -> None:
    assert one_month_after(datetime.fromisoformat(received)) == datetime.fromisoformat(due)


def test_deadline_defaults_to_one_month_and_a_past_or_malformed_one_is_refused(run: Run) -> None:
    (default,) = run.forget(Request(1), defer=True)
    assert default.deadline is not None
    assert 27 < (default.days_left() or 0) < 31.1
    day = (datetime.now(UTC) + timedelta(days=5)).strftime("%Y-%m-%d")
    (soon,) = run.forget(Request(2), defer=True, deadline=day)
    assert (soon.deadline or "").startswith(f"{day}T23:59:59")
    for wrong, why in (("2020-01-01", "has passed"), ("tomorrow", "neither a day nor a time")):
        with pytest.raises(InvalidInput, match=why):
            run.forget(Request(3), defer=True, deadline=wrong)
    run.run_pending()
    assert all(r.days_left() is None for r in receipts(run).values())


# --------------------------------------------------------------------------------------------------------------- policy


def test_batch_policy_collects_requests_until_the_window_ends_or_a_deadline_is_near(run: Run) -> None:
    run.set_policy(Policy("batch", timedelta(days=7)))
    (first,) = run.forget(Request(1))
    assert first.state == "accepted", "the batch policy carries out no request at once"
    assert run.run_pending() == []
    with run_directory.reading(run.path) as found:
        policy, pending = found.record.policy, found.record.book.receipts()
    received = datetime.fromisoformat(first.received)
    assert policy.due(pending) == received + timedelta(days=7)
    assert not policy.is_due(pending, received + timedelta(days=6.9))
    assert policy.is_due(pending, received + timedelta(days=7))
    run.forget(Request(2), deadline=(received + timedelta(hours=20)).isoformat())
    assert {r.client for r in run.run_pending()} == {1, 2}, "a deadline within a day makes the whole batch due"
    run.forget(Request(3))
    assert [r.state for r in run.run_pending(everything=True)] == ["purged"]
    run.set_policy(Policy())
    assert run.forget(Request(4))[0].state == "purged"
    assert run.verify().ok


@pytest.mark.parametrize(
    ("name", "window"), [("later", 0.0), ("batch", 0.0), ("batch", -1.0), ("immediate", 1.0), ("batch", 1e5)]
)
def test_impossible_policy_is_refused(name: str, window: float) -> None:
    with pytest.raises(InvalidInput):
        Policy(name, timedelta(days=window))


# ---------------------------------------------------------------------------------------------------------- concurrency


def once(round_: int, act: Callable[[], int], outcomes: list[int]) -> Callable[[int], None]:
    """An ``on_round`` callback that calls ``act`` when ``round_`` is done for the first time."""

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
    arrive = once(1, lambda: forget_in_other_process(run.path, Request(second), defer=True), outcomes)

    def on_round(done: int) -> None:
        rounds.append(done)
        arrive(done)

    run.forget(Request(first), on_round=on_round)
    assert outcomes == [0]
    assert rounds == [1, *range(1, PLAN.rounds + 1)]
    assert {receipt.state for receipt in receipts(run).values()} == {"purged"}


@pytest.mark.parametrize("second", [Request(1, 0), Request(2), Request(0, 99)])
def test_recomputation_absorbs_an_arriving_request(tmp_path: Path, second: Request) -> None:
    require_absorbed(tmp_path, 3, second)


@pytest.mark.slow
@pytest.mark.parametrize("arrives", range(1, PLAN.rounds + 1))
@pytest.mark.parametrize("second", [Request(1, 0), Request(4, 3), Request(2), Request(0, 1), Request(0, 99)])
def test_recomputation_absorbs_a_request_arriving_at_any_round(tmp_path: Path, arrives: int, second: Request) -> None:
    require_absorbed(tmp_path, arrives, second)


def require_absorbed(tmp_path: Path, arrives: int, second: Request) -> None:
    """Start a recomputation, defer ``second`` after round ``arrives``, and compare with a run without both targets.

    The recomputation goes on without the data of ``second``, or rewinds further if they were used before.
    """
    run = opened(tmp_path / "run")
    run.train()
    with run_directory.reading(run.path) as found:
        first = next(
            Request(client) for client in (3, 4, 1) if found.server.first_round(client) == 1 and client != second.client
        )
    outcomes: list[int] = []
    run.forget(first, on_round=once(arrives, lambda: forget_in_other_process(run.path, second, defer=True), outcomes))
    known = second.sample != 99
    assert outcomes == [0 if known else REFUSED]
    never = [first, second] if known else [first]
    assert function_files(run.path) == without(tmp_path / "never", *never)
    assert sorted(r.state for r in receipts(run).values()) == ["purged"] * len(never)
    assert run.verify().ok
    assert not (run.path / "inbox").exists()


def test_forget_on_a_busy_run_is_refused_and_not_recorded(run: Run) -> None:
    with run_directory.reading(run.path) as found:
        first = next(client for client in found.server.roster if found.server.first_round(client) == 1 and client != 2)
    outcomes: list[int] = []
    run.forget(Request(first), on_round=once(4, lambda: forget_in_other_process(run.path, Request(2)), outcomes))
    assert outcomes == [BUSY]
    assert len(receipts(run)) == 1
    assert 2 in run.clients()


def test_forget_on_busy_run_under_batch_policy_is_left_in_the_inbox(run: Run) -> None:
    run.set_policy(Policy("batch", timedelta(days=7)))
    with RunLock(run.path):
        assert forget_in_other_process(run.path, Request(2)) == 0
    assert [each["state"] for each in run.status().open_requests] == ["received"]
    assert [r.client for r in run.run_pending(everything=True)] == [2]


def test_busy_run_takes_a_request_without_reading_any_database(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it costs does not depend on the record: the process at work decides."""
    run.train()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a database was opened")

    with RunLock(run.path), monkeypatch.context() as patch:
        patch.setattr("fedforget.disk.database.Database.__init__", refuse)
        assert [r.state for r in run.forget([Request(2, 1), Request(3)], defer=True)] == ["received"] * 2
    with RunLock(run.path):
        with pytest.raises(UnknownTarget):
            run.forget(Request(2, "nobody"), defer=True)
        again = run.forget(Request(2, 1), defer=True, idempotency_key="k")
    assert [r.state for r in again] == ["received"]
    assert {r.client for r in run.run_pending()} == {2, 3}
    assert function_files(run.path) == without(tmp_path / "never", Request(2, 1), Request(3))


def test_request_deferred_during_training_stays_pending_until_run_pending(tmp_path: Path) -> None:
    run, outcomes = opened(tmp_path / "run"), list[int]()
    run.train(on_round=once(2, lambda: forget_in_other_process(run.path, Request(2), defer=True), outcomes))
    assert outcomes == [0]
    assert run.status().rounds_done == PLAN.rounds
    run.run_pending()
    assert function_files(run.path) == without(tmp_path / "never", Request(2))


def test_processes_deferring_with_equal_and_different_keys_get_one_receipt_per_request(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")

    def submit() -> None:
        targets = [Request(2)] * 4 + [Request(3, 0), Request(3, 1)]
        processes = [
            OtherProcess(run.path, "forget", target, defer=True, idempotency_key=f"key {max(number, 2)}")
            for number, target in enumerate(targets)
        ]
        assert [process.exit_code() for process in processes] == [0] * len(targets)

    run.train(on_round=lambda done: submit() if done == 3 else None)
    run.run_pending()
    distinct = (Request(2), Request(3, 0), Request(3, 1))
    assert len(receipts(run)) == len(distinct), "one receipt per request, however often it was submitted"
    assert function_files(run.path) == without(tmp_path / "never", *distinct)
    assert run.verify().ok


def test_cancel_while_the_request_is_carried_out_raises_run_busy(run: Run, tmp_path: Path) -> None:
    (pending,) = run.forget(Request(2), defer=True)
    outcomes: list[int] = []
    run.run_pending(on_round=once(4, lambda: OtherProcess(run.path, "cancel", pending.id).exit_code(), outcomes))
    assert outcomes == [BUSY]
    assert receipts(run)[pending.id].state == "purged"
    assert function_files(run.path) == without(tmp_path / "never", Request(2))


def test_cancel_racing_with_run_pending_leaves_the_request_cancelled_or_purged(tmp_path: Path) -> None:
    """Two processes at the same time: the request is cancelled and the data stay, or it is purged and they are gone."""
    untouched = without(tmp_path / "all")
    erased = without(tmp_path / "never", Request(2))
    for attempt in range(12):
        run = opened(tmp_path / f"run{attempt}")
        run.train()
        (pending,) = run.forget(Request(2), defer=True)
        calls = [("cancel", pending.id), ("run_pending",)]
        processes = [OtherProcess(run.path, *call) for call in (calls if attempt % 2 else reversed(calls))]
        outcomes = [process.exit_code() for process in processes]
        assert outcomes[0] == 0 or outcomes[1] == 0
        assert all(outcome in (0, BUSY, REFUSED) for outcome in outcomes)
        run.run_pending()
        state = receipts(run)[pending.id].state
        assert state in ("cancelled", "purged")
        assert function_files(run.path) == (untouched if state == "cancelled" else erased)
        assert run.verify().ok


@pytest.mark.parametrize("command", ["run_pending", "train"])
def test_concurrent_processes_carry_out_pending_requests_once(run: Run, tmp_path: Path, command: str) -> None:
    run.forget([Request(2), Request(3, 1)], defer=True)
    outcomes = [process.exit_code() for process in [OtherProcess(run.path, command) for _ in range(3)]]
    assert 0 in outcomes
    assert set(outcomes) <= {0, BUSY}
    run.run_pending()
    assert [r.state for r in receipts(run).values()] == ["purged"] * 2
    assert function_files(run.path) == without(tmp_path / "never", Request(2), Request(3, 1))
    assert run.verify().ok


def test_crash_before_the_inbox_file_is_deleted_duplicates_no_request(
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


def test_inbox_submission_whose_key_came_with_other_requests_is_rejected_and_recorded(run: Run) -> None:
    inbox = Inbox(run.path)
    inbox.leave(Submission.of((Request(2),), "unknown", key="k"))
    second = Submission.of((Request(3),), "unknown", key="k")
    inbox.leave(second)
    run.run_pending()
    found = receipts(run)
    assert sorted(r.state for r in found.values()) == ["purged", "rejected"]
    assert found[second.ids[0]].state == "rejected"
    assert "key" in (found[second.ids[0]].reason or "")


def test_receipts_are_in_order_of_arrival_when_the_clock_is_set_back(run: Run) -> None:
    submissions = [
        replace(Submission.of((Request(client),), "unknown"), received=f"2026-01-0{9 - client}T00:00:00.000+00:00")
        for client in (1, 2, 3, 4)
    ]
    for submission in submissions:
        Inbox(run.path).leave(submission)
    run.forget(Request(0), defer=True)
    found = run.receipts()
    assert [receipt.id for receipt in found[:4]] == [submission.ids[0] for submission in submissions]
    assert [receipt.received for receipt in found[:4]] == [submission.received for submission in submissions]


def test_no_file_of_the_run_contains_a_key_even_of_a_rejected_request(run: Run) -> None:
    """A caller may have put the id of a person into the key."""
    run.cancel(run.forget(Request(4), defer=True, idempotency_key="key-of-a-person")[0].id)
    inbox = Inbox(run.path)
    for target in (Request(2), Request(3)):
        inbox.leave(Submission.of((target,), "unknown", key="key-of-a-person-2"))
    inbox.leave(Submission.of((Request(4),), "unknown", key="key-of-a-person"))
    run.run_pending()
    assert sorted(r.state for r in receipts(run).values()) == ["cancelled", "purged", "rejected", "rejected"]
    assert all(b"key-of-a-person" not in file.read_bytes() for file in run.path.rglob("*") if file.is_file())


def test_one_model_informed_request_lowers_its_whole_batch_to_path(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", seed=None)
    run.train()
    run.forget(Request(2, 1), basis="exogenous", defer=True)
    (exogenous,) = run.run_pending()
    assert exogenous.guarantee == "law-and-path"
    run.forget(Request(3, 1), basis="model-informed", defer=True)
    (client,) = run.forget(Request(3), basis="exogenous")  # also completes the pending request of its sample
    assert client.guarantee == "path"
    assert run.status().tainted
    assert run.verify().seeds_tainted
    assert run.verify().ok
    run.forget(new_seed=True)
    assert not run.status().tainted
    (after,) = run.forget(Request(1), basis="exogenous")
    assert after.guarantee == "law-and-path"


def test_repeated_forget_writes_nothing(run: Run) -> None:
    run.forget([Request(2), Request(3, 1)])
    before = (run.path / "record.db").read_bytes()
    run.forget([Request(2), Request(3, 1)])
    run.forget(Request(2, 0), defer=True)
    assert (run.path / "record.db").read_bytes() == before


def test_reads_of_the_event_chain_do_not_grow_with_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If they did, a batch of a thousand requests would take minutes instead of a second."""
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


# ------------------------------------------------------------------------------------------ keys and ids of requests


def test_key_of_an_undone_cancelled_or_rejected_request_is_refused(run: Run) -> None:
    run.forget(Request(3, 1), idempotency_key="k")
    assert run.forget(Request(3, 1), idempotency_key="k")[0].state == "purged"
    run.add(Request(3, 1), returning=True, seed=1)
    with pytest.raises(InvalidInput, match="added again"):
        run.forget(Request(3, 1), idempotency_key="k")
    assert run.forget(Request(3, 1), idempotency_key="another")[0].state == "purged"
    (pending,) = run.forget(Request(4), defer=True, idempotency_key="cancelled")
    run.cancel(pending.id)
    for defer in (True, False):
        with pytest.raises(InvalidInput, match="was cancelled"):
            run.forget(Request(4), defer=defer, idempotency_key="cancelled")
        with pytest.raises(UnknownTarget):
            run.forget(Request(0, 99), defer=True, idempotency_key="rejected")
    with pytest.raises(UnknownTarget):
        run.forget(Request(0, 99), idempotency_key="rejected")


def test_every_id_returned_for_one_key_finds_the_same_receipt(run: Run) -> None:
    """Three submissions with one key reach the inbox while the run is busy."""
    ids: list[str] = []

    def hand_in_three(done: int) -> None:
        if done == PLAN.rounds and not ids:
            ids.extend(hand_in(run.path, Submission.of((Request(2, 1),), "unknown", key="k"))[0].id for _ in range(3))

    run.forget(Request(1), on_round=hand_in_three)
    if not ids:
        pytest.fail("the first request recomputed nothing, so the inbox was not tested")
    run.run_pending()
    with run_directory.reading(run.path) as found:
        assert {found.record.book.receipt(identifier).state for identifier in ids} == {"purged"}
        assert len({found.record.book.receipt(identifier).id for identifier in ids}) == 1
    (again,) = run.forget(Request(2, 1), idempotency_key="k")
    assert again.state == "purged"


def test_repeated_forget_can_advance_the_deadline_and_lower_the_guarantee_only(tmp_path: Path) -> None:
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
    (completed,) = run.forget(Request(2), basis="model-informed")
    assert (completed.basis, completed.guarantee) == ("model-informed", "path")
    assert run.status().tainted
    assert run.verify().ok


@pytest.mark.parametrize(
    ("basis", "law"), [(Basis.EXOGENOUS, True), (Basis.UNKNOWN, False), (Basis.MODEL_INFORMED, False)]
)
def test_cancel_or_add_keeps_the_law_only_if_exogenous(tmp_path: Path, basis: Basis, law: bool) -> None:
    for act in ("cancel", "add"):
        run = opened(tmp_path / act, seed=None, without=[Request(4, 1)])
        run.train()
        (pending,) = run.forget(Request(2), defer=True, basis="exogenous")
        if act == "cancel":
            run.cancel(pending.id, basis=basis)
        else:
            run.add(Request(4, 1), basis=basis)
        assert run.status().tainted is not law
        (receipt,) = run.forget(Request(3), basis="exogenous")
        assert receipt.guarantee == ("law-and-path" if law else "path")
        assert run.verify().ok


def test_received_time_is_that_of_the_submission(run: Run) -> None:
    submission = Submission.of((Request(2),), "unknown")
    early = replace(submission, received="2026-01-01T00:00:00.000+00:00")
    Inbox(run.path).leave(early)
    run.run_pending()
    assert receipts(run)[early.ids[0]].times["received"] == early.received


def test_event_times_never_decrease_when_the_clock_is_set_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "now", lambda: "1999-01-01T00:00:00.000+00:00")
    run.forget(Request(2))
    with run_directory.reading(run.path) as found:
        times = [event.time for event in found.record.chain.events()]
    assert times == sorted(times)
    assert run.verify().ok


def test_sample_erased_individually_keeps_the_id_of_its_own_request(run: Run) -> None:
    (of_sample,) = run.forget(Request(3, 1))
    (of_client,) = run.forget(Request(3))
    (again,) = run.forget(Request(3, 1))
    assert (again.id, again.level, again.sample) == (of_sample.id, "sample", 1)
    assert run.forget(Request(3)) == [of_client]
    (other_sample,) = run.forget(Request(3, 2))  # erased with its client, so it has the client's receipt
    assert (other_sample.id, other_sample.level, other_sample.sample) == (of_client.id, "client", None)


def test_forget_of_an_emptied_client_returns_the_receipt_of_its_last_sample(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", data={**DATA, 7: {0: DATA[1][0]}})
    run.train()
    (last,) = run.forget(Request(7, 0))
    (client,), (other,) = run.forget(Request(7)), run.forget(Request(7, 77))
    assert {(r.id, r.level, r.client, r.sample) for r in (client, other)} == {(last.id, "sample", 7, None)}
    assert run.forget(Request(7, 0)) == [last]


def test_cancel_accepts_the_id_of_a_duplicate_submission(run: Run) -> None:
    inbox = Inbox(run.path)
    first, second = (Submission.of((Request(2),), "unknown") for _ in range(2))
    inbox.leave(first)
    inbox.leave(second)
    run.forget(Request(1), defer=True)
    assert run.cancel(second.ids[0]).state == "cancelled"
    assert run.cancel(first.ids[0]).state == "cancelled"


def test_stage_times_never_decrease_when_the_submitters_clock_is_ahead(run: Run) -> None:
    ahead = Submission.of((Request(2),), "unknown")
    later = datetime.fromisoformat(ahead.received) + timedelta(hours=1)
    Inbox(run.path).leave(replace(ahead, received=later.isoformat(timespec="milliseconds")))
    run.run_pending()
    times = list(receipts(run)[ahead.ids[0]].times.values())
    assert times == sorted(times)


def interrupt(round_: int) -> None:
    raise KeyboardInterrupt


def test_interrupted_new_seed_draws_new_seeds_once_and_recomputes_every_step(run: Run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run.forget(Request(2), new_seed=True, on_round=interrupt)
    seeds = (run.path / "plan.toml").read_bytes()
    (receipt,) = run.forget(Request(2), new_seed=True)  # the same call finishes the batch
    assert (run.path / "plan.toml").read_bytes() == seeds
    assert (receipt.first_changed_step, receipt.recomputed_steps) == (1, PLAN.steps)
    assert run.verify().ok
    assert run.forget(Request(2), new_seed=True)[0].id == receipt.id  # a further call draws further seeds
    assert (run.path / "plan.toml").read_bytes() != seeds


def test_key_used_with_another_new_seed_option_is_refused(run: Run) -> None:
    run.forget(Request(2), idempotency_key="k")
    with pytest.raises(InvalidInput, match="was used for other requests"):
        run.forget(Request(2), idempotency_key="k", new_seed=True)


def test_batch_finished_with_a_model_informed_request_guarantees_path_only(tmp_path: Path) -> None:
    """An exogenous batch is interrupted, then finished together with a model-informed request."""
    run = opened(tmp_path / "run", seed=None)
    run.train()
    with run_directory.reading(run.path) as found:
        drawn = int(next(iter(found.server.first_rounds())))
    with pytest.raises(KeyboardInterrupt):
        run.forget([Request(drawn), Request((drawn + 1) % 5)], basis="exogenous", on_round=interrupt)
    run.forget(Request((drawn + 2) % 5), basis="model-informed")
    assert {receipt.guarantee for receipt in run.receipts()} == {"path"}
    assert run.verify().ok


def test_run_pending_after_an_interruption_returns_the_receipts_of_the_interrupted_batch(run: Run) -> None:
    run.forget([Request(2), Request(4, 1)], defer=True)
    with pytest.raises(KeyboardInterrupt):
        run.run_pending(on_round=interrupt)
    returned = {(r.client, r.sample, r.state) for r in run.run_pending()}
    assert returned == {(2, None, "purged"), (4, 1, "purged")}


def test_erased_sample_has_the_receipt_of_the_latest_request_that_covered_it(run: Run) -> None:
    (of_sample,) = run.forget(Request(3, 1))
    run.add(Request(3, 1), returning=True, seed=1)
    (of_client,) = run.forget(Request(3))
    (again,) = run.forget(Request(3, 1))
    assert again.id == of_client.id != of_sample.id


@pytest.mark.parametrize(
    "given", [{"deadline": 5}, {"deadline": "9999-12-31T23:59-12:00"}, {"idempotency_key": 5}, {"basis": "guess"}]
)
def test_malformed_deadline_key_or_basis_is_refused_and_changes_nothing(run: Run, given: dict[str, Any]) -> None:
    before = function_files(run.path)
    with pytest.raises(InvalidInput):
        run.forget(Request(2), **given)
    assert function_files(run.path) == before
    assert receipts(run) == {}


@pytest.mark.parametrize("name", ["batch", "immediate"])
@pytest.mark.parametrize("days", [0.0, -0.5, -1.0, float("nan"), float("inf"), -float("inf"), 3650.1, 1e308])
def test_impossible_policy_window_is_refused(name: str, days: float) -> None:
    with pytest.raises(InvalidInput, match="a window cannot have"):
        Policy.of_days(name, days)


def test_policy_window_is_stored_without_rounding(run: Run) -> None:
    run.set_policy(Policy.of_days("batch", 1000.123))
    with run_directory.reading(run.path) as found:
        assert found.record.policy.window == timedelta(days=1000.123)
    with pytest.raises(InvalidInput):
        run.set_policy("batch")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        run.add(5)  # type: ignore[arg-type]


def test_status_polled_during_requests_is_consistent_and_does_not_disturb_them(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    run.train()
    readers = [OtherProcess(run.path, "poll_status") for _ in range(2)]
    for request in (Request(3), Request(1, 0), Request(4)):
        run.forget(request)
        run.add(request, returning=True, seed=1)
    assert [reader.exit_code() for reader in readers] == [0, 0]
    assert run.verify().ok


# ---------------------------------------------------------------------------------------- what a receipt says of steps


def test_receipts_count_the_steps_of_each_request_alone_and_of_the_batch(run: Run) -> None:
    targets = [Request(4), Request(3, 1), Request(1, 0)]
    with run_directory.reading(run.path) as found:
        first = {Request(4): found.server.first_round(4)}
        for target in targets[1:]:
            step = found.clients.first_steps(target.client).get(target.sample or 0)
            first[target] = None if step is None else PLAN.round_of(step)
    alone = [0 if r is None else (PLAN.rounds - r + 1) * PLAN.local_steps for r in map(first.get, targets)]
    assert len({*alone}) > 1
    made = run.forget(targets)
    assert [receipt.steps_alone for receipt in made] == alone
    assert [receipt.recomputed_steps for receipt in made] == [max(alone)] * 3


def test_request_that_changes_nothing_and_joins_a_recomputation_counts_no_steps(run: Run) -> None:
    with run_directory.reading(run.path) as found:
        first = next(client for client, round_ in found.server.first_rounds().items() if round_ == 1)
    with pytest.raises(KeyboardInterrupt):
        run.forget(Request(first), on_round=interrupt)
    with run_directory.reading(run.path, only_idle=False) as found:
        undrawn = next(client for client in found.server.roster if found.server.first_round(client) is None)
        assert found.server.rounds_done < PLAN.rounds
    (receipt,) = run.forget(Request(undrawn))
    assert (receipt.first_changed_step, receipt.steps_alone, receipt.recomputed_steps) == (None, 0, 0)


def test_receipt_cannot_be_changed_by_its_holder(run: Run) -> None:
    (receipt,) = run.forget(Request(2), defer=True)
    with pytest.raises(FrozenInstanceError):
        receipt.state = "purged"  # type: ignore[misc]


def test_book_finds_the_target_that_a_request_erased(run: Run) -> None:
    of_client, of_sample = run.forget([Request(2), Request(3, 1)])
    (waiting,) = run.forget(Request(4), defer=True)
    with run_directory.reading(run.path) as found:
        book, names = found.record.book, found.record.pseudonyms
        inside = book.find(Request(2, 0))
        assert inside is not None
        assert (inside.id, inside.client, inside.sample) == (of_client.id, 2, 0)
        assert book.find(Request(3)) is None
        assert book.find(Request(4)) is None
        pseudonym = hashlib.blake2b(names.of(Request(3, 1)), digest_size=16).hexdigest()
        assert book.pseudonym_of(of_sample.id) == pseudonym != book.pseudonym_of(of_client.id)
        assert book.pseudonym_of(waiting.id) is None
        assert book.state_digest_of(of_client.id) == book.state_digest_of(of_sample.id) == run.state_digest()
        assert book.state_digest_of(waiting.id) is None
        assert book.state_digest_of("r-0") is None
        assert book.round_of(of_client.id) == PLAN.rounds
        assert book.round_of(waiting.id) == 0
    run.run_pending()
    with run_directory.reading(run.path) as found:
        assert found.record.book.state_digest_of(of_client.id) is None, "that state held what is gone now"


@pytest.mark.parametrize("basis", list(Basis))
def test_only_an_exogenous_request_leaves_given_seeds_untainted(run: Run, basis: Basis) -> None:
    """A given seed allows `path` only, whatever the basis; but the seeds are not tainted by it."""
    run.forget(Request(2), basis=basis.value)
    with run_directory.reading(run.path) as found:
        assert found.record.book.tainted is (basis != Basis.EXOGENOUS)
    assert run.verify().ok


def test_request_interrupted_between_the_rewinds_of_clients_and_server_is_finished(run: Run, tmp_path: Path) -> None:
    """The clients have rewound to round 0 and have no witness left; the server still has all rounds."""
    with run_directory.reading(run.path) as found:
        used = [(c, s, step) for c in found.clients.clients() for s, step in found.clients.first_steps(c).items()]
    client, sample, _ = next(each for each in used if PLAN.round_of(each[2]) == 1)
    target = Request(client, sample)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerStore, "rewind", stop)
        with pytest.raises(KeyboardInterrupt):
            run.forget(target)
    again = opened(run.path, plan=None, seed=None)
    again.run_pending()
    assert function_files(run.path) == without(tmp_path / "never", target)
    assert [receipt.state for receipt in again.receipts()] == ["purged"]
