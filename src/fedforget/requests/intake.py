"""Taking requests in: accepted or rejected on record, cancelled, left for a process at work.

This needs no model and no data. Meeting them is another matter: see ``fedforget.requests.processor``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedforget.algorithm.forget import Request
from fedforget.errors import InvalidInput, RunBusy, UnfinishedRequest, UnknownTarget, quoted
from fedforget.requests.book import RequestBook
from fedforget.requests.inbox import Inbox
from fedforget.requests.lifecycle import Basis, Receipt, Stage, Submission, require_basis
from fedforget.requests.policy import Policy
from fedforget.requests.targets import still_there
from fedforget.store import hints, run_directory
from fedforget.store.run_directory import OpenRun

_OF_ITS_KEY = "its idempotency key came with other requests before, or with what was cancelled, rejected or undone"


@dataclass(frozen=True, slots=True)
class Intake:
    """Takes requests into the record of a run that this process has opened to write."""

    run: OpenRun

    @property
    def is_ready(self) -> bool:
        """Whether the run holds what its record says: not if data of a batch are still to be removed."""
        batches = self.run.record.batches
        return all(batches.stage(intent) != Stage.ACCEPTED for intent in batches.pending())

    def accept(self, submission: Submission, *, record_alias: bool = False) -> list[str]:
        """Accept requests, all or none, to be met later. Returns their ids; a rejection is recorded as well.

        What is gone already, or waits already, keeps the id it has. ``record_alias``: a caller was told the new one.
        """
        book = self.run.record.book
        ids = book.ids_of_key(submission)
        if ids is not None:
            self.ask_again(submission, ids)
            if record_alias:
                book.also_known_as(submission.ids, ids)
            return ids
        try:
            known = self.known(submission.requests)
        except UnknownTarget:
            self._reject(submission)
            raise
        book.ask_again(submission, known.values())
        return book.receive(submission, known, told=record_alias)

    def ask_again(self, submission: Submission, ids: Sequence[str]) -> None:
        """The key of a submission is known: what came with it must still hold."""
        require_standing(self.run, submission, ids)
        self.run.record.book.ask_again(submission, ids)

    def take_in(self) -> Iterator[list[str]]:
        """Accept what was left in the inbox. Yields the ids of each submission before its file is taken away."""
        for path, handed_in in self.run.inbox.submissions():
            submission, ids = handed_in.taken_in(), list[str]()
            try:
                ids = self.accept(submission, record_alias=True)
            except UnknownTarget:
                pass  # rejected, and the record says so
            except InvalidInput:
                self._reject(submission, _OF_ITS_KEY)
            yield ids
            self.run.record.database.fold()  # it stands nowhere else from now on
            self.run.inbox.take_away(path)
        self.run.inbox.clean()

    def take_in_all(self) -> None:
        """Accept everything that was left in the inbox; refused while a batch is half way in."""
        if self.run.inbox and not self.is_ready:
            raise UnfinishedRequest(
                f"a request on {self.run.path} was interrupted and is not finished",
                hint=f"finish it with {hints.train(self.run.path)}",
            )
        for _ in self.take_in():
            pass

    def known(self, requests: Sequence[Request]) -> dict[Request, str]:
        """Under which id each request is known already, if it is."""
        book = self.run.record.book
        waiting = {request: identifier for identifier, request in book.waiting().items()}
        there = set(still_there(self.run, requests))
        return {
            request: waiting[request] if request in waiting else book.id_of(request) or ""
            for request in requests
            if request in waiting or request not in there
        }

    def _reject(self, submission: Submission, reason: str | None = None) -> None:
        reasons = dict.fromkeys(submission.requests, reason or "")
        for request in submission.requests if reason is None else ():
            try:
                self.known([request])
            except UnknownTarget:
                reasons[request] = "there is no such client or sample"
            else:
                reasons[request] = "another request of its batch was rejected"
        if not any(map(self.run.record.book.knows, submission.ids)):
            self.run.record.book.reject(submission, reasons)


# What a caller without model and data can do


def defer(path: Path, submission: Submission) -> list[Receipt]:
    """Take requests in, to be met later; left in the inbox while another process works, or a batch is half way in."""
    try:
        with run_directory.writing(path) as run:
            intake = Intake(run)
            if intake.is_ready:
                intake.take_in_all()
                ids = intake.accept(submission)
                return recognised(run.record.book, run.record.book.receipts_of(ids), submission.requests)
    except RunBusy:
        pass
    return hand_in(path, submission)


def cancel(path: Path, identifier: str, basis: str = Basis.UNKNOWN) -> Receipt:
    """Take back a request that waits. Choosing what stays by looking at draws or model tells in law, too."""
    require_basis(basis)
    with run_directory.writing(path) as run:
        Intake(run).take_in_all()
        book = run.record.book
        receipt = book.receipt(identifier)
        request = book.waiting().get(receipt.id)
        book.cancel(receipt.id, basis)
        receipt = book.receipt(receipt.id)
        return receipt if request is None else told_back([receipt], [request])[0]


def set_policy(path: Path, policy: Policy) -> None:
    with run_directory.writing(path) as run:
        run.record.set_policy(policy)


def forget_record(path: Path) -> None:
    """Destroy the key of the record, if no request waits or is unfinished."""
    with run_directory.writing(path) as run:
        Intake(run).take_in_all()
        run.record.forget_itself()


def collects(path: Path, submission: Submission) -> bool:
    """Whether the run's policy has requests wait; new seeds never do."""
    with run_directory.reading(path, settled=False) as run:
        return run.record.policy.collects and not submission.new_seed


def hand_in(path: Path, submission: Submission) -> list[Receipt]:
    """Leave requests in the inbox for the next process at work; refused here if there is nothing of the kind."""
    with run_directory.reading(path, settled=False) as run:
        known = run.record.book.ids_of_key(submission)
        still_there(run, submission.requests)
        if known is not None:
            require_standing(run, submission, known)
        standing = [] if known is None else run.record.book.receipts_of(known)
    Inbox(path).leave(submission)  # the process at work judges it, also where the key is known
    return told_back(standing, submission.requests) if standing else submission.receipts()


# What receipts name


def require_standing(run: OpenRun, submission: Submission, ids: Sequence[str]) -> None:
    """Refuse a key whose request was rejected, cancelled or undone."""
    key, hint = f"the request with the idempotency key {quoted(submission.key)}", "use a new key to ask again"
    for receipt in run.record.book.receipts_of(ids):
        if receipt.state == Stage.REJECTED:
            raise UnknownTarget(f"{key} was rejected: {receipt.reason}", hint=hint)
        if receipt.state == Stage.CANCELLED:
            raise InvalidInput(f"{key} was cancelled", hint=hint)
        if receipt.state == Stage.PURGED and still_there(run, submission.requests):
            raise InvalidInput(f"{key} was met, and what it took was brought back since", hint=hint)


def recognised(book: RequestBook, receipts: Sequence[Receipt], requests: Sequence[Request]) -> list[Receipt]:
    """Receipts that name what was asked for, where it may have gone under a request for something else.

    Then the receipt is that of the other request, whose sample the record doesn't know.
    """
    return [
        replace(receipt, client=request.client, sample=request.sample if went_under else None)
        for receipt, request in zip(receipts, requests, strict=True)
        for went_under in (receipt.is_open or book.went_under(receipt.id, request),)
    ]


def told_back(receipts: Sequence[Receipt], requests: Sequence[Request]) -> list[Receipt]:
    """Receipts that name what was asked for."""
    return [
        replace(receipt, client=request.client, sample=request.sample)
        for receipt, request in zip(receipts, requests, strict=True)
    ]
