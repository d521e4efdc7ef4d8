"""Acceptance of requests: each is accepted or rejected on record. The processor carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.errors import InvalidInput, UnknownTarget, quoted
from fedforget.requests.lifecycle import Stage, Submission
from fedforget.requests.ports import Book, Inbox
from fedforget.requests.targets import Membership, present_targets

_OF_ITS_KEY = "its idempotency key was used for other requests, or for one that was cancelled, rejected or undone"


@dataclass(frozen=True, slots=True)
class Intake:
    """Accepts requests into the book of a run that this process has opened for writing."""

    members: Membership
    book: Book
    inbox: Inbox

    def accept(self, submission: Submission, *, record_alias: bool = False) -> list[str]:
        """Accept requests, all or none, to be carried out later. Return their ids; a rejection is recorded as well.

        A target that is erased or pending already keeps the id of its first request. ``record_alias``: the submitter
        already has the new id, so record it as an alias.
        """
        ids = self.book.ids_of_key(submission)
        if ids is not None:
            self.ask_again(submission, ids)
            if record_alias:
                self.book.add_aliases(submission.ids, ids)
            return ids
        try:
            known = self.known(submission.requests)
        except UnknownTarget:
            self._reject(submission)
            raise
        self.book.ask_again(submission, known.values())
        if known.keys() == set(submission.requests) and submission.key is None and not record_alias:
            return [known[request] for request in submission.requests]  # no new request: nothing to write
        with self.book.transaction():
            return self.book.receive(submission, known, record_alias=record_alias)

    def ask_again(self, submission: Submission, ids: Sequence[str]) -> None:
        """Submit requests again under the same key. Refuse it if one of them was rejected, cancelled or undone."""
        require_standing(self.members, self.book, submission, ids)
        self.book.ask_again(submission, ids)

    def accept_inbox(self) -> list[tuple[Any, list[str]]]:
        """Accept or reject everything in the inbox. Return the place of each submission and the ids of its requests.

        The files stay until ``clear`` is called, so that a crash in between loses none.
        """
        found = self.inbox.submissions()
        return [(place, self._accept_or_reject(each.with_acceptance_time())) for place, each in found]

    def clear(self, places: Sequence[Any]) -> None:
        """Delete submissions that were accepted or rejected."""
        if places:
            self.book.flush()  # the record is the only copy after the files are deleted
        for place in places:
            self.inbox.take_away(place)
        self.inbox.clean()

    def _accept_or_reject(self, submission: Submission) -> list[str]:
        try:
            return self.accept(submission, record_alias=True)
        except UnknownTarget:
            return []  # rejected on record
        except InvalidInput:
            self._reject(submission, _OF_ITS_KEY)
            return []

    def known(self, requests: Sequence[Request]) -> dict[Request, str]:
        """Return the id of each request that is pending already, or whose target is erased already."""
        waiting = self.book.pending_ids(requests)
        present = set(present_targets(self.members, self.book, requests))
        return {
            request: waiting[request] if request in waiting else self.book.id_of(request) or ""
            for request in requests
            if request in waiting or request not in present
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
        if not any(map(self.book.knows, submission.ids)):
            self.book.reject(submission, reasons)


def require_standing(members: Membership, book: Book, submission: Submission, ids: Sequence[str]) -> None:
    """Refuse an idempotency key whose request was rejected, cancelled or undone."""
    key, hint = f"the request with the idempotency key {quoted(submission.key)}", "use a new key to ask again"
    for receipt in book.receipts_of(ids):
        if receipt.state == Stage.REJECTED:
            raise UnknownTarget(f"{key} was rejected: {receipt.reason}", hint=hint)
        if receipt.state == Stage.CANCELLED:
            raise InvalidInput(f"{key} was cancelled", hint=hint)
        if receipt.state == Stage.PURGED and present_targets(members, book, submission.requests):
            raise InvalidInput(f"{key} was carried out, and its target was added again since", hint=hint)
