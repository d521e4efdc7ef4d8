"""Requests of a run: lookup, acceptance, cancellation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.disk.database import Database
from fedforget.disk.parsing import parse_json
from fedforget.errors import InvalidInput, RunDamaged, UnknownTarget, quoted, shown
from fedforget.requests.chain import Event, EventChain
from fedforget.requests.lifecycle import Basis, Receipt, Stage, Submission, covered_by_guarantee
from fedforget.requests.pseudonyms import Pseudonyms

_SHOWN = (
    "id", "batch_id", "level", "basis", "state", "received", "deadline", "reason", "first_changed_step",
    "recomputed_steps", "steps_alone", "model_digest", "guarantee",
)  # fmt: skip


class RequestBook:
    """The table of requests. Finds a request by its id, by its idempotency key, or by the target that it erased."""

    def __init__(self, database: Database, chain: EventChain, pseudonyms: Pseudonyms) -> None:
        self.database = database
        self.chain = chain
        self._pseudonyms = pseudonyms
        self._run = database.path.parent

    # Looking up

    def find(self, request: Request) -> Receipt | None:
        """Return the receipt of the request that erased a sample or client. Erasing a client erases its samples."""
        identifier = self.id_of(request)
        if identifier is None:
            return None
        return replace(self.receipt(identifier), client=request.client, sample=request.sample)

    def id_of(self, target: Request) -> str | None:
        """Return the id of the request that last erased a target, individually or with its client; None if none did.

        A sample erased individually keeps that request's id.
        """
        rows = self.database.rows(
            "SELECT request FROM erased WHERE pseudonym IN (?1, ?2) "
            "ORDER BY pseudonym = ?1 AND NOT returned DESC, sequence DESC, pseudonym <> ?1 LIMIT 1",
            (self._pseudonyms.of(target), self._pseudonyms.of(Request(target.client))),
        )
        return str(rows[0][0]) if rows else None

    def was_erased_by(self, identifier: str, target: Request) -> bool:
        """Return whether the request is or was for exactly this target."""
        if self.pending().get(identifier) == target:
            return True
        rows = self.database.rows(
            "SELECT level FROM erased JOIN requests ON request = id WHERE pseudonym = ? AND id = ?",
            (self._pseudonyms.of(target), identifier),
        )
        return (target.level,) in rows

    def basis_of(self, identifier: str) -> str:
        return str(self.database.rows("SELECT basis FROM requests WHERE id = ?", (identifier,))[0][0])

    def knows(self, identifier: str) -> bool:
        return bool(self.database.rows("SELECT 1 FROM requests WHERE id = ?", (identifier,)))

    def receipt(self, identifier: str) -> Receipt:
        [identifier] = self._originals([identifier])
        found = self._receipts("WHERE id = ?", (identifier,))
        if not found:
            raise UnknownTarget(
                f"there is no request {shown(identifier)}", hint=f"`fedforget status {self._run}` lists them"
            )
        return found[0]

    def receipts_of(self, identifiers: Sequence[str]) -> list[Receipt]:
        """Return many receipts. Reads the events once for all of them."""
        found = {receipt.id: receipt for receipt in self.receipts()}
        return [found[identifier] for identifier in self._originals(identifiers)]

    def receipts(self, events: Sequence[Event] | None = None) -> list[Receipt]:
        """Return all receipts in the order of receipt, even if the clock was set back.

        ``events``: the events of the chain, if the caller has read them.
        """
        return self._receipts("ORDER BY id", (), events)

    def _receipts(self, which: str, values: Sequence[Any] = (), events: Sequence[Event] | None = None) -> list[Receipt]:
        times: dict[str, dict[str, str]] = {}
        mixed: dict[str, bool | None] = {}
        for event in self.chain.events() if events is None else events:
            if event.kind in list(Stage):
                when = event.body.get("received", event.time) if event.kind == Stage.RECEIVED else event.time
                times.setdefault(event.body.get("request", ""), {})[event.kind] = when
            if event.kind == Stage.COMPLETED:
                mixed[event.body.get("request", "")] = event.body.get("mixed_environments")
        rows = self.database.rows(f"SELECT {', '.join(_SHOWN)} FROM requests {which}", values)  # noqa: S608
        place = {identifier: number for number, identifier in enumerate(times)}  # events are in order
        rows.sort(key=lambda row: place.get(row[0], len(place)))
        return [
            Receipt(
                client=None,
                sample=None,
                times=times.get(row[0], {}),
                guarantee_covers=covered_by_guarantee(mixed.get(row[0])),
                **dict(zip(_SHOWN, row, strict=True)),
            )
            for row in rows
        ]

    def _originals(self, identifiers: Iterable[str]) -> list[str]:
        """Resolve aliases: a request that was submitted twice at the same time has two ids."""
        known = dict(self.database.rows("SELECT id, request FROM aliases"))
        return [known.get(identifier, identifier) for identifier in identifiers]

    def pseudonym_of(self, identifier: str) -> str | None:
        """Return the pseudonym of what a request erased; None if another request erased it, or the record forgot it."""
        rows = self.database.rows("SELECT pseudonym FROM erased WHERE request = ? ORDER BY pseudonym", (identifier,))
        return hashlib.blake2b(b"".join(row[0] for row in rows), digest_size=16).hexdigest() if rows else None

    def state_digest_of(self, identifier: str) -> str | None:
        """Return the digest of the state after a request; None once something of that state is erased."""
        rows = self.database.rows("SELECT state_digest FROM requests WHERE id = ?", (identifier,))
        return rows[0][0] if rows else None

    def round_of(self, identifier: str) -> int:
        """Return the number of rounds done when a request was completed."""
        return int(self.database.rows("SELECT model_round FROM requests WHERE id = ?", (identifier,))[0][0] or 0)

    def pending(self) -> dict[str, Request]:
        """Return the pending requests: accepted, and in no batch yet."""
        rows = self.database.rows("SELECT request, client, sample FROM waiting ORDER BY request")
        return {identifier: Request(client, sample) for identifier, client, sample in rows}

    def ids_of_key(self, submission: Submission) -> list[str] | None:
        """Return the ids of the requests that used this key before. Refuse the key for other requests."""
        if submission.key is None:
            return None
        rows = self.database.rows(
            "SELECT body, requests FROM keys WHERE mac = ?", (self._pseudonyms.mac("key", submission.key.encode()),)
        )
        if not rows:
            return None
        if rows[0][0] != self._pseudonyms.mac("key body", submission.body()):
            raise InvalidInput(
                f"the idempotency key {quoted(submission.key)} was used for other requests",
                hint="use a new key for new requests",
            )
        try:
            return self._originals(map(str, parse_json(rows[0][1])))
        except (ValueError, TypeError) as error:
            raise RunDamaged(
                f"{self.database.path} is damaged: the requests of an idempotency key cannot be read"
            ) from error

    # Accepting

    def transaction(self) -> AbstractContextManager[None]:
        return self.database.transaction()

    def flush(self) -> None:
        """Fold the write-ahead log into the file: an acknowledged request must not depend on the log after a crash."""
        self.database.fold()

    def receive(self, submission: Submission, known: Mapping[Request, str], *, record_alias: bool = False) -> list[str]:
        """Accept requests, except those that are known under another id. Call inside a transaction.

        Return the ids in the order of the submission. ``record_alias``: the submitter already has the submission's own
        ids, so record them as aliases.
        """
        ids = []
        for place, (request, identifier) in enumerate(zip(submission.requests, submission.ids, strict=True)):
            ids.append(known.get(request, identifier))
            if request not in known:
                self._enter(submission, place, identifier, request, Stage.ACCEPTED)
                self.database.run("INSERT INTO waiting VALUES (?, ?, ?)", (identifier, request.client, request.sample))
            elif record_alias:
                self._alias(identifier, known[request])
        self._remember_key(submission, ids)
        return ids

    def reject(self, submission: Submission, reasons: Mapping[Request, str]) -> None:
        """Record that none of the requests is carried out, with the reasons."""
        with self.database.transaction():
            for place, (request, identifier) in enumerate(zip(submission.requests, submission.ids, strict=True)):
                self._enter(submission, place, identifier, request, Stage.REJECTED, reasons[request])
            self._remember_key(submission, list(submission.ids))

    def ask_again(self, submission: Submission, ids: Iterable[str]) -> None:
        """Update pending requests that are submitted once more: the earlier deadline and the weaker basis win."""
        waiting = self.pending()
        rows = {
            identifier: self.database.rows("SELECT basis, deadline FROM requests WHERE id = ?", (identifier,))[0]
            for identifier in ids
            if identifier in waiting
        }
        for identifier, (basis, deadline) in rows.items():
            weaker = submission.basis if basis == Basis.EXOGENOUS else basis
            earlier = min(deadline or submission.deadline, submission.deadline) if submission.urgent else deadline
            if (weaker, earlier) != (basis, deadline):
                with self.database.transaction():
                    self.database.run(
                        "UPDATE requests SET basis = ?, deadline = ? WHERE id = ?", (weaker, earlier, identifier)
                    )
                    self.chain.append("asked again", {"request": identifier, "basis": weaker, "deadline": earlier})

    def add_aliases(self, aliases: Sequence[str], ids: Sequence[str]) -> None:
        """Record a second id for each of these requests."""
        with self.database.transaction():
            for alias, request in zip(aliases, ids, strict=True):
                self._alias(alias, request)

    def _enter(
        self, submission: Submission, place: int, identifier: str, request: Request, state: Stage,
        reason: str | None = None,
    ) -> None:  # fmt: skip
        terms = {"level": request.level, "basis": submission.basis, "deadline": submission.deadline}
        self.database.run(
            "INSERT INTO requests (id, place, level, basis, state, received, deadline, reason) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (identifier, place, request.level, submission.basis, state, submission.received, submission.deadline,
             reason),
        )  # fmt: skip
        self.chain.append(Stage.RECEIVED, {"request": identifier, "received": submission.received, **terms})
        self.chain.append(state, {"request": identifier, **({} if reason is None else {"reason": reason})})

    def _alias(self, identifier: str, request: str) -> None:
        if identifier != request:
            self.database.run("INSERT OR IGNORE INTO aliases VALUES (?, ?)", (identifier, request))

    def _remember_key(self, submission: Submission, ids: Sequence[str]) -> None:
        if submission.key is not None:
            key = self._pseudonyms.mac("key", submission.key.encode())
            body = self._pseudonyms.mac("key body", submission.body())
            self.database.run("INSERT OR IGNORE INTO keys VALUES (?, ?, ?)", (key, body, json.dumps(ids)))

    def cancel(self, identifier: str, basis: str = Basis.UNKNOWN) -> None:
        """Cancel a pending request. Idempotent."""
        [identifier] = self._originals([identifier])
        if self.receipt(identifier).state == Stage.CANCELLED:
            return
        with self.database.transaction():
            if not self.database.run("DELETE FROM waiting WHERE request = ?", (identifier,)):
                raise InvalidInput(
                    f"request {shown(identifier)} is {self.receipt(identifier).state}, too late to cancel it",
                    hint=f"only a pending request can be cancelled; `fedforget status {self._run}` lists them",
                )
            self.database.run("UPDATE requests SET state = ? WHERE id = ?", (Stage.CANCELLED, identifier))
            self.chain.append(Stage.CANCELLED, {"request": identifier, "cancelled_basis": basis})
            self.taint_unless_exogenous(basis)

    @property
    def tainted(self) -> bool:
        """Whether a request since the last new seeds may depend on the draws or the model."""
        return bool(self.database.rows("SELECT value FROM record WHERE key = 'tainted'")[0][0])

    def taint_unless_exogenous(self, basis: str) -> None:
        """Mark the seeds as tainted unless the basis is exogenous."""
        if basis != Basis.EXOGENOUS:
            self.database.run("UPDATE record SET value = 1 WHERE key = 'tainted'")
