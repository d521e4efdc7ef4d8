"""Random sequences of submit, cancel, train, crash, forget and add, each state compared with training from scratch."""

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
    """The reference: the files of a run that was trained on ``present`` only."""
    left_out = [Request(client, sample) for client, sample in sorted(ALL - present)]
    directory = Path(tempfile.mkdtemp(prefix="fedforget-reference-"))
    try:
        run = opened(directory / "run", without=left_out)
        run.train(rounds)
        return function_files(run.path)
    finally:
        shutil.rmtree(directory)


def killed_at(write: int, act: Callable[[], object]) -> bool:
    """Run ``act`` in a child that is killed before its n-th write is durable; return whether it was killed."""
    child = os.fork()
    if child == 0:
        writes = 0

        def count() -> None:
            nonlocal writes
            writes += 1
            if writes == write:
                os.kill(os.getpid(), signal.SIGKILL)

        real_transaction, real_sync = Database.transaction, files.sync_directory

        def transaction(self: Database) -> Any:
            count()
            return real_transaction(self)

        def sync_directory(path: Path) -> None:
            count()
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


class RequestMachine(RuleBasedStateMachine):
    """A model of the run: which samples are present, which requests are pending, how many rounds are done."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="fedforget-life-"))
        self.path = self.directory / "run"
        self.present = ALL
        self.pending: dict[str, Request] = {}
        self.rounds = 0
        self.closed: set[str] = set()
        self.keys = 0
        self.run.train(0)

    @property
    def run(self) -> Run:
        return opened(self.path)

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def erase_from_model(self, request: Request) -> None:
        self.present -= members_of(request)
        roster = {client for client, _ in self.present}
        for identifier, other in list(self.pending.items()):
            if not members_of(other) & self.present or other.client not in roster:
                del self.pending[identifier]
                self.closed.add(identifier)

    @staticmethod
    def leaves_samples(present: frozenset[tuple[Any, Any]], *requests: Request) -> bool:
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
        self.pending[receipt.id] = request

    def erased(self, request: Request) -> bool:
        return bool(members_of(request)) and not members_of(request) & self.present

    @rule(request=st.sampled_from(TARGETS))
    def forget(self, request: Request) -> None:
        if not self.leaves_samples(self.present, request) or not members_of(request) & self.present:
            return
        (receipt,) = self.run.forget(request)
        assert receipt.state == "purged"
        self.erase_from_model(request)

    @precondition(lambda self: self.pending)
    @rule(place=st.integers(0, 10))
    def cancel(self, place: int) -> None:
        identifier = sorted(self.pending)[place % len(self.pending)]
        assert self.run.cancel(identifier).state == "cancelled"
        del self.pending[identifier]
        self.closed.add(identifier)

    @precondition(lambda self: self.closed)
    @rule(place=st.integers(0, 10))
    def cancel_too_late(self, place: int) -> None:
        identifier = sorted(self.closed)[place % len(self.closed)]
        if {receipt.id: receipt.state for receipt in self.run.receipts()}[identifier] == "cancelled":
            assert self.run.cancel(identifier).state == "cancelled"  # cancelling twice is no error
            return
        with pytest.raises(InvalidInput, match="too late"):
            self.run.cancel(identifier)

    @rule()
    def run_pending(self) -> None:
        if not self.leaves_samples(self.present, *self.pending.values()):
            return
        completed = self.run.run_pending()
        assert {receipt.id for receipt in completed} == set(self.pending)
        for request in list(self.pending.values()):
            self.erase_from_model(request)

    @rule(request=st.sampled_from(TARGETS), copies=st.integers(1, 3), carry_out=st.booleans(), key=st.booleans())
    def hand_in(self, request: Request, copies: int, carry_out: bool, key: bool) -> None:
        """Leave one to three copies of a request in the inbox, as on a busy run: they become one request."""
        left = [request, *self.pending.values()]
        if not members_of(request) & self.present or not self.leaves_samples(self.present, *left):
            return
        known = {other: identifier for identifier, other in self.pending.items()}.get(request)
        self.keys += 1
        before = len(self.run.receipts())
        submissions = [
            Submission.of((request,), "unknown", key=f"key {self.keys}" if key else None) for _ in range(copies)
        ]
        for submission in submissions:
            Inbox(self.path).leave(submission)
        if carry_out:
            assert {receipt.state for receipt in self.run.run_pending()} == {"purged"}
            for each in left:
                self.erase_from_model(each)
        else:
            self.run.set_policy(Policy())  # a command that does not take in the inbox
            (receipt,) = self.run.forget(request, defer=True)
            self.pending[receipt.id] = request
        with run_directory.reading(self.path) as run:
            ids = {run.record.book.receipt(submission.ids[0]).id for submission in submissions}
        assert len(ids) == 1, "every submission's id leads to the same request"
        assert known in (None, *ids)
        assert len(self.run.receipts()) == before + (known is None)
        assert not (self.path / "inbox").exists()

    @rule(request=st.sampled_from(TARGETS))
    def add(self, request: Request) -> None:
        self.run.add(request, returning=True, seed=1)
        self.present |= members_of(request)

    @rule(request=st.sampled_from(TARGETS), write=st.integers(1, 60))
    def crash_while_forgetting(self, request: Request, write: int) -> None:
        if not self.leaves_samples(self.present, request) or not members_of(request) & self.present:
            return
        killed_at(write, lambda: self.run.forget(request))
        self.forget(request)

    @rule(request=st.sampled_from(TARGETS), write=st.integers(1, 60), pending=st.booleans())
    def crash_while_forgetting_then_run_another_command(self, request: Request, write: int, pending: bool) -> None:
        """The next command finishes a request that was accepted before the crash; one that was not leaves no trace."""
        if not self.leaves_samples(self.present, request) or not members_of(request) & self.present:
            return
        killed_at(write, lambda: self.run.forget(request))
        if pending and self.leaves_samples(self.present, request, *self.pending.values()):
            self.run.run_pending()
            for other in list(self.pending.values()):
                self.erase_from_model(other)
        else:
            self.run.train(self.rounds)
        with run_directory.reading(self.path) as run:
            present = {(client, sample) for client in run.server.roster for sample in run.clients.samples(client)}
        if not members_of(request) & present:
            self.erase_from_model(request)

    @rule(more=st.integers(1, 3), write=st.integers(1, 30))
    def crash_while_training(self, more: int, write: int) -> None:
        goal = min(PLAN.rounds, self.rounds + more)
        killed_at(write, lambda: self.run.train(goal))
        self.rounds = goal
        self.run.train(goal)

    @rule(write=st.integers(1, 60))
    def crash_in_run_pending(self, write: int) -> None:
        if not self.leaves_samples(self.present, *self.pending.values()):
            return
        killed_at(write, self.run.run_pending)
        self.run.run_pending()
        for request in list(self.pending.values()):
            self.erase_from_model(request)

    @rule(request=st.sampled_from(TARGETS), write=st.integers(1, 60))
    def crash_while_adding(self, request: Request, write: int) -> None:
        killed_at(write, lambda: self.run.add(request, returning=True, seed=1))
        self.add(request)

    @rule(place=st.integers(0, 10))
    def verify(self, place: int) -> None:
        assert self.run.verify().ok
        if self.closed:
            receipt = self.path.with_name("receipt.json")
            receipt.write_text(json.dumps(self.run.signed_receipt(sorted(self.closed)[place % len(self.closed)])))
            found = self.run.check_receipt(read_receipt(receipt, self.path / "receipt-key.pub.pem"))
            assert found.ok, found.problems

    # Invariants

    @invariant()
    def equals_training_from_scratch(self) -> None:
        if hasattr(self, "path"):
            assert function_files(self.path) == from_scratch(self.present, self.rounds)
            tally("lives/steps, each compared with learning from scratch")

    @invariant()
    def record_is_consistent(self) -> None:
        if hasattr(self, "path"):
            with run_directory.reading(self.path) as run:
                assert record_audit.find_problem(run.record, run.server.seed_origin) is None
                assert set(run.record.book.pending()) == set(self.pending)
                assert not run.record.batches.unfinished()


def sweep(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        RequestMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=not exhaustive(),  # make torture tries other sequences each time
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_state_machine_equals_training_from_scratch() -> None:
    sweep(200 if exhaustive() else 30, 20)
