"""``record.db``: the audit trail. Requests with their outcome, events in a hash chain, versions.

The record is not part of the run's function. It is appended to and never rebuilt, so that its cost does not grow with
its length. About erased data it holds only keyed pseudonyms and MACs of superseded digests. Temporary
content, such as the ids of a request until it is purged, is encrypted with a key that is then dropped
(``requests.vault``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedforget.disk.column_checks import is_name, is_text, is_whole
from fedforget.disk.database import Database
from fedforget.disk.parsing import parse_names
from fedforget.errors import InvalidInput
from fedforget.requests import chain, schema
from fedforget.requests.batches import Batches, DerivedTable
from fedforget.requests.book import RequestBook
from fedforget.requests.chain import EventChain
from fedforget.requests.policy import Policy
from fedforget.requests.pseudonyms import Pseudonyms
from fedforget.requests.vault import LEAVES, Vault
from fedforget.store import environments, hints
from fedforget.store.environments import Environments

SCHEMA = f"""
CREATE TABLE record (
    key TEXT PRIMARY KEY, value ANY NOT NULL,
    CHECK (CASE key
        WHEN 'pseudonym_key' THEN {is_whole("value", 1)}
        WHEN 'tainted' THEN {is_whole("value", 0, 1)}
        WHEN 'policy' THEN {is_name("value")}
        WHEN 'receipt_key' THEN {is_name("value")}
        WHEN 'learner' THEN {is_text("value")}
        ELSE 0 END)
) STRICT, WITHOUT ROWID;
{schema.SCHEMA}
{chain.SCHEMA}
{environments.SCHEMA}
"""
FORGOTTEN, EXPORTED = "record forgotten", "exported"


def learner_digest(names: Mapping[str, str]) -> str:
    """Return the digest that receipts name a learner by: of the names of the module's parts and of the loss."""
    canonical = json.dumps(dict(names), sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(canonical, digest_size=32, person=b"fedforget/learn").hexdigest()


class Record:
    """The record of a run."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.chain = EventChain(database)
        self.vault = Vault(database)
        self.pseudonyms = Pseudonyms(database, self.vault)
        self.environments = Environments(database)
        self.derived: list[DerivedTable] = [self.environments]
        self.book = RequestBook(database, self.chain, self.pseudonyms, self.vault)
        self.batches = Batches(database, self.chain, self.pseudonyms, self.vault, self.derived)

    def create(self, seed_origin: str, learner: Mapping[str, str]) -> None:
        """Write the first rows and the file of keys. ``learner``: the names of the module's parts and of the loss."""
        self.vault.keys.create()
        with self.database.transaction():
            self.database.run("INSERT INTO record VALUES ('learner', ?)", (json.dumps(learner),))
            self.database.run("INSERT INTO record VALUES ('pseudonym_key', ?)", (self.pseudonyms.new_key(),))
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
        """The id of the key that signs receipts, or None if there is none yet."""
        rows = self.database.rows("SELECT value FROM record WHERE key = 'receipt_key'")
        return str(rows[0][0]) if rows else None

    def note_receipt_key(self, key: str) -> None:
        with self.database.transaction():
            self.database.run("INSERT OR REPLACE INTO record VALUES ('receipt_key', ?)", (key,))
            self.chain.append("receipt key", {"key": key})

    @property
    def learner(self) -> dict[str, str]:
        """The last recorded names of the module's parts and of the loss."""
        rows = self.database.rows("SELECT value FROM record WHERE key = 'learner'")
        return parse_names(rows[0][0] if rows else "", self.database.path)

    def note_learner(self, learner: Mapping[str, str], differences: Sequence[str], *, compared: bool) -> None:
        """Record new names of the learner. ``compared``: a witness confirmed it; False if no round is left to check."""
        with self.database.transaction():
            self.database.run("UPDATE record SET value = ? WHERE key = 'learner'", (json.dumps(learner),))
            self.chain.append("learner renamed", {"differences": list(differences), "compared": compared})

    # Events

    def trained(self, rounds_done: int, versions: Mapping[str, Any]) -> None:
        with self.database.transaction():
            self.chain.append("trained", {"rounds_done": rounds_done, **versions})

    def exported(self, file_digest: str) -> None:
        """Record that a model left the run, by a MAC of the file's digest."""
        with self.database.transaction():
            self.chain.append(EXPORTED, {"mac": self.pseudonyms.mac("export", file_digest.encode()).hex()})

    def events(self) -> list[dict[str, Any]]:
        return [
            {**event.body, "sequence": event.sequence, "time": event.time, "kind": event.kind}
            for event in self.chain.events()
        ]

    @property
    def forgotten_at(self) -> int:
        """The sequence number of the last ``forget_itself`` event, or 0."""
        return self.chain.last_of(FORGOTTEN)

    def forget_itself(self) -> None:
        """Give up the key and everything derived from it, so that no id can be linked to a request any more.

        The key is dropped when the run is closed.
        """
        if self.book.has_pending or self.batches.are_unfinished:
            command = hints.run_pending(self.database.path.parent, everything=True)
            raise InvalidInput("a request is pending", hint=f"carry it out with {command}, or cancel it, first")
        with self.database.transaction():
            self.database.run("UPDATE record SET value = ? WHERE key = 'pseudonym_key'", (self.pseudonyms.new_key(),))
            self.database.run("DELETE FROM erased")
            self.database.run("DELETE FROM keys")
            self.vault.drop(LEAVES)
            self.database.run("UPDATE batches SET model_mac = NULL")
            self.chain.append(FORGOTTEN, {})
