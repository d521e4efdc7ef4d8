"""``record.db``: the legal trail. Requests and what became of them, events in a hash chain, versions, metrics.

It is not part of the function. About what is gone it holds keyed pseudonyms and MACs of superseded digests, nothing
else; the ids of a request stand here only until it is purged: among those that wait, or in the intent of its batch.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import id_block
from fedforget.errors import FedForgetError, InvalidInput, RunDamaged, UnknownTarget
from fedforget.store import chain, metrics, requests, seals
from fedforget.store.chain import EventChain
from fedforget.store.database import Database
from fedforget.store.metrics import Metrics
from fedforget.store.policy import Policy
from fedforget.store.requests import GUARANTEE_PATH, Basis, Intent, Receipt, Stage, Submission
from fedforget.store.seals import Seals

SCHEMA = f"""
CREATE TABLE record (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
{requests.SCHEMA}
{chain.SCHEMA}
{seals.SCHEMA}
{metrics.SCHEMA}
"""
VERSION = 2
_FROM_1 = f"""
ALTER TABLE requests RENAME TO requests_1;
ALTER TABLE erased RENAME TO erased_1;
ALTER TABLE intents RENAME TO intents_1;
{requests.SCHEMA}
INSERT INTO requests SELECT id, batch_id, place, level, basis, state, received, NULL, NULL, first_changed_step,
    recomputed_steps, NULL, guarantee, model_round, model_digest, model_mac, NULL FROM requests_1;
INSERT INTO erased SELECT pseudonym, 0, request FROM erased_1;
INSERT INTO intents SELECT batch_id, stage, body FROM intents_1;
DROP TABLE requests_1;
DROP TABLE erased_1;
DROP TABLE intents_1;
DELETE FROM seals;
"""  # noqa: S608 (nothing in it is from outside)
MIGRATIONS = {1: _FROM_1}
_SHOWN = (
    "id", "batch_id", "level", "basis", "state", "received", "deadline", "reason", "first_changed_step",
    "recomputed_steps", "steps_alone", "model_digest", "guarantee",
)  # fmt: skip
_FORGOTTEN = "record forgotten"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What stands after a batch: everything that a receipt says about it."""

    rounds_done: int
    model_digest: str | None
    state_digest: str
    plan_digest: str
    commitments: str  # a digest of all of them
    version: str


class Record:
    """The record of a run."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.chain = EventChain(database)
        self.metrics = Metrics(database)
        self.seals = Seals(database)

    def create(self, seed_origin: str) -> None:
        with self.database.transaction():
            self.database.run("INSERT INTO record VALUES ('key', ?)", (secrets.token_bytes(32),))
            self.database.run("INSERT INTO record VALUES ('tainted', 0)")
            self.chain.append("created", {"seed_origin": seed_origin})

    def _value(self, key: str) -> Any:
        return self.database.rows("SELECT value FROM record WHERE key = ?", (key,))[0][0]

    def mac(self, purpose: str, data: bytes) -> bytes:
        """A keyed digest: says nothing to whoever lacks the record's key."""
        return hashlib.blake2b(
            data, key=self._value("key"), digest_size=16, person=purpose.encode().ljust(16, b"\0")
        ).digest()

    def pseudonym(self, request: Request) -> bytes:
        sample = b"" if request.sample is None else id_block(request.sample)
        return self.mac("pseudonym", id_block(request.client) + sample)

    @property
    def tainted(self) -> bool:
        """Whether a request since the last new seeds may have looked at the draws or the model."""
        return bool(self._value("tainted"))

    @property
    def policy(self) -> Policy:
        rows = self.database.rows("SELECT value FROM record WHERE key = 'policy'")
        return Policy.decode(rows[0][0]) if rows else Policy()

    def set_policy(self, policy: Policy) -> None:
        with self.database.transaction():
            self.database.run("INSERT OR REPLACE INTO record VALUES ('policy', ?)", (policy.encode(),))
            self.chain.append("policy", {"policy": policy.encode()})

    # Looking up

    def find(self, request: Request) -> Receipt | None:
        """The receipt under which a sample or client went; a sample of an erased client went with it."""
        identifier = self.id_of(request)
        if identifier is None:
            return None
        return replace(self.receipt(identifier), client=request.client, sample=request.sample)

    def id_of(self, target: Request) -> str | None:
        """The request under which a target last went, by itself or with its client; None if it did not."""
        rows = self.database.rows(
            "SELECT request FROM erased WHERE pseudonym IN (?1, ?2) ORDER BY sequence DESC, pseudonym <> ?1 LIMIT 1",
            (self.pseudonym(target), self.pseudonym(Request(target.client))),
        )
        return str(rows[0][0]) if rows else None

    def basis_of(self, identifier: str) -> str:
        return str(self.database.rows("SELECT basis FROM requests WHERE id = ?", (identifier,))[0][0])

    def knows(self, identifier: str) -> bool:
        return bool(self.database.rows("SELECT 1 FROM requests WHERE id = ?", (identifier,)))

    def receipt(self, identifier: str) -> Receipt:
        [identifier] = self._originals([identifier])
        found = self._receipts("WHERE id = ?", (identifier,))
        if not found:
            raise UnknownTarget(f"there is no request {identifier}", hint="`fedforget status RUN` lists them")
        return found[0]

    def receipts_of(self, identifiers: Sequence[str]) -> list[Receipt]:
        """Many at once: the events are read once for all of them."""
        found = {receipt.id: receipt for receipt in self.receipts()}
        return [found[identifier] for identifier in self._originals(identifiers)]

    def receipts(self) -> list[Receipt]:
        return self._receipts("ORDER BY received, batch_id, place, id")

    def _receipts(self, which: str, values: Sequence[Any] = ()) -> list[Receipt]:
        times: dict[str, dict[str, str]] = {}
        for event in self.chain.events():
            if event.kind in list(Stage):
                when = event.body.get("received", event.time) if event.kind == Stage.RECEIVED else event.time
                times.setdefault(event.body.get("request", ""), {})[event.kind] = when
        rows = self.database.rows(f"SELECT {', '.join(_SHOWN)} FROM requests {which}", values)  # noqa: S608
        return [
            Receipt(client=None, sample=None, times=times.get(row[0], {}), **dict(zip(_SHOWN, row, strict=True)))
            for row in rows
        ]

    def _originals(self, identifiers: Iterable[str]) -> list[str]:
        """A request that was handed in twice at the same time is known under both ids."""
        known = dict(self.database.rows("SELECT id, request FROM aliases"))
        return [known.get(identifier, identifier) for identifier in identifiers]

    def pseudonym_of(self, identifier: str) -> str | None:
        """The pseudonym of what went under a request; None if it went under another, or the record forgot it."""
        rows = self.database.rows("SELECT pseudonym FROM erased WHERE request = ? ORDER BY pseudonym", (identifier,))
        return hashlib.blake2b(b"".join(row[0] for row in rows), digest_size=16).hexdigest() if rows else None

    def state_digest_of(self, identifier: str) -> str | None:
        """The digest of the state after a request, as long as nothing of that state was erased."""
        rows = self.database.rows("SELECT state_digest FROM requests WHERE id = ?", (identifier,))
        return rows[0][0] if rows else None

    def round_of(self, identifier: str) -> int:
        """The rounds done when a request was completed."""
        return int(self.database.rows("SELECT model_round FROM requests WHERE id = ?", (identifier,))[0][0] or 0)

    def waiting(self) -> dict[str, Request]:
        """Accepted requests that nobody has begun with."""
        rows = self.database.rows("SELECT request, client, sample FROM waiting ORDER BY request")
        return {identifier: Request(client, sample) for identifier, client, sample in rows}

    def ids_of_key(self, submission: Submission) -> list[str] | None:
        """The requests that came with this key before; the same key for other requests is refused."""
        if submission.key is None:
            return None
        rows = self.database.rows(
            "SELECT body, requests FROM keys WHERE mac = ?", (self.mac("key", submission.key.encode()),)
        )
        if not rows:
            return None
        if rows[0][0] != self.mac("key body", submission.body()):
            raise InvalidInput(
                f"the idempotency key {submission.key!r} came with other requests before",
                hint="use a new key for new requests",
            )
        return self._originals(json.loads(rows[0][1]))

    # A request's life

    def receive(
        self,
        submission: Submission,
        known: Mapping[Request, str],
        intent: Intent | None = None,
        *,
        told: bool = False,
        **decided: Any,
    ) -> list[str]:
        """Accept requests, except those that are known under another id; begin with them at once if there is an intent.

        One transaction: from here on they are met, whatever happens. Returns the ids in the order of the submission.
        ``told``: somebody knows the ids of the submission already, so they are remembered as well.
        """
        if known.keys() == set(submission.requests) and submission.key is None and intent is None and not told:
            return [known[request] for request in submission.requests]  # nothing is new
        with self.database.transaction():
            ids = []
            for place, (request, identifier) in enumerate(zip(submission.requests, submission.ids, strict=True)):
                ids.append(known.get(request, identifier))
                if request in known:
                    if told:
                        self._alias(identifier, known[request])
                    continue
                self._enter(submission, place, identifier, request, Stage.ACCEPTED)
                self.database.run("INSERT INTO waiting VALUES (?, ?, ?)", (identifier, request.client, request.sample))
            self._remember_key(submission, ids)
            if intent is not None:
                self._begin(intent, **decided)
        return ids

    def reject(self, submission: Submission, reasons: Mapping[Request, str]) -> None:
        """None of them is met, and the record says why."""
        with self.database.transaction():
            for place, (request, identifier) in enumerate(zip(submission.requests, submission.ids, strict=True)):
                self._enter(submission, place, identifier, request, Stage.REJECTED, reasons[request])
            self._remember_key(submission, list(submission.ids))

    def ask_again(self, submission: Submission, ids: Iterable[str]) -> None:
        """Requests that wait are asked for once more: the earlier deadline counts, and any doubt of the basis."""
        waiting = self.waiting()
        rows = {
            identifier: self.database.rows("SELECT basis, deadline FROM requests WHERE id = ?", (identifier,))[0]
            for identifier in ids
            if identifier in waiting
        }
        for identifier, (basis, deadline) in rows.items():
            stricter = submission.basis if basis == Basis.EXOGENOUS else basis
            earlier = min(deadline or submission.deadline, submission.deadline) if submission.urgent else deadline
            if (stricter, earlier) != (basis, deadline):
                with self.database.transaction():
                    self.database.run(
                        "UPDATE requests SET basis = ?, deadline = ? WHERE id = ?", (stricter, earlier, identifier)
                    )
                    self.chain.append("asked again", {"request": identifier, "basis": stricter, "deadline": earlier})

    def also_known_as(self, told: Sequence[str], ids: Sequence[str]) -> None:
        """Somebody was told other ids for requests that have some."""
        with self.database.transaction():
            for identifier, request in zip(told, ids, strict=True):
                self._alias(identifier, request)

    def _enter(
        self, submission: Submission, place: int, identifier: str, request: Request, state: Stage,
        reason: str | None = None,
    ) -> None:  # fmt: skip
        told = {"level": request.level, "basis": submission.basis, "deadline": submission.deadline}
        self.database.run(
            "INSERT INTO requests (id, place, level, basis, state, received, deadline, reason) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (identifier, place, request.level, submission.basis, state, submission.received, submission.deadline,
             reason),
        )  # fmt: skip
        self.chain.append(Stage.RECEIVED, {"request": identifier, "received": submission.received, **told})
        self.chain.append(state, {"request": identifier, **({} if reason is None else {"reason": reason})})

    def _alias(self, identifier: str, request: str) -> None:
        if identifier != request:
            self.database.run("INSERT OR IGNORE INTO aliases VALUES (?, ?)", (identifier, request))

    def _remember_key(self, submission: Submission, ids: Sequence[str]) -> None:
        if submission.key is not None:
            self.database.run(
                "INSERT OR IGNORE INTO keys VALUES (?, ?, ?)",
                (self.mac("key", submission.key.encode()), self.mac("key body", submission.body()), json.dumps(ids)),
            )

    def cancel(self, identifier: str, basis: str = Basis.UNKNOWN) -> None:
        """Take back a request that nobody has begun with."""
        with self.database.transaction():
            if not self.database.run("DELETE FROM waiting WHERE request = ?", (identifier,)):
                raise InvalidInput(
                    f"request {identifier} is {self.receipt(identifier).state}, too late to cancel it",
                    hint="only what waits can be cancelled; `fedforget status RUN` shows what does",
                )
            self.database.run("UPDATE requests SET state = ? WHERE id = ?", (Stage.CANCELLED, identifier))
            self.chain.append(Stage.CANCELLED, {"request": identifier, "cancelled_basis": basis})
            self._taint_unless_exogenous(basis)

    def begin(self, intent: Intent, **decided: Any) -> None:
        """Commit the intent of a batch: from here on it is finished, whatever happens."""
        with self.database.transaction():
            self._begin(intent, **decided)

    def _begin(
        self,
        intent: Intent,
        *,
        guarantee: str,
        recomputed_steps: int,
        alone: Sequence[int] = (),
        before: str = "",
        added: Mapping[str, Any] | None = None,
    ) -> None:
        """``alone``: the steps that each request would have recomputed by itself; ``before``: the state's digest;
        ``added``: what is to be told of newcomers.
        """
        self.database.run("INSERT INTO intents VALUES (?, ?, ?)", (intent.batch_id, Stage.ACCEPTED, intent.encode()))
        if intent.joining:
            self.chain.append("added", {"batch": intent.batch_id, **(added or {})})
            self._taint_unless_exogenous((added or {}).get("basis", Basis.UNKNOWN))
        before_mac = self.mac("state", before.encode()).hex()
        for place, identifier in enumerate(intent.ids):
            step = intent.decision.first_changed_steps[place]
            self.database.run(
                "UPDATE requests SET batch_id = ?, place = ?, first_changed_step = ?, recomputed_steps = ?, "
                "steps_alone = ?, guarantee = ? WHERE id = ?",
                (intent.batch_id, place, step, recomputed_steps, alone[place] if alone else None, guarantee,
                 identifier),
            )  # fmt: skip
            self.database.run("DELETE FROM waiting WHERE request = ?", (identifier,))
            steps = {"first_changed_step": step, "recomputed_steps": recomputed_steps}
            self.chain.append(
                "begun",
                {
                    "request": identifier,
                    "batch": intent.batch_id,
                    "guarantee": guarantee,
                    "before": before_mac,
                    **steps,
                },
            )
            if guarantee == GUARANTEE_PATH:
                self._taint_unless_exogenous(self.basis_of(identifier))

    def _taint_unless_exogenous(self, basis: str) -> None:
        """What is there then depends on the draws, or may: equality in law is over for these seeds."""
        if basis != Basis.EXOGENOUS:
            self.database.run("UPDATE record SET value = 1 WHERE key = 'tainted'")

    @property
    def receipt_key(self) -> str | None:
        """The key that receipts are signed with, by its id; None if none was made."""
        rows = self.database.rows("SELECT value FROM record WHERE key = 'receipt_key'")
        return str(rows[0][0]) if rows else None

    def note_receipt_key(self, key: str) -> None:
        with self.database.transaction():
            self.database.run("INSERT OR REPLACE INTO record VALUES ('receipt_key', ?)", (key,))
            self.chain.append("receipt key", {"key": key})

    def pending(self) -> list[Intent]:
        """Batches that were begun and are not yet purged."""
        intents = []
        for batch_id, body in self.database.rows("SELECT batch_id, body FROM intents ORDER BY batch_id"):
            try:
                intents.append(Intent.decode(batch_id, body))
            except (ValueError, KeyError, TypeError, AttributeError, FedForgetError) as error:
                raise RunDamaged(
                    f"{self.database.path} is damaged: the intent of {batch_id} cannot be read",
                    hint="restore it from a backup",
                ) from error
        return intents

    def stage(self, intent: Intent) -> Stage:
        """How far a batch has come."""
        rows = self.database.rows("SELECT stage FROM intents WHERE batch_id = ?", (intent.batch_id,))
        return Stage(rows[0][0])

    def removed(self, intent: Intent, rounds_left: int) -> None:
        """The data are out (or in) and the state is rewound: what was derived from later rounds goes too."""
        leaving = set(intent.decision.leaving)
        with self.database.transaction():
            asked = list(zip(intent.ids, intent.decision.requests, strict=True))
            emptied = [(identifier, Request(r.client)) for identifier, r in asked if r.client in leaving]
            number = self.chain.length()
            for identifier, target in asked + emptied:  # what was asked for first: a client went under its own request
                self.database.run(
                    "INSERT OR IGNORE INTO erased VALUES (?, ?, ?)", (self.pseudonym(target), number, identifier)
                )
            self.metrics.rewind(rounds_left, leaving)
            self.database.run("UPDATE requests SET model_digest = NULL WHERE model_round > ?", (rounds_left,))
            self.database.run("UPDATE requests SET state_digest = NULL")  # those states held what is gone now
            if intent.reseed is not None:
                self.database.run("UPDATE record SET value = 0 WHERE key = 'tainted'")
                self.chain.append("reseeded", {"seed_origin": "system"})
            self._advance(intent, Stage.REMOVED)

    def recomputed(self, intent: Intent) -> None:
        with self.database.transaction():
            self._advance(intent, Stage.RECOMPUTED)

    def completed(self, intent: Intent, outcome: Outcome) -> None:
        """The receipt is final: which state stands now, in the clear while it is current and as a MAC for ever."""
        model_mac = self.mac("model", (outcome.model_digest or "").encode())
        with self.database.transaction():
            self.database.run(
                "UPDATE requests SET model_round = ?, model_digest = ?, model_mac = ?, state_digest = ? "
                "WHERE batch_id = ?",
                (outcome.rounds_done, outcome.model_digest, model_mac, outcome.state_digest, intent.batch_id),
            )
            self._advance(
                intent,
                Stage.COMPLETED,
                {
                    "model_mac": model_mac.hex(),
                    "state_mac": self.mac("state", outcome.state_digest.encode()).hex(),
                    "plan": outcome.plan_digest,
                    "commitments": outcome.commitments,
                    "version": outcome.version,
                    "tainted": self.tainted,
                },
            )

    def purged(self, intent: Intent) -> None:
        """Nothing is left of what was asked to go. The ids of the request go last, before the word is given."""
        nothing = replace(intent.decision, requests=(), first_changed_steps=(), leaving=())
        emptied = replace(intent, decision=nothing, reseed=None, joining=())
        with self.database.transaction():
            self.database.run("UPDATE intents SET body = ? WHERE batch_id = ?", (emptied.encode(), intent.batch_id))
        self.database.rebuild()
        with self.database.transaction():
            self._advance(intent, Stage.PURGED)
            self.database.run("DELETE FROM intents WHERE batch_id = ?", (intent.batch_id,))

    def _advance(self, intent: Intent, stage: Stage, extra: Mapping[str, Any] | None = None) -> None:
        self.database.run("UPDATE intents SET stage = ? WHERE batch_id = ?", (stage, intent.batch_id))
        self.database.run("UPDATE requests SET state = ? WHERE batch_id = ?", (stage, intent.batch_id))
        for identifier in intent.ids:
            self.chain.append(stage, {"request": identifier, **(extra or {})})

    # Events

    def trained(self, rounds_done: int, versions: Mapping[str, Any]) -> None:
        with self.database.transaction():
            self.chain.append("trained", {"rounds_done": rounds_done, **versions})

    def events(self) -> list[dict[str, Any]]:
        return [
            {"sequence": event.sequence, "time": event.time, "kind": event.kind, **event.body}
            for event in self.chain.events()
        ]

    @property
    def forgotten_at(self) -> int:
        """Where in the chain the record last forgot itself; 0 if it never did."""
        return max((event.sequence for event in self.chain.events() if event.kind == _FORGOTTEN), default=0)

    def forget_itself(self) -> None:
        """Destroy the key, and whatever was made with it: nobody can link an id to a request any more."""
        if self.waiting() or self.pending():
            raise InvalidInput("a request waits", hint="meet it with `fedforget run-pending`, or cancel it, first")
        with self.database.transaction():
            self.database.run("UPDATE record SET value = ? WHERE key = 'key'", (secrets.token_bytes(32),))
            self.database.run("DELETE FROM erased")
            self.database.run("DELETE FROM keys")
            self.database.run("UPDATE requests SET model_mac = NULL")
            self.chain.append(_FORGOTTEN, {})
