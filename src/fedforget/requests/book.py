"""Requests of a run: lookup, acceptance, cancellation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.disk.database import Database
from fedforget.errors import InvalidInput, UnknownTarget, shown
from fedforget.requests.chain import EventChain
from fedforget.requests.lifecycle import Basis, Receipt, Stage, Submission
from fedforget.requests.pending import PendingRequests
from fedforget.requests.pseudonyms import Pseudonyms
from fedforget.requests.receipt_rows import ReceiptRows
from fedforget.requests.request_keys import RequestKeys
from fedforget.requests.selection import Selection
from fedforget.requests.vault import STATE, Vault


class RequestBook:
    """The table of requests. Finds a request by its id, by its idempotency key, or by the target that it erased.

    ``on_received`` is called with the ids of new requests, in the transaction that accepts them.
    """

    def __init__(
        self,
        database: Database,
        chain: EventChain,
        pseudonyms: Pseudonyms,
        vault: Vault,
        on_received: Callable[[Sequence[str]], object] = lambda _: None,
    ) -> None:
        self._on_received = on_received
        self.database = database
        self.chain = chain
        self._pseudonyms = pseudonyms
        self._keys = RequestKeys(database, pseudonyms)
        self._vault = vault
        self._pending = PendingRequests(database, pseudonyms, vault)
        self._receipts = ReceiptRows(database, chain, vault)
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

    def id_of_exactly(self, target: Request) -> str | None:
        """Return the id of the request that last erased exactly this target; None if none did."""
        sql = "SELECT request FROM erased WHERE pseudonym = ? ORDER BY sequence DESC LIMIT 1"
        rows = self.database.rows(sql, (self._pseudonyms.of(target),))
        return str(rows[0][0]) if rows else None

    def was_erased_by(self, identifier: str, target: Request) -> bool:
        """Return whether the request is or was for exactly this target."""
        if self._pending.is_for(identifier, target):
            return True
        rows = self.database.rows(
            "SELECT level FROM erased JOIN requests ON request = id WHERE pseudonym = ? AND id = ?",
            (self._pseudonyms.of(target), identifier),
        )
        return (target.level,) in rows

    def bases_of(self, identifiers: Sequence[str]) -> set[str]:
        """Return the bases that these requests have."""
        return {basis for (basis,) in self.database.rows_in("SELECT DISTINCT basis FROM requests", "id", identifiers)}

    def knows(self, identifier: str) -> bool:
        return bool(self.database.rows("SELECT 1 FROM requests WHERE id = ?", (identifier,)))

    def receipt(self, identifier: str) -> Receipt:
        found = self.receipts_of([identifier])
        if not found:
            raise UnknownTarget(
                f"there is no request {shown(identifier)}", hint=f"`fedforget requests {self._run}` lists them"
            )
        return found[0]

    def receipts_of(self, identifiers: Sequence[str]) -> list[Receipt]:
        """Return the receipts of these requests, in this order; none for an id that no request has."""
        originals = self._originals(identifiers)
        found = {receipt.id: receipt for receipt in self._receipts.of(originals)}
        return [found[identifier] for identifier in originals if identifier in found]

    def receipts(self) -> list[Receipt]:
        """Return all receipts in the order of receipt, even if the clock was set back."""
        return self._receipts.chosen(Selection())

    def chosen(self, selection: Selection) -> list[Receipt]:
        """Return the receipts of a selection, in the order of receipt."""
        return self._receipts.chosen(selection)

    def counts(self) -> dict[str, int]:
        """Return how many requests are in each state."""
        return self._receipts.counts()

    def _originals(self, identifiers: Sequence[str]) -> list[str]:
        """Resolve aliases: a request that was submitted twice at the same time has two ids."""
        known = dict(self.database.rows_in("SELECT id, request FROM aliases", "id", identifiers))
        return [known.get(identifier, identifier) for identifier in identifiers]

    def pseudonym_of(self, identifier: str) -> str | None:
        """Return the pseudonym of what a request erased; None if another request erased it, or the record forgot it."""
        rows = self.database.rows("SELECT pseudonym FROM erased WHERE request = ? ORDER BY pseudonym", (identifier,))
        return hashlib.blake2b(b"".join(row[0] for row in rows), digest_size=16).hexdigest() if rows else None

    def state_digest_of(self, identifier: str) -> str | None:
        """Return the digest of the state after a request; None once something of that state is erased."""
        rows = self.database.rows("SELECT batch_id FROM requests WHERE id = ?", (identifier,))
        return self._vault.text(STATE, rows[0][0]) if rows and rows[0][0] is not None else None

    def round_of(self, identifier: str) -> int:
        """Return the number of rounds done when a request was completed."""
        sql = "SELECT model_round FROM requests JOIN batches USING (batch_id) WHERE id = ?"
        rows = self.database.rows(sql, (identifier,))
        return int(rows[0][0] or 0) if rows else 0

    # Pending

    def pending(self) -> dict[str, Request]:
        return self._pending.all()

    def pending_of(self, identifiers: Sequence[str]) -> dict[str, Request]:
        return self._pending.of(identifiers)

    def pending_ids(self, targets: Sequence[Request]) -> dict[Request, str]:
        return self._pending.ids_of(targets)

    def pending_under(self, targets: Collection[Request], leaving: Collection[Id]) -> dict[str, Request]:
        return self._pending.under(targets, leaving)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def ids_of_key(self, submission: Submission) -> list[str] | None:
        """Return the ids of the requests that used this key before. Refuse the key for other requests."""
        ids = self._keys.ids_of(submission)
        return None if ids is None else self._originals(ids)

    def ids_with_key(self, key: str | None) -> list[str] | None:
        """Return the ids of the requests that used this key before, whatever they were for."""
        ids = None if key is None else self._keys.ids_with(key)
        return None if ids is None else self._originals(ids)

    # Accepting

    def transaction(self) -> AbstractContextManager[None]:
        return self.database.transaction()

    def flush(self) -> None:
        """Fold the write-ahead log into the file: an acknowledged request must not depend on the log after a crash."""
        self.database.fold()

    def receive(
        self,
        submission: Submission,
        known: Mapping[Request, str],
        *,
        record_alias: bool = False,
        places: range | None = None,
    ) -> list[str]:
        """Accept requests, except those that are known under another id. Call inside a transaction.

        Return the ids in the order of the submission. ``record_alias``: the submitter already has the submission's own
        ids, so record them as aliases. ``places``: only this part; the last part also remembers the idempotency key.
        """
        part = range(len(submission.requests)) if places is None else places
        ids = [known.get(request, own) for request, own in zip(submission.requests, submission.ids, strict=True)]
        fresh = [
            (place, submission.ids[place], submission.requests[place])
            for place in part
            if submission.requests[place] not in known
        ]
        self._pending.enter(self._enter(submission, fresh, Stage.ACCEPTED), [request for _, _, request in fresh])
        for place in part if record_alias else ():
            if submission.requests[place] in known:
                self._alias(submission.ids[place], known[submission.requests[place]])
        if part.stop == len(ids):
            self._keys.note(submission, ids)
        self._on_received([identifier for _, identifier, _ in fresh])
        return ids

    def reject(self, submission: Submission, reasons: Mapping[Request, str], places: range | None = None) -> None:
        """Record that none of the requests is carried out, with the reasons. ``places``: see ``receive``."""
        part = range(len(submission.requests)) if places is None else places
        with self.database.transaction():
            entries = [(place, submission.ids[place], submission.requests[place]) for place in part]
            self._enter(submission, entries, Stage.REJECTED, reasons)
            if part.stop == len(submission.ids):
                self._keys.note(submission, list(submission.ids))

    def ask_again(self, submission: Submission, ids: Iterable[str]) -> None:
        """Update pending requests that are submitted once more: the earlier deadline and the weaker basis win."""
        sql = "SELECT id, basis, deadline FROM requests JOIN waiting USING (number)"
        rows = {identifier: about for identifier, *about in self.database.rows_in(sql, "id", list(ids))}
        for identifier, (basis, deadline) in rows.items():
            weaker = submission.basis if basis == Basis.EXOGENOUS else basis
            earlier = min(deadline or submission.deadline, submission.deadline) if submission.urgent else deadline
            if [weaker, earlier] != [basis, deadline]:
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
        self,
        submission: Submission,
        entries: Sequence[tuple[int, str, Request]],
        state: Stage,
        reasons: Mapping[Request, str] | None = None,
    ) -> list[int]:
        """Enter requests, each with its place and id. Return their numbers."""
        [(last,)] = self.database.rows("SELECT coalesce(max(number), 0) FROM requests")
        numbers = list(range(last + 1, last + 1 + len(entries)))
        rows, events = [], list[tuple[str, dict[str, Any]]]()
        for number, (place, identifier, request) in zip(numbers, entries, strict=True):
            reason = None if reasons is None else reasons[request]
            terms = {"level": request.level, "basis": submission.basis, "deadline": submission.deadline}
            rows.append(
                (number, identifier, place, request.level, submission.basis, state, submission.received,
                 submission.deadline, reason)
            )  # fmt: skip
            events.append((Stage.RECEIVED, {"request": identifier, "received": submission.received, **terms}))
            events.append((state, {"request": identifier, **({} if reason is None else {"reason": reason})}))
        self.database.run_many(
            "INSERT INTO requests (number, id, place, level, basis, state, received, deadline, reason) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        self.chain.append_all(events)
        return numbers

    def _alias(self, identifier: str, request: str) -> None:
        if identifier != request:
            self.database.run("INSERT OR IGNORE INTO aliases VALUES (?, ?)", (identifier, request))

    def cancel(self, identifier: str, basis: str = Basis.UNKNOWN) -> None:
        """Cancel a pending request. Idempotent."""
        [identifier] = self._originals([identifier])
        if self.receipt(identifier).state == Stage.CANCELLED:
            return
        with self.database.transaction():
            if not self._pending.leave(identifier):
                raise InvalidInput(
                    f"request {shown(identifier)} is {self.receipt(identifier).state}, too late to cancel it",
                    hint=f"only a pending request can be cancelled; `fedforget requests {self._run}` lists them",
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
