"""Many requests at once: no log grows beyond what a reader takes after a crash, and a submission stays whole."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedforget import LocalOptimizer, Plan, Request, Run
from fedforget.disk import database, lock, page_sum, wal
from fedforget.errors import FedForgetError, InvalidInput, UnknownTarget
from fedforget.health.doctor import examine
from fedforget.requests import intake
from fedforget.requests.inbox import Inbox
from fedforget.store import run_directory
from tests.helpers import function_files
from tests.requests.test_state_machine import killed_at
from tests.requests.world import DATA, model, opened, samples
from tests.tally import exhaustive

LARGE = {client: samples(400, client) for client in range(3)}
SMALL_PLAN = Plan(2, 2, 1, 2, LocalOptimizer(lr=0.1))
MANY = [Request(client, sample) for client in range(3) for sample in range(300)]
FIVE = [Request(client, sample) for client in (2, 3) for sample in (0, 1, 2)][:5]


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Limits of kilobytes. Returns the sizes of the log after every commit, as they come."""
    sizes: list[int] = []
    monkeypatch.setattr(intake, "AT_ONCE", 100)
    monkeypatch.setattr(database, "_FOLD_AT", 2**16)
    monkeypatch.setattr(wal, "_ROOM", 2**19)
    monkeypatch.setattr(wal, "_TIMES", 2)
    monkeypatch.setattr(lock, "PATIENCE", 1.0)
    commit = database.Database._fold_if_large

    def noting(self: database.Database) -> None:
        sizes.append(self._log_size())
        assert sizes[-1] <= wal.largest_log(self.path.stat().st_size)
        commit(self)

    monkeypatch.setattr(database.Database, "_fold_if_large", noting)
    return sizes


def large(path: Path) -> Run:
    return opened(path, SMALL_PLAN, data=LARGE)


@pytest.mark.parametrize("defer", [True, False])
def test_many_requests_at_once_are_carried_out_and_the_log_stays_short(
    tmp_path: Path, low: list[int], defer: bool
) -> None:
    run = large(tmp_path / "run")
    run.train()
    receipts = run.forget(MANY, basis="exogenous", defer=defer)
    if defer:
        assert {receipt.state for receipt in receipts} == {"accepted"}
        assert run.status().states == {"accepted": len(MANY)}
        receipts = run.run_pending()
    assert [(receipt.client, receipt.sample) for receipt in receipts] == [(r.client, r.sample) for r in MANY]
    assert {receipt.state for receipt in receipts} == {"purged"}
    assert len({receipt.id for receipt in receipts}) == len(run.receipts()) == len(MANY)
    assert max(low) > 2**16
    assert all(each.ok for each in examine(run.path))
    never = opened(tmp_path / "never", SMALL_PLAN, data=LARGE, without=MANY)
    never.train()
    assert function_files(run.path) == function_files(never.path)


def test_purging_a_large_batch_folds_the_log_while_readers_are_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that says ``purged`` is made inside the section that excludes readers, and folds inside it."""
    run = opened(tmp_path / "run")
    monkeypatch.setattr(database, "_FOLD_AT", 0)
    monkeypatch.setattr(lock, "PATIENCE", 1.0)
    assert {receipt.state for receipt in run.forget(FIVE)} == {"purged"}


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize("fold", [1, 2, 4, 8])
def test_log_left_by_a_kill_before_it_is_folded_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold: int
) -> None:
    run, folds = large(tmp_path / "run"), [0]
    real = database.Database.fold

    def kill(self: database.Database) -> None:
        folds[0] += 1
        if folds[0] == fold:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(database.Database, "fold", kill)
        assert killed_at(0, lambda: large_again(run.path).forget(MANY))
    assert (run.path / "record.db-wal").stat().st_size > 2**16
    assert sum(run.status().states.values()) > 0
    assert {receipt.state for receipt in run.forget(MANY)} == {"purged"}
    assert len(run.receipts()) == len(MANY)
    assert all(each.ok for each in examine(run.path))


@pytest.mark.slow
def test_more_requests_than_three_transactions_enter_keep_the_real_limits(tmp_path: Path) -> None:
    """Nothing is lowered: three logs of more than 16 MB are folded, and the run is killed before the fourth is."""
    data = {client: samples(9_000, client) for client in range(4)}
    targets = [Request(client, sample) for client in data for sample in range(8_000)]
    run, folds, real = opened(tmp_path / "run", SMALL_PLAN, data=data), [0], database.Database.fold
    run.train()

    def kill(self: database.Database) -> None:
        folds[0] += 1
        if folds[0] == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database.Database, "fold", kill)
        assert killed_at(0, lambda: Run(run.path, model=model(), data=data).forget(targets, basis="exogenous"))
    assert (run.path / "record.db-wal").stat().st_size > 2**24
    run.run_pending()
    assert not Inbox(run.path)
    receipts = run.receipts()
    assert len({receipt.id for receipt in receipts}) == len(receipts) == len(targets)
    assert {receipt.state for receipt in receipts} == {"purged"}
    assert run.verify().ok


def large_again(path: Path) -> Run:
    return opened(path, None, data=LARGE, seed=None)


def test_transaction_that_would_make_the_log_too_long_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = large(tmp_path / "run")
    run.forget(client=0, sample=399, defer=True)
    monkeypatch.setattr(database, "_FOLD_AT", 2**16)
    monkeypatch.setattr(wal, "_ROOM", 2**18)
    monkeypatch.setattr(wal, "_TIMES", 1)
    with pytest.raises(InvalidInput, match="changes too much of"):
        run.forget(MANY, defer=True)
    assert run.status().states == {"accepted": 1}
    assert [receipt.state for receipt in run.run_pending()] == ["purged"]


def test_run_whose_log_could_not_be_folded_is_sealed_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the error the old seal of the record did not fit any more, and every later command called it damaged."""
    run = opened(tmp_path / "run")

    def fail(*_: object) -> int:
        raise InvalidInput("this time it fails")

    with monkeypatch.context() as patch:
        patch.setattr(database, "_FOLD_AT", 0)
        patch.setattr(page_sum, "after_log", fail)
        with pytest.raises(FedForgetError, match="this time"):
            run.forget(FIVE, defer=True)
    assert run.status().states == {"accepted": 5}
    assert {receipt.state for receipt in run.run_pending()} == {"purged"}


