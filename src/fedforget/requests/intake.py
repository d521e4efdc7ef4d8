"""Acceptance of requests: each is accepted or rejected on record. The processor carries them out.

A submission of many requests is entered in parts, one transaction each, so that no transaction makes a large log. A
file in the inbox holds the whole submission until then. If the process is killed in between, the next one accepts that
file, and enters what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.errors import InvalidInput, UnknownTarget, quoted
from fedforget.requests.lifecycle import Stage, Submission
from fedforget.requests.ports import Book, Inbox
from fedforget.requests.targets import Membership, present_targets

AT_ONCE = 10_000  # requests that one transaction enters
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
        already has the new id, so record it as an alias; the submission is in the inbox.
        """
        if record_alias or len(submission.requests) <= AT_ONCE:
            return self._accept(submission, record_alias=record_alias)
        place = self.inbox.leave(submission)
        try:
            ids = self._accept(submission, record_alias=False)
        except InvalidInput:  # refused, or rejected on record
            self.clear([place])
            raise
        self.clear([place])
        return ids

    def _accept(self, submission: Submission, *, record_alias: bool) -> list[str]:
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
        accepted: list[str] = []
        for places in _parts(submission):
            with self.book.transaction():
                accepted = self.book.receive(submission, known, record_alias=record_alias, places=places)
        return accepted

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

    def known_or_accepted(self, submission: Submission) -> dict[Request, str]:
        """Return the id of each request that has one. Accept them now if too many have none for one transaction.

        The batch remembers the idempotency key.
        """
        known = self.known(submission.requests)
        if len(submission.requests) - len(known) <= AT_ONCE:
            return known
        ids = self.accept(replace(submission, key=None))
        return dict(zip(submission.requests, ids, strict=True))

    def _reject(self, submission: Submission, reason: str | None = None) -> None:
        reasons = dict.fromkeys(submission.requests, reason or "")
        for request in submission.requests if reason is None else ():
            try:
                self.known([request])
            except UnknownTarget:
                reasons[request] = "there is no such client or sample"
            else:
                reasons[request] = "another request of its batch was rejected"
        for places in _parts(submission):
            if not any(self.book.knows(submission.ids[place]) for place in places):
                self.book.reject(submission, reasons, places)


def _parts(submission: Submission) -> Iterator[range]:
    """Yield the places of the requests that one transaction enters."""
    for first in range(0, max(len(submission.requests), 1), AT_ONCE):
        yield range(first, min(first + AT_ONCE, len(submission.requests)))


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
