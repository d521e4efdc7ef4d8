"""The reports of the clients of a deployment: what they hold, and which requests were made at them.

A client reports a request until the server has confirmed it. So no request is lost in a crash of the server, and one
that the record holds already is not accepted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import Newcomer
from fedforget.algorithm.withdrawals import ADDITION, WITHDRAWAL
from fedforget.disk.files import digest
from fedforget.errors import FedForgetError, TrainingFailed, shown
from fedforget.federation.standing import ClientRequest, Standing
from fedforget.requests.lifecycle import Stage, Submission, as_written
from fedforget.store.contacts import ADDED, LEAVES, WITHDRAWN, Contacts
from fedforget.store.run_directory import OpenRun

log = logging.getLogger("fedforget")


@dataclass(slots=True)
class ClientReports:
    """A ``Listener``, and the ``Inbox`` of a session: requests of clients, and those that were submitted here."""

    run: OpenRun
    present: set[Id] = field(default_factory=set)  # clients that have answered in this session
    problems: dict[Id, FedForgetError] = field(default_factory=dict)  # of clients with a known problem
    impostors: dict[Id, FedForgetError] = field(default_factory=dict)  # nodes that claim to be a client
    environments: dict[str, Mapping[str, str]] = field(default_factory=dict)  # by digest
    _fresh: dict[Request, Submission] = field(default_factory=dict)
    _additions: dict[tuple[Id, str], None] = field(
        default_factory=dict
    )  # that clients tell of, and that do not join yet
    _joining: set[tuple[Id, str]] = field(default_factory=set)

    @property
    def _contacts(self) -> Contacts:
        return self.run.remote.contacts

    def examine(self, client: Id, standing: Standing, *, may_be_ahead: bool) -> None:
        """Compare what a client holds with what it held when the last round or batch was committed.

        ``may_be_ahead``: it may have trained a round that was not committed.
        """
        self.problems.pop(client, None)
        if client not in self.run.server.roster or standing.root is None:
            return
        root, notes = self.run.remote.held.of(client)
        problem = standing.seed_problem(self.run.server.commitments()[client])
        if problem is not None:
            self.problems[client] = _other_state(client, problem)
        elif not self.run.record.batches.are_unfinished:
            if standing.root != root:
                self.problems[client] = _other_state(client, "its samples are not those that it held last")
            elif standing.notes != notes and not may_be_ahead:
                self.problems[client] = _other_state(client, "it does not know all rounds that it took part in")

    def note_problems(self, examined: Collection[Id]) -> None:
        """Keep the problems of clients, and the impostors of clients in the roster, for ``status`` and the operator."""
        claimed = {
            client: _impostor(client, error)
            for client, error in self.impostors.items()
            if client in self.run.server.roster and client not in examined
        }
        found = claimed | self.problems
        self._contacts.note_problems(examined, found)
        for error in found.values():
            log.warning("%s (%s)", error.message, error.hint)

    # Listener

    def receive(self, client: Id, standing: Standing) -> None:
        self.present.add(client)
        if standing.environment:
            self.environments[digest(repr(sorted(standing.environment.items())).encode())] = standing.environment
        if not standing.withdrawals and not standing.additions:
            return
        untold = self._contacts.untold()
        for each in standing.withdrawals:
            kind = LEAVES if each.whole else WITHDRAWN
            if (client, each.handle) not in untold:
                self._contacts.asked(client, each.handle, kind)
            request = request_of(client, each.handle, kind)
            if request not in self._fresh and not self._is_known(request):
                self._fresh[request] = _submission(request, each)
        for addition in standing.additions:
            place = client, addition.handle
            if place not in untold:
                self._contacts.asked(*place, ADDED)
            if place not in self._joining and client in self.run.server.roster:
                self._additions[place] = None

    def _is_known(self, request: Request) -> bool:
        book, batches = self.run.record.book, self.run.record.batches
        return (
            request.client not in self.run.server.roster  # it has left, with everything
            or book.id_of_exactly(request) is not None
            or bool(book.pending_ids([request]))
            or any(request in intent.decision.requests for intent in batches.unfinished())
        )

    def receive_held(self, client: Id, standing: Standing) -> None:
        if standing.root is not None and standing.notes is not None:
            self.run.remote.held.hear(client, (standing.root, standing.notes))

    # Inbox

    def __bool__(self) -> bool:
        return bool(self._fresh) or bool(self.run.inbox)

    def leave(self, submission: Submission) -> Any:
        return self.run.inbox.leave(submission)

    def submissions(self) -> Sequence[tuple[Any, Submission]]:
        return [*self.run.inbox.submissions(), *self._fresh.items()]

    def take_away(self, place: Any) -> None:
        if isinstance(place, Request):
            self._fresh.pop(place, None)
        else:
            self.run.inbox.take_away(place)

    def clean(self) -> None:
        self.run.inbox.clean()

    # What is to be done

    def waiting(self) -> dict[str, Request]:
        """Return the accepted requests of clients that are not carried out yet, by their ids."""
        known = self.run.record.book.pending_ids(list(self._requests()))
        return {identifier: request for request, identifier in known.items()}

    def _requests(self) -> dict[Request, tuple[Id, str]]:
        return {
            request_of(client, handle, kind): (client, handle)
            for (client, handle), kind in self._contacts.untold().items()
            if kind != ADDED
        }

    def newcomers(self) -> list[Newcomer]:
        """Return the additions that clients have reported and that do not join yet."""
        by_client: dict[Id, list[str]] = {}
        for client, handle in self._additions:
            if client in self.run.server.roster:
                by_client.setdefault(client, []).append(handle)
        return [
            Newcomer(client, None, tuple((ADDITION + handle, b"") for handle in own))
            for client, own in by_client.items()
        ]

    def begin_additions(self) -> None:
        """Note that the reported additions join now, so that reports of them are not taken for new ones."""
        self._joining |= self._additions.keys()
        self._additions.clear()

    # What the server confirms to clients

    def finished(self) -> dict[str, dict[Id, list[str]]]:
        """Return the handles that are carried out and purged, by the id of the request and the client.

        Additions have no request; they are under an empty id.
        """
        book, found = self.run.record.book, dict[str, dict[Id, list[str]]]()
        for request, (client, handle) in self._requests().items():
            identifier = book.id_of_exactly(request)
            if identifier is not None and book.receipt(identifier).state == Stage.PURGED:
                found.setdefault(identifier, {}).setdefault(client, []).append(handle)
        if not self.run.record.batches.are_unfinished:
            for (client, handle), kind in self._contacts.untold().items():
                if kind == ADDED and (client, handle) not in self._additions:
                    found.setdefault("", {}).setdefault(client, []).append(handle)
        return found

    def confirmed(self, client: Id, handles: Collection[str]) -> None:
        """Note that a client has received the confirmation of its requests."""
        self._contacts.told(client, handles)


def _impostor(client: Id, error: FedForgetError) -> FedForgetError:
    return type(error)(
        f"a node that claims to be client {shown(client)} was not accepted: {error.message}",
        hint="is its state directory not the one it enrolled with? Restore it as it was last; or erase the client, "
        "because its rounds cannot be replayed; if it is another party's node, end it",
    )


def _other_state(client: Id, what: str) -> TrainingFailed:
    return TrainingFailed(
        f"the local state of client {shown(client)} is not the one of this run: {what}",
        hint="restore its state directory as it was last; or erase the client, because its rounds cannot be replayed",
    )


def request_of(client: Id, handle: str, kind: str) -> Request:
    return Request(client, None if kind == LEAVES else WITHDRAWAL + handle)


def _submission(request: Request, withdrawal: ClientRequest) -> Submission:
    """Return a client's request as one that was made here. Times that cannot be read are taken to be now."""
    made = Submission.of((request,), withdrawal.basis)
    try:
        received = min(as_written(withdrawal.received), made.received)
        deadline = made.deadline if withdrawal.deadline is None else as_written(withdrawal.deadline)
    except (ValueError, OverflowError):
        return made
    return replace(made, received=received, deadline=deadline, urgent=withdrawal.deadline is not None)
