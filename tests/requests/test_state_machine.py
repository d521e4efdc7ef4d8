"""Any sequence of submitting, cancelling, training, crashing, forgetting and adding, against learning from scratch."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedforget import Request, Run, read_receipt
from fedforget.disk import database, files
from fedforget.disk.database import Database
from fedforget.errors import InvalidInput, UnknownTarget
from fedforget.requests import inbox
from fedforget.requests.inbox import Inbox
from fedforget.requests.lifecycle import Submission
from fedforget.requests.policy import Policy
from fedforget.store import model_files, record_audit, run_directory
from tests.helpers import function_files
from tests.requests.world import DATA, PLAN, opened
from tests.tally import exhaustive, tally

TARGETS = [Request(client) for client in DATA] + [Request(c, s) for c in DATA for s in list(DATA[c])[:4]]
ALL = frozenset((client, sample) for client in DATA for sample in DATA[client])


def members_of(request: Request) -> frozenset[tuple[Any, Any]]:
    return frozenset(pair for pair in ALL if pair[0] == request.client and request.sample in (None, pair[1]))


@cache
def from_scratch(present: frozenset[tuple[Any, Any]], rounds: int) -> dict[str, bytes]:
    """The naive reference: a run that never had anything else."""
    left_out = [Request(client, sample) for client, sample in sorted(ALL - present)]
    directory = Path(tempfile.mkdtemp(prefix="fedforget-reference-"))
    try:
        run = opened(directory / "run", without=left_out)
        run.train(rounds)
        return function_files(run.path)
    finally:
        shutil.rmtree(directory)


def killed_at(moment: int, act: Callable[[], object]) -> bool:
    """Do something in a process that is killed before its n-th write becomes durable; says whether it was."""
    child = os.fork()
    if child == 0:
        touched = 0

        def touch() -> None:
            nonlocal touched
            touched += 1
            if touched == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        real_transaction, real_sync = Database.transaction, files.sync_directory

        def transaction(self: Database) -> Any:
            touch()
            return real_transaction(self)

        def sync_directory(path: Path) -> None:
            touch()
            real_sync(path)

        Database.transaction = transaction  # type: ignore[method-assign]
        for module in (files, database, model_files, inbox):
            module.sync_directory = sync_directory  # type: ignore[attr-defined]
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    outcome = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert outcome in (0, -signal.SIGKILL), outcome
    return outcome != 0


class Life(RuleBasedStateMachine):
    """What is present, what waits, and how far training has come, kept by hand beside the run."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fedforget-life-"))
        self.path = self.directory / "run"
        self.present = ALL
        self.waiting: dict[str, Request] = {}
        self.rounds = 0
        self.closed: set[str] = set()
        self.keys = 0
        self.run.train(0)

    @property
    def run(self) -> Run:
        return opened(self.path)

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def take_out(self, request: Request) -> None:
        self.present -= members_of(request)
        there = {client for client, _ in self.present}
        for identifier, other in list(self.waiting.items()):
            if not members_of(other) & self.present or other.client not in there:
                del self.waiting[identifier]
                self.closed.add(identifier)

    @staticmethod
    def keeps_somebody(present: frozenset[tuple[Any, Any]], *requests: Request) -> bool:
        for request in requests:
            present -= members_of(request)
        return bool(present)

    # Rules

    @rule(more=st.integers(1, 3))
    def train(self, more: int) -> None:
        self.rounds = min(PLAN.rounds, self.rounds + more)
        self.run.train(self.rounds)

    @rule(request=st.sampled_from(TARGETS))
    def defer(self, request: Request) -> None:
        if not members_of(request) & self.present:
            with pytest.raises((UnknownTarget, InvalidInput)) if not self.erased(request) else contextlib.nullcontext():
                self.run.forget(request, defer=True)
            return
        (receipt,) = self.run.forget(request, defer=True)
        (again,) = self.run.forget(request, defer=True)
        assert again.id == receipt.id
        self.waiting[receipt.id] = request

    def erased(self, request: Request) -> bool:
        return bool(members_of(request)) and not members_of(request) & self.present

    @rule(request=st.sampled_from(TARGETS))
    def forget(self, request: Request) -> None:
        if not self.keeps_somebody(self.present, request) or not members_of(request) & self.present:
            return
        (receipt,) = self.run.forget(request)
        assert receipt.state == "purged"
        self.take_out(request)

    @precondition(lambda self: self.waiting)
    @rule(place=st.integers(0, 10))
    def cancel(self, place: int) -> None:
        identifier = sorted(self.waiting)[place % len(self.waiting)]
        assert self.run.cancel(identifier).state == "cancelled"
        del self.waiting[identifier]
        self.closed.add(identifier)

    @precondition(lambda self: self.closed)
    @rule(place=st.integers(0, 10))
    def cancel_too_late(self, place: int) -> None:
        identifier = sorted(self.closed)[place % len(self.closed)]
        if {receipt.id: receipt.state for receipt in self.run.receipts()}[identifier] == "cancelled":
            assert self.run.cancel(identifier).state == "cancelled"  # once is enough, twice no error
            return
        with pytest.raises(InvalidInput, match="too late"):
            self.run.cancel(identifier)

    @rule()
    def run_pending(self) -> None:
        if not self.keeps_somebody(self.present, *self.waiting.values()):
            return
        met = self.run.run_pending()
        assert {receipt.id for receipt in met} == set(self.waiting)
        for request in list(self.waiting.values()):
            self.take_out(request)

    @rule(request=st.sampled_from(TARGETS), copies=st.integers(1, 3), meet=st.booleans(), key=st.booleans())
    def hand_in(self, request: Request, copies: int, meet: bool, key: bool) -> None:
        """Left in the inbox, as while somebody works, perhaps several times: it is one request, and met once."""
        left = [request, *self.waiting.values()]
        if not members_of(request) & self.present or not self.keeps_somebody(self.present, *left):
            return
        known = {waits: identifier for identifier, waits in self.waiting.items()}.get(request)
        self.keys += 1
        before = len(self.run.receipts())
        told = [Submission.of((request,), "unknown", key=f"key {self.keys}" if key else None) for _ in range(copies)]
        for submission in told:
            Inbox(self.path).leave(submission)
        if meet:
            assert {receipt.state for receipt in self.run.run_pending()} == {"purged"}
            for each in left:
                self.take_out(each)
        else:
            self.run.set_policy(Policy())  # whatever changes the run may find them; this does not
            (receipt,) = self.run.forget(request, defer=True)
            self.waiting[receipt.id] = request
        with run_directory.reading(self.path) as run:
            ids = {run.record.book.receipt(submission.ids[0]).id for submission in told}
        assert len(ids) == 1, "one request, under whichever id somebody was told"
        assert known in (None, *ids)
        assert len(self.run.receipts()) == before + (known is None)
        assert not (self.path / "inbox").exists()

    @rule(request=st.sampled_from(TARGETS))
    def add(self, request: Request) -> None:
        self.run.add(request, returning=True, seed=1)
        self.present |= members_of(request)

    @rule(request=st.sampled_from(TARGETS), moment=st.integers(1, 60))
    def crash_while_forgetting(self, request: Request, moment: int) -> None:
        if not self.keeps_somebody(self.present, request) or not members_of(request) & self.present:
            return
        killed_at(moment, lambda: self.run.forget(request))
        self.forget(request)

    @rule(request=st.sampled_from(TARGETS), moment=st.integers(1, 60), pending=st.booleans())
    def crash_while_forgetting_and_do_something_else(self, request: Request, moment: int, pending: bool) -> None:
        """Whoever comes next finishes what was begun; what was not begun has never been asked for."""
        if not self.keeps_somebody(self.present, request) or not members_of(request) & self.present:
            return
        killed_at(moment, lambda: self.run.forget(request))
        if pending and self.keeps_somebody(self.present, request, *self.waiting.values()):
            self.run.run_pending()
            for waiting in list(self.waiting.values()):
                self.take_out(waiting)
        else:
            self.run.train(self.rounds)
        with run_directory.reading(self.path) as run:
            there = {(client, sample) for client in run.server.roster for sample in run.clients.samples(client)}
        if not members_of(request) & there:
            self.take_out(request)

    @rule(more=st.integers(1, 3), moment=st.integers(1, 30))
    def crash_while_training(self, more: int, moment: int) -> None:
        goal = min(PLAN.rounds, self.rounds + more)
        killed_at(moment, lambda: self.run.train(goal))
        self.rounds = goal
        self.run.train(goal)

    @rule(moment=st.integers(1, 60))
    def crash_while_meeting(self, moment: int) -> None:
        if not self.keeps_somebody(self.present, *self.waiting.values()):
            return
        killed_at(moment, self.run.run_pending)
        self.run.run_pending()
        for request in list(self.waiting.values()):
            self.take_out(request)

    @rule(request=st.sampled_from(TARGETS), moment=st.integers(1, 60))
    def crash_while_adding(self, request: Request, moment: int) -> None:
        killed_at(moment, lambda: self.run.add(request, returning=True, seed=1))
        self.add(request)

    @rule(place=st.integers(0, 10))
    def verify(self, place: int) -> None:
        assert self.run.verify().ok
        if self.closed:
            receipt = self.path.with_name("receipt.json")
            receipt.write_text(json.dumps(self.run.signed_receipt(sorted(self.closed)[place % len(self.closed)])))
            found = self.run.check_receipt(read_receipt(receipt, self.path / "receipt-key.pub.pem"))
            assert found.ok, found.problems

    # What must hold after each of them

    @invariant()
    def is_what_it_would_be_from_scratch(self) -> None:
        if hasattr(self, "path"):
            assert function_files(self.path) == from_scratch(self.present, self.rounds)
            tally("lives/steps, each compared with learning from scratch")

    @invariant()
    def the_record_tells_the_story(self) -> None:
        if hasattr(self, "path"):
            with run_directory.reading(self.path) as run:
                assert record_audit.find_problem(run.record, run.server.seed_origin) is None
                assert set(run.record.book.waiting()) == set(self.waiting)
                assert not run.record.batches.pending()


def sweep(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=not exhaustive(),  # other lives each time, where there is time for it
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_many_lives() -> None:
    sweep(200 if exhaustive() else 30, 20)
