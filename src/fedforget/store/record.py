"""``record.db``: the legal trail. Requests, receipts, events in a hash chain, versions, metrics.

It is not part of the function. About what is gone it holds keyed pseudonyms and MACs of superseded digests, nothing
else; the ids of a request stand in an intent, committed before anything is touched, until the request is purged.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from fedforget.algorithm.forget import Decision, Request
from fedforget.algorithm.ids import id_block
from fedforget.errors import FedForgetError, RunDamaged
from fedforget.store.database import Database

SCHEMA = """
CREATE TABLE record (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE requests (
    id TEXT PRIMARY KEY, batch_id TEXT NOT NULL, place INTEGER NOT NULL, level TEXT NOT NULL, basis TEXT NOT NULL,
    state TEXT NOT NULL, received TEXT NOT NULL, first_changed_step INTEGER, recomputed_steps INTEGER NOT NULL,
    guarantee TEXT NOT NULL, model_round INTEGER, model_digest TEXT, model_mac BLOB
) WITHOUT ROWID;
CREATE TABLE erased (pseudonym BLOB PRIMARY KEY, request TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE intents (batch_id TEXT PRIMARY KEY, stage TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, hash BLOB NOT NULL
);
CREATE TABLE seals (file TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE metrics (
    round INTEGER NOT NULL, client NOT NULL, correct INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (round, client)
) WITHOUT ROWID;
"""
_TOLD = ("level", "basis", "guarantee", "received", "first_changed_step", "recomputed_steps", "state")
OWN_SEAL = "record"
SERVER_TEST_SET = -1  # no id of a client: metrics of the server's own test data


class Stage(StrEnum):
    """The life of a request; never backwards."""

    RECEIVED = "received"
    ACCEPTED = "accepted"
    REMOVED = "removed"
    RECOMPUTED = "recomputed"
    COMPLETED = "completed"
    PURGED = "purged"


class Basis(StrEnum):
    """What a request was based on. Only one that looked at nothing keeps equality in law."""

    EXOGENOUS = "exogenous"
    MODEL_INFORMED = "model-informed"
    UNKNOWN = "unknown"


GUARANTEE_LAW = "law-and-path"
GUARANTEE_PATH = "path"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a request. ``client`` and ``sample`` come from the asker; the record keeps no ids."""

    id: str
    batch_id: str
    level: str
    client: int | str | None
    sample: int | str | None
    basis: str
    state: str
    received: str
    first_changed_step: int | None
    recomputed_steps: int
    model_digest: str | None
    guarantee: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Intent:
    """Everything that finishing a batch after a crash needs."""

    batch_id: str
    ids: tuple[str, ...]
    decision: Decision
    reseed: str | None  # the root of the new seeds, in hexadecimal

    def encode(self) -> str:
        decision = self.decision
        return json.dumps(
            {
                "ids": self.ids,
                "requests": [[request.client, request.sample] for request in decision.requests],
                "first_changed_steps": decision.first_changed_steps,
                "leaving": decision.leaving,
                "goal": decision.goal,
                "rewind_to": decision.rewind_to,
                "reseed": self.reseed,
            }
        )

    @classmethod
    def decode(cls, batch_id: str, body: str) -> Intent:
        raw = json.loads(body)
        decision = Decision(
            requests=tuple(Request(client, sample) for client, sample in raw["requests"]),
            first_changed_steps=tuple(raw["first_changed_steps"]),
            leaving=tuple(raw["leaving"]),
            goal=raw["goal"],
            rewind_to=raw["rewind_to"],
        )
        return cls(batch_id, tuple(raw["ids"]), decision, raw["reseed"])


class Record:
    """The record of a run."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create(self, seed_origin: str) -> None:
        with self.database.transaction():
            self.database.run("INSERT INTO record VALUES ('key', ?)", (secrets.token_bytes(32),))
            self.database.run("INSERT INTO record VALUES ('tainted', 0)")
            self._event("created", {"seed_origin": seed_origin})

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

    # Requests

    def find(self, request: Request) -> Receipt | None:
        """The receipt under which a sample or client went; a sample of an erased client went with it."""
        for target in (request, Request(request.client)):
            rows = self.database.rows("SELECT request FROM erased WHERE pseudonym = ?", (self.pseudonym(target),))
            if rows:
                return replace(self.receipt(rows[0][0]), client=request.client, sample=request.sample)
        return None

    def receipt(self, identifier: str) -> Receipt:
        row = self.database.rows(
            "SELECT id, batch_id, level, basis, state, received, first_changed_step, recomputed_steps, model_digest, "
            "guarantee FROM requests WHERE id = ?",
            (identifier,),
        )[0]
        return Receipt(row[0], row[1], row[2], None, None, *row[3:])

    def receipts(self) -> list[Receipt]:
        rows = self.database.rows("SELECT id FROM requests ORDER BY received, batch_id, place")
        return [self.receipt(identifier) for (identifier,) in rows]

    def accept(
        self, decision: Decision, *, basis: str, guarantee: str, recomputed_steps: int, reseed: str | None
    ) -> Intent:
        """Commit the intent of a batch: from here on it is finished, whatever happens."""
        batch_id = "b-" + secrets.token_hex(8)
        ids = tuple("r-" + secrets.token_hex(8) for _ in decision.requests)
        intent = Intent(batch_id, ids, decision, reseed)
        now = _now()
        with self.database.transaction():
            self.database.run("INSERT INTO intents VALUES (?, ?, ?)", (batch_id, Stage.ACCEPTED, intent.encode()))
            for place, (identifier, request, step) in enumerate(
                zip(ids, decision.requests, decision.first_changed_steps, strict=True)
            ):
                self.database.run(
                    "INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL)",
                    (identifier, batch_id, place, request.level, basis, Stage.ACCEPTED, now, step, recomputed_steps,
                     guarantee),
                )  # fmt: skip
                told = {"level": request.level, "basis": basis, "guarantee": guarantee}
                steps = {"first_changed_step": step, "recomputed_steps": recomputed_steps}
                self._event(Stage.RECEIVED, {"request": identifier, "received": now, **told})
                self._event(Stage.ACCEPTED, {"request": identifier, **steps})
            if guarantee == GUARANTEE_PATH and basis != Basis.EXOGENOUS:
                self.database.run("UPDATE record SET value = 1 WHERE key = 'tainted'")
        return intent

    def pending(self) -> list[Intent]:
        """Batches that were accepted and are not yet purged."""
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
        """The data are out and the state is rewound: what was derived from later rounds goes too."""
        leaving = set(intent.decision.leaving)
        with self.database.transaction():
            asked = list(zip(intent.ids, intent.decision.requests, strict=True))
            emptied = [(identifier, Request(r.client)) for identifier, r in asked if r.client in leaving]
            for identifier, target in asked + emptied:  # what was asked for first: a client went under its own request
                self.database.run("INSERT OR IGNORE INTO erased VALUES (?, ?)", (self.pseudonym(target), identifier))
            self.database.run_many("DELETE FROM metrics WHERE client = ?", ((client,) for client in leaving))
            self.database.run("DELETE FROM metrics WHERE round > ?", (rounds_left,))
            self.database.run("UPDATE requests SET model_digest = NULL WHERE model_round > ?", (rounds_left,))
            if intent.reseed is not None:
                self.database.run("UPDATE record SET value = 0 WHERE key = 'tainted'")
                self._event("reseeded", {"seed_origin": "system"})
            self._advance(intent, Stage.REMOVED)

    def recomputed(self, intent: Intent) -> None:
        with self.database.transaction():
            self._advance(intent, Stage.RECOMPUTED)

    def completed(self, intent: Intent, model_round: int, model_digest: str | None, state_digest: str) -> None:
        """The receipt is final: which model stands now, in the clear while it is current and as a MAC for ever."""
        model_mac = self.mac("model", (model_digest or "").encode())
        with self.database.transaction():
            self.database.run(
                "UPDATE requests SET model_round = ?, model_digest = ?, model_mac = ? WHERE batch_id = ?",
                (model_round, model_digest, model_mac, intent.batch_id),
            )
            self._advance(
                intent,
                Stage.COMPLETED,
                {"model_mac": model_mac.hex(), "state_mac": self.mac("state", state_digest.encode()).hex()},
            )

    def purged(self, intent: Intent) -> None:
        """Nothing is left of what was asked to go. The ids of the request go last, before the word is given."""
        nothing = replace(intent.decision, requests=(), first_changed_steps=(), leaving=())
        emptied = replace(intent, decision=nothing, reseed=None)
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
            self._event(stage, {"request": identifier, **(extra or {})})

    # Events

    def trained(self, rounds_done: int, versions: Mapping[str, Any]) -> None:
        with self.database.transaction():
            self._event("trained", {"rounds_done": rounds_done, **versions})

    def _event(self, kind: str, body: Mapping[str, Any]) -> None:
        rows = self.database.rows("SELECT sequence, hash FROM events ORDER BY sequence DESC LIMIT 1")
        sequence, previous = (rows[0][0] + 1, rows[0][1]) if rows else (1, bytes(32))
        time, text = _now(), json.dumps(body, sort_keys=True)
        self.database.run(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
            (sequence, time, kind, text, _link(previous, sequence, time, kind, text)),
        )

    def events(self) -> list[dict[str, Any]]:
        rows = self.database.rows("SELECT sequence, time, kind, body FROM events ORDER BY sequence")
        return [{"sequence": n, "time": time, "kind": kind, **_told(body)} for n, time, kind, body in rows]

    def chain_problem(self, seed_origin: str | None = None) -> str | None:
        """Why the events don't chain, or don't tell the story that the record tells; None if they do.

        A tail that was cut off whole, requests and all, leaves no trace here: a receipt held elsewhere shows it.
        """
        previous = bytes(32)
        rows = self.database.rows("SELECT sequence, time, kind, body, hash FROM events ORDER BY sequence")
        for expected, (sequence, time, kind, body, link) in enumerate(rows, start=1):
            if sequence != expected or link != _link(previous, sequence, time, kind, body):
                return f"event {expected} of the record was altered, added or removed"
            previous = link
        if not rows:
            return "the record has no events"
        return self._story_problem(seed_origin)

    def _story_problem(self, seed_origin: str | None) -> str | None:
        told: dict[str, dict[str, Any]] = {}
        tainted, origin = False, None
        for event in self.events():
            origin = event.get("seed_origin", origin)
            if event["kind"] == "reseeded":
                tainted = False
            if "request" in event:
                about = told.setdefault(event["request"], {})
                about |= {**event, "state": event["kind"]}
            if event["kind"] == Stage.RECEIVED:
                tainted |= event["guarantee"] == GUARANTEE_PATH and event["basis"] != Basis.EXOGENOUS
        shown = {receipt.id: receipt.as_dict() for receipt in self.receipts()}
        if told.keys() != shown.keys() or any(
            about[key] != shown[request][key] for request, about in told.items() for key in _TOLD
        ):
            return "the requests of the record are not those of its events"
        if tainted != self.tainted or (seed_origin or origin) != origin:
            return "the record's events tell another story of its seeds"
        return self._trace_problem()

    def _trace_problem(self) -> str | None:
        for identifier, state, model, mac in self.database.rows(
            "SELECT id, state, model_digest, model_mac FROM requests"
        ):
            if model is not None and self.mac("model", model.encode()) != mac:
                return f"the model digest of request {identifier} was altered"
            gone = self.database.rows("SELECT count(*) FROM erased WHERE request = ?", (identifier,))[0][0]
            if state != Stage.ACCEPTED and not gone:
                return f"request {identifier} has lost its pseudonym"
        return None

    # Seals: what the files were when they were last closed

    def seals(self) -> dict[str, str]:
        """The digest of each file at rest; nothing while somebody works on the run, or after a crash."""
        return dict(self.database.rows("SELECT file, digest FROM seals"))

    def seal(self, digests: Mapping[str, str]) -> None:
        with self.database.transaction():
            self.database.run_many("INSERT INTO seals VALUES (?, ?)", digests.items())
            self.database.run("INSERT INTO seals VALUES (?, ?)", (OWN_SEAL, self.content_digest()))

    def break_seals(self) -> None:
        with self.database.transaction():
            self.database.run("DELETE FROM seals")

    def content_digest(self) -> str:
        """Of every row of the record, its own seal aside."""
        hasher = hashlib.blake2b(digest_size=32, person=b"fedforget/record")
        for (table,) in self.database.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"):
            for row in self.database.rows(f"SELECT * FROM {table}"):  # noqa: S608 (our own table names)
                if not (table == "seals" and row[0] == OWN_SEAL):
                    hasher.update(repr((table, row)).encode())
        return hasher.hexdigest()

    # Metrics

    def measured(self, round_: int, correct: int, count: int) -> None:
        with self.database.transaction():
            self.database.run(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?)", (round_, SERVER_TEST_SET, correct, count)
            )

    def accuracy(self, round_: int) -> float | None:
        rows = self.database.rows(
            "SELECT correct, count FROM metrics WHERE round = ? AND client = ?", (round_, SERVER_TEST_SET)
        )
        return rows[0][0] / rows[0][1] if rows and rows[0][1] else None

    def accuracies(self) -> dict[int, float]:
        """Every round that was measured on the server's test set."""
        rows = self.database.rows(
            "SELECT round, correct, count FROM metrics WHERE client = ? ORDER BY round", (SERVER_TEST_SET,)
        )
        return {round_: correct / count for round_, correct, count in rows if count}


def guarantee_of(seed_origin: str, tainted: bool, basis: str, new_seed: bool) -> str:
    """Equality in law needs seeds nobody chose and requests that looked at nothing; path by path it always holds."""
    if new_seed:
        return GUARANTEE_LAW
    clean = seed_origin == "system" and not tainted and basis == Basis.EXOGENOUS
    return GUARANTEE_LAW if clean else GUARANTEE_PATH


def _told(body: str) -> dict[str, Any]:
    """What an event says; nothing if it was altered beyond reading, which the chain then shows."""
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _link(previous: bytes, sequence: int, time: str, kind: str, body: str) -> bytes:
    message = json.dumps([previous.hex(), sequence, time, kind, body]).encode()
    return hashlib.blake2b(message, digest_size=32, person=b"fedforget/event").digest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
