"""Requests of a client: accepted here, carried out when the server orders it, purged when the server has finished."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.ids import Id
from fedforget.client_side.directory import OpenDirectory
from fedforget.client_side.state_digest import state_digest
from fedforget.errors import UnknownTarget
from fedforget.federation.standing import ClientRequest
from fedforget.requests.intake import Intake
from fedforget.requests.intents import BatchFacts, Intent, Outcome, new_batch_id
from fedforget.requests.lifecycle import Basis, Receipt, Stage, Submission
from fedforget.requests.targets import attach_known_targets
from fedforget.training.environment import environment

log = logging.getLogger("fedforget")

_TOLD = ("rounds_done", "server_receipt")  # facts of the server that the record keeps; a digest would outlast its model


class OwnRequests:
    """The requests of an open state directory."""

    def __init__(self, state: OpenDirectory) -> None:
        self._state = state
        self._book, self._batches = state.record.book, state.record.batches

    # Accepting

    def accept(self, submission: Submission) -> list[Receipt]:
        """Accept requests, all or none. They are durable when this returns, and pending until the server asks."""
        with of_client(self._state):
            ids = Intake(self._state, self._book, self._state.inbox).accept(submission)
        log.info("client %s: accepted %d requests", self._state.client, len(ids))
        return attach_known_targets(self._book, self._book.receipts_of(ids), submission.requests)

    def accept_inbox(self) -> None:
        """Accept the requests that were submitted while another process had the directory open."""
        if self._state.inbox:
            intake = Intake(self._state, self._book, self._state.inbox)
            intake.clear([place for place, _ in intake.accept_inbox()])

    def withdrawals(self) -> tuple[ClientRequest, ...]:
        """Return the pending withdrawals, one for each handle, in the order of receipt."""
        pending = self._book.pending()
        handles = self._state.record.handles(pending)
        found: dict[str, ClientRequest] = {}
        for receipt in self._book.receipts_of(list(pending)):
            handle, whole = handles[receipt.id], pending[receipt.id].sample is None
            known = found.get(handle, ClientRequest(handle, receipt.basis, receipt.deadline, receipt.received, whole))
            found[handle] = _joined(known, receipt, whole=whole)
        return tuple(found[handle] for handle in sorted(found, key=lambda each: (found[each].received, each)))

    # Carrying out

    def samples_of(self, handle: str) -> tuple[Id, ...]:
        """Return the samples of a withdrawal that is pending or being carried out."""
        ids = self._state.record.requests_of([handle])
        waiting = list(self._book.pending_of(ids).values())
        for intent in self._at(Stage.ACCEPTED):
            waiting += [each for name, each in zip(intent.ids, intent.decision.requests, strict=True) if name in ids]
        return tuple(each.sample for each in waiting if each.sample is not None)

    def begin(self, handles: Collection[str] | None) -> None:
        """Commit the intent to carry out withdrawals, or (None) to let the client leave. Idempotent."""
        if handles is None and self._state.book.is_empty:
            return
        ids = list(self._book.pending()) if handles is None else self._state.record.requests_of(handles)
        pending = self._book.pending_of(ids)
        whole = handles is None
        if whole and not pending:
            ordered = Submission.of((Request(self._state.client),), Basis.UNKNOWN)  # ordered by the server
            pending = self._book.pending_of([receipt.id for receipt in self.accept(ordered)])
        if pending:
            self._enter(pending, leaving=(self._state.client,) if whole else ())

    def _enter(self, pending: Mapping[str, Request], leaving: tuple[Id, ...]) -> None:
        state = self._state
        used = state.memory.first_steps(state.client)
        steps = tuple(None if each.sample is None else used.get(each.sample) for each in pending.values())
        decision = Decision(tuple(pending.values()), steps, leaving, 0, 0, batch_id=new_batch_id())
        before = BatchFacts(
            steps_alone=(0,) * len(pending), state_before=state_digest(state), data_root=state.book.root
        )
        with self._book.transaction():
            self._batches.enter(Intent(tuple(pending), decision), before)

    def apply(self) -> None:
        """Remove the samples of accepted intents, also those of a killed process, and record it. Idempotent."""
        for intent in self._at(Stage.ACCEPTED):
            client = self._state.client
            if intent.decision.leaving:
                self._state.memory.remove_all()
            else:
                samples = tuple(each.sample for each in intent.decision.requests if each.sample is not None)
                self._state.memory.remove_samples(samples)
            log.info("client %s: removed the data of %d requests", client, len(intent.ids))
            self._batches.removed(intent, 0)
            if intent.decision.leaving:
                self._drop_additions()

    def _drop_additions(self) -> None:
        if self._state.record.arriving():
            with self._book.transaction():
                self._state.record.keep_arriving([])

    # Finishing

    def finish(self, handles: Collection[str], facts: Mapping[str, Any]) -> None:
        """Record that the server has finished these withdrawals; all of them if the client has left.

        Closing the directory purges the data. Idempotent.
        """
        named = set(self._state.record.requests_of(handles))
        for intent in self._at(Stage.REMOVED):
            if named & set(intent.ids) or self._state.book.is_empty:
                self._batches.recomputed(intent)
                told = {name: facts[name] for name in _TOLD if isinstance(facts.get(name), str | int)}
                self._state.record.note(("finished by the server", {"batch": intent.batch_id, "told": told}))
        for intent in self._at(Stage.RECOMPUTED):
            self._batches.completed(intent, self._outcome(facts))

    def _outcome(self, facts: Mapping[str, Any]) -> Outcome:
        state, model, rounds = self._state, facts.get("model_digest"), facts.get("rounds_done")
        plan = state.plan()
        return Outcome(
            rounds_done=rounds if type(rounds) is int and rounds >= 0 else 0,
            model_digest=model if isinstance(model, str) else None,
            state_digest=state_digest(state),
            plan_digest="" if plan is None else plan.digest,
            commitments="" if state.book.is_empty else state.book.seed.commitment.hex(),
            version=environment()["fedforget"],
            mixed_environments=False,
            data_root=b"" if state.book.is_empty else state.book.root,
        )

    def _at(self, stage: Stage) -> list[Intent]:
        return [intent for intent in self._batches.unfinished() if self._batches.stage(intent) == stage]


def _joined(known: ClientRequest, receipt: Receipt, *, whole: bool) -> ClientRequest:
    """Return a withdrawal extended by a request. The weaker basis and the earlier deadline win."""
    basis = receipt.basis if known.basis == Basis.EXOGENOUS else known.basis
    deadline = min(filter(None, (known.deadline, receipt.deadline)), default=None)
    return replace(known, basis=basis, deadline=deadline, whole=known.whole or whole)


@contextlib.contextmanager
def of_client(state: OpenDirectory) -> Iterator[None]:
    """Add to UnknownTarget the command that lists the client's samples."""
    try:
        yield
    except UnknownTarget as error:
        raise UnknownTarget(
            error.message,
            hint=f"`fedforget client samples --state-dir {state.path}` lists them",
        ) from error


def submission_of(
    client: Id, samples: Sequence[Id] | None, basis: str, deadline: str | None, key: str | None
) -> Submission:
    """Return the submission for samples, or (None) for the whole client."""
    targets = [Request(client)] if samples is None else [Request(client, each) for each in dict.fromkeys(samples)]
    return Submission.of(tuple(targets), basis, deadline=deadline, key=key)