def test_rejected_submission_of_many_is_rejected_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "AT_ONCE", 2)
    run = opened(tmp_path / "run")
    with pytest.raises(UnknownTarget):
        run.forget([*FIVE, Request(77)], defer=True, idempotency_key="mine")
    assert run.status().states == {"rejected": 6}
    with pytest.raises(UnknownTarget, match="was rejected"):
        run.forget([*FIVE, Request(77)], defer=True, idempotency_key="mine")
    assert not Inbox(run.path)


def test_key_of_many_requests_is_remembered_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "AT_ONCE", 2)
    run = opened(tmp_path / "run")
    run.train()
    for defer in (True, False):
        targets = FIVE if defer else [Request(4, sample) for sample in range(5)]
        first = run.forget(targets, defer=defer, idempotency_key=f"key {defer}")
        again = run.forget(targets, defer=defer, idempotency_key=f"key {defer}")
        assert [receipt.id for receipt in first] == [receipt.id for receipt in again]
    assert len(run.receipts()) == 10


def test_many_requests_with_new_seeds_are_carried_out_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "AT_ONCE", 2)
    run = opened(tmp_path / "run")
    run.train()
    before = run.state_digest()
    assert {receipt.state for receipt in run.forget(FIVE, new_seed=True)} == {"purged"}
    assert run.state_digest() != before
    assert any(event["kind"] == "reseeded" for event in run_events(run))


def run_events(run: Run) -> list[dict[str, Any]]:
    with run_directory.reading(run.path) as found:
        return found.record.events()


ACTIONS: dict[str, Callable[[Run], object]] = {
    "defer": lambda run: run.forget(FIVE, basis="exogenous", defer=True),
    "forget": lambda run: run.forget(FIVE, basis="exogenous"),
    "reject": lambda run: run.forget([*FIVE, Request(77)], basis="exogenous", defer=True),
}


@pytest.mark.parametrize("action", ["defer", pytest.param("forget", marks=pytest.mark.slow), "reject"])
def test_submission_in_parts_killed_at_any_write_is_accepted_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(intake, "AT_ONCE", 2)
    opened(tmp_path / "trained").train()
    never = opened(tmp_path / "never", without=FIVE)
    never.train()
    expected, write, killed, seen = function_files(never.path), 1, True, set()
    while killed:
        path = tmp_path / f"copy{write}"
        shutil.copytree(tmp_path / "trained", path)
        killed = killed_at(write, lambda path=path: attempt(path, action))  # type: ignore[misc]
        assert all(each.ok or "interrupted" in each.detail for each in examine(path)), write
        run = opened(path, None, seed=None)
        run.run_pending()
        there = len(run.receipts())
        assert there in (0, 6 if action == "reject" else 5), write
        seen.add(there)
        assert not Inbox(path), write
        if action != "reject":
            assert len(run.forget(FIVE, basis="exogenous", defer=True)) == 5
            run.run_pending()
            assert function_files(path) == expected, write
            assert len(run.receipts()) == 5, write
            assert {receipt.state for receipt in run.receipts()} == {"purged"}, write
        write += 1 if action == "defer" or exhaustive() else 5
    assert len(seen) == 2
    assert write > 8


def attempt(path: Path, action: str) -> None:
    try:
        ACTIONS[action](opened(path, None, seed=None))
    except UnknownTarget:
        assert action == "reject"


def test_nothing_of_the_ids_stays_after_many_requests_are_purged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "AT_ONCE", 2)
    marked = {f"patient-{number}-1c5a9": DATA[2][number] for number in range(6)}
    run = opened(tmp_path / "run", data={**DATA, 2: marked, "spare": samples(4, 9)})
    run.train()
    run.forget([Request(2, sample) for sample in marked][:5], basis="exogenous", defer=True)
    assert any(b"1c5a9" in path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    run.run_pending()
    run.forget(client=2, sample="patient-5-1c5a9")
    assert not [path for path in run.path.rglob("*") if path.is_file() and b"1c5a9" in path.read_bytes()]
