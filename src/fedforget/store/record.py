"""``record.db``: the legal trail. Requests and what became of them, events in a hash chain, versions, metrics.

It is not part of the function. About what is gone it holds keyed pseudonyms and MACs of superseded digests, nothing
else; the ids of a request stand here only until it is purged: among those that wait, or in the intent of its batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from fedforget.errors import InvalidInput
from fedforget.store import chain, metrics, requests, seals
from fedforget.store.batches import Batches
from fedforget.store.chain import EventChain
from fedforget.store.database import Database
from fedforget.store.metrics import Metrics
from fedforget.store.policy import Policy
from fedforget.store.pseudonyms import Pseudonyms
from fedforget.store.request_book import RequestBook
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
INSERT INTO erased SELECT pseudonym, 0, request, 0 FROM erased_1;
INSERT INTO intents SELECT batch_id, stage, body FROM intents_1;
DROP TABLE requests_1;
DROP TABLE erased_1;
DROP TABLE intents_1;
DELETE FROM seals;
"""  # noqa: S608 (nothing in it is from outside)
MIGRATIONS = {1: _FROM_1}
_FORGOTTEN = "record forgotten"


class Record:
    """The record of a run."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.chain = EventChain(database)
        self.metrics = Metrics(database)
        self.seals = Seals(database)
        self.pseudonyms = Pseudonyms(database)
        self.book = RequestBook(database, self.chain, self.pseudonyms)
        self.batches = Batches(database, self.chain, self.pseudonyms, self.metrics, self.book)

    def create(self, seed_origin: str) -> None:
        with self.database.transaction():
            self.database.run("INSERT INTO record VALUES ('key', ?)", (secrets.token_bytes(32),))
            self.database.run("INSERT INTO record VALUES ('tainted', 0)")
            self.chain.append("created", {"seed_origin": seed_origin})

    @property
    def policy(self) -> Policy:
        rows = self.database.rows("SELECT value FROM record WHERE key = 'policy'")
        return Policy.decode(rows[0][0]) if rows else Policy()

    def set_policy(self, policy: Policy) -> None:
        with self.database.transaction():
            self.database.run("INSERT OR REPLACE INTO record VALUES ('policy', ?)", (policy.encode(),))
            self.chain.append("policy", {"policy": policy.encode()})

    @property
    def receipt_key(self) -> str | None:
        """The key that receipts are signed with, by its id; None if none was made."""
        rows = self.database.rows("SELECT value FROM record WHERE key = 'receipt_key'")
        return str(rows[0][0]) if rows else None

    def note_receipt_key(self, key: str) -> None:
        with self.database.transaction():
            self.database.run("INSERT OR REPLACE INTO record VALUES ('receipt_key', ?)", (key,))
            self.chain.append("receipt key", {"key": key})

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
        if self.book.waiting() or self.batches.pending():
            raise InvalidInput("a request waits", hint="meet it with `fedforget run-pending`, or cancel it, first")
        with self.database.transaction():
            self.database.run("UPDATE record SET value = ? WHERE key = 'key'", (secrets.token_bytes(32),))
            self.database.run("DELETE FROM erased")
            self.database.run("DELETE FROM keys")
            self.database.run("UPDATE requests SET model_mac = NULL")
            self.chain.append(_FORGOTTEN, {})
