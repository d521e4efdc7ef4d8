"""The public API of a client of a deployment: its state directory, and the requests that are made at it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedforget.algorithm.ids import Id, canonical_id, id_block
from fedforget.algorithm.seeds import SeedSource
from fedforget.client_side.directory import NewClient, OpenDirectory, create, reading, writing
from fedforget.client_side.enrolment import Enrolment
from fedforget.client_side.identity import Identity, Settings
from fedforget.client_side.opening import OwnOpening
from fedforget.client_side.own_receipts import signed_receipt
from fedforget.client_side.own_requests import OwnRequests, of_client, submission_of
from fedforget.client_side.sync import Differences, carry_out, contents_of, differences, require_confirmed
from fedforget.disk.files import path_of
from fedforget.errors import InvalidInput, RunBusy, shown
from fedforget.evidence.receipts.envelope import Envelope
from fedforget.requests.inbox import open_requests
from fedforget.requests.lifecycle import AnyBasis, Basis, Receipt, Submission
from fedforget.requests.selection import OPEN, Selection
from fedforget.requests.targets import present_targets
from fedforget.store.books.tree import sample_key


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """Status of a client. The counts are never sent to the server."""

    client: Id
    state_dir: str
    left: bool
    samples: int
    used_samples: int
    run: str | None
    has_plan: bool
    epoch: int
    root: str | None
    commitment: str | None
    arriving: int  # pending additions, in samples
    open_requests: tuple[Receipt, ...]
    problem: str | None  # why the record's event chain does not verify


@dataclass(frozen=True, slots=True)
class Synchronised:
    """What a synchronisation found, and the receipts of the requests that it made."""

    found: Differences
    receipts: tuple[Receipt, ...] = ()


class ClientState:
    """A client's state directory.

    ``forget``, ``leave`` and ``sync`` make requests. They are durable when the call returns and need no connection;
    the server carries them out at the next contacts.
    """

    def __init__(self, state_dir: str | Path) -> None:
        self.path = path_of(state_dir, "a state directory")
        self.client = Identity.read(self.path).client

    @classmethod
    def init(
        cls,
        state_dir: str | Path,
        client: Any,
        samples: Any,
        *,
        seed: int | str | None = None,
        dataset: Settings | None = None,
    ) -> ClientState:
        """Create the state directory of a client. ``samples``: a mapping of stable id → (x, y), or a torch ``Dataset``.

        ``seed``: derive the client's secrets from it; without it they come from the operating system.
        """
        path, who = path_of(state_dir, "a state directory"), canonical_id(client)
        contents = contents_of(who, samples)
        if not contents:
            raise _no_samples(who)
        seeds = SeedSource.of_person(seed)
        key = sample_key(seeds.tree_key(), id_block(who))
        identity = Identity(who, key, seeds.origin, dataset or {})
        create(path, NewClient(identity, seeds.client(who), contents))
        return cls(path)

    def begin_again(self, samples: Any, *, dataset: Settings | None = None) -> None:
        """Read the samples anew, with the same seed and key. Refused once the client has trained or has requests.

        The server needs the new enrolment file. ``dataset``: where the samples come from, if that is another place.
        """
        contents = contents_of(self.client, samples)
        if not contents:
            raise _no_samples(self.client)
        with writing(self.path) as state:
            record = state.record
            if state.uses.count() or record.book.counts() or record.arriving() or state.inbox:
                raise InvalidInput(
                    f"client {shown(self.client)} has trained or has requests, so it cannot begin again",
                    hint="`fedforget client sync` erases and adds what differs",
                )
            if dataset is not None:
                replace(state.who, dataset=dataset).write(self.path)
            state.begin_writing()
            state.book.create(state.book.seed, contents)

    def enrolment(self) -> bytes:
        """Return the enrolment file for the server, signed: the client's id, commitment, public key and root."""
        with reading(self.path) as state:
            key = state.key()
            made = Enrolment(state.client, state.book.seed.commitment, state.book.root, key.public_key())
            return made.signed(key)

    def status(self) -> ClientStatus:
        """Return the status of the client, also while another process has the directory open."""
        with reading(self.path) as state:
            book, record, left = state.book, state.record, state.book.is_empty
            run = record.value("run")
            return ClientStatus(
                client=state.client,
                state_dir=str(self.path),
                left=left,
                samples=len(book.samples),
                used_samples=state.uses.count(),
                run=None if run is None else str(run),
                has_plan=state.plan() is not None,
                epoch=int(record.value("epoch")),
                root=None if left else book.root.hex(),
                commitment=None if left else book.seed.commitment.hex(),
                arriving=sum(map(len, record.arriving().values())),
                problem=record.chain.problem(),
                open_requests=tuple(open_requests(record.book.chosen(Selection((OPEN,))), state.inbox)),
            )

    # Requests

    def forget(
        self,
        samples: Iterable[Any],
        *,
        basis: AnyBasis = Basis.UNKNOWN,
        deadline: str | None = None,
        idempotency_key: str | None = None,
    ) -> list[Receipt]:
        """Request erasure of samples, all or none. The server learns neither which they are nor how many."""
        wanted = [canonical_id(each) for each in samples]
        if not wanted:
            raise InvalidInput("no sample is named", hint="give the ids of the samples to forget")
        return self._submit(submission_of(self.client, wanted, basis, deadline, idempotency_key))

    def leave(
        self,
        *,
        basis: AnyBasis = Basis.UNKNOWN,
        deadline: str | None = None,
        idempotency_key: str | None = None,
    ) -> list[Receipt]:
        """Request erasure of the whole client."""
        return self._submit(submission_of(self.client, None, basis, deadline, idempotency_key))

    def sync(
        self,
        samples: Any,
        *,
        basis: AnyBasis = Basis.UNKNOWN,
        deadline: str | None = None,
        idempotency_key: str | None = None,
        confirm: int | None = None,
        returning: bool = False,
        dry_run: bool = False,
    ) -> Synchronised:
        """Compare a dataset with the book: erase what is missing or changed, add what is changed or new.

        Raises InvalidInput if the source cannot be read, and NotConfirmed if more than 1 % of the samples would be
        erased, unless ``confirm`` is their number. ``returning``: also add samples that were erased before.
        ``dry_run``: only compare. The same key again, once nothing more is to be erased, returns the receipts of its
        requests.
        """
        found = contents_of(self.client, samples)
        with reading(self.path) if dry_run else self._working() as state:
            different = differences(state, found, returning=returning)
            if dry_run:
                return Synchronised(different)
            book = state.record.book
            before = None if different.erased else book.ids_with_key(idempotency_key)
            if before is None:
                require_confirmed(different, confirm)
            receipts = carry_out(state, different, basis, deadline, idempotency_key)
            return Synchronised(different, tuple(receipts if before is None else book.receipts_of(before)))

    def samples(self) -> tuple[Id, ...]:
        """Return the ids of the samples, without those that are about to be erased."""
        with reading(self.path) as state:
            leaving = {each.sample for each in state.record.book.pending().values()}
            left = () if None in leaving else [each for each in state.book.samples if each not in leaving]
            return tuple(sorted(left, key=lambda each: (isinstance(each, str), each)))

    def receipts(self) -> list[Receipt]:
        """Return the receipts of all requests, in the order of receipt. The record keeps no ids."""
        with reading(self.path) as state:
            return state.record.book.receipts()

    def signed_receipt(self, identifier: str) -> Envelope:
        """Return the receipt of a finished request, signed with the client's key."""
        with reading(self.path) as state:
            return signed_receipt(state, identifier)

    def opening(self) -> OwnOpening:
        """Return what an auditor needs to compute every draw of this client. It reveals all of its ids and its seed."""
        with reading(self.path) as state:
            return OwnOpening.of(state)

    def _submit(self, submission: Submission) -> list[Receipt]:
        try:
            with self._working() as state:
                return OwnRequests(state).accept(submission)
        except RunBusy:
            return self._leave_in_inbox(submission)

    def _leave_in_inbox(self, submission: Submission) -> list[Receipt]:
        """Put requests into the inbox of the process that has the directory open. Refuse unknown samples here."""
        with reading(self.path) as state, of_client(state):
            state.record.book.ids_of_key(submission)
            present_targets(state, state.record.book, submission.requests)
            state.inbox.leave(submission)
        return submission.receipts()

    @contextlib.contextmanager
    def _working(self) -> Iterator[OpenDirectory]:
        with writing(self.path) as state:
            requests = OwnRequests(state)
            requests.apply()
            requests.accept_inbox()
            yield state


def _no_samples(client: Id) -> InvalidInput:
    return InvalidInput(f"client {shown(client)} has no samples", hint="a client takes part with at least one")
