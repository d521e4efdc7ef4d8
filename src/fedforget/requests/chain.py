"""The events of a run in an append-only chain: each hash covers the event, the hash before it and one further back.

Every event holds a random salt. Receipts name hashes, and everything else in an event can be guessed. Without the salt,
a reader of two receipts could search for what happened between them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fedforget.disk.column_checks import check, is_blob, is_name, is_text
from fedforget.disk.database import Database
from fedforget.disk.parsing import parse_object
from fedforget.requests.links import BEGINNING, HASH_BYTES, Linker, Step, link, proof, shortcut_of

SCHEMA = f"""
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    time TEXT NOT NULL {check(is_name("time"))},
    kind TEXT NOT NULL {check(is_name("kind"))},
    body TEXT NOT NULL {check(is_text("body"))},
    hash BLOB NOT NULL {check(is_blob("hash", HASH_BYTES))}
);
"""
_SALT, _SALT_BYTES = "salt", 16
_NAMES = ("request", "batch", "received", "basis", "seed_origin", "version")  # fields of an event that hold a text


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the record."""

    sequence: int
    time: str
    kind: str
    body: Mapping[str, Any]
    hash: bytes


class EventChain:
    """The table ``events``. Append inside a transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, kind: str, body: Mapping[str, Any]) -> None:
        rows = self._database.rows("SELECT sequence, hash, time FROM events ORDER BY sequence DESC LIMIT 1")
        last, previous, before = rows[0] if rows else (0, BEGINNING, "")
        sequence, text = last + 1, json.dumps({**body, _SALT: secrets.token_hex(_SALT_BYTES)}, sort_keys=True)
        time = max(now(), before)  # event times never decrease
        shortcut = self._hash_at(shortcut_of(sequence))
        found = link(sequence, previous, shortcut, content_digest(sequence, time, kind, text))
        self._database.run("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (sequence, time, kind, text, found))

    def _hash_at(self, sequence: int) -> bytes:
        rows = self._database.rows("SELECT hash FROM events WHERE sequence = ?", (sequence,))
        return bytes(rows[0][0]) if rows else BEGINNING

    def _digest_at(self, sequence: int) -> bytes:
        return content_digest(
            *self._database.rows("SELECT sequence, time, kind, body FROM events WHERE sequence = ?", (sequence,))[0]
        )

    def proof(self, newer: int, older: int) -> list[Step]:
        """Return the steps that show that one event follows another, which reveal nothing about those between."""
        return proof(newer, older, self._digest_at, self._hash_at)

    def length(self) -> int:
        return int(self._database.rows("SELECT count(*) FROM events")[0][0])

    def events(self) -> list[Event]:
        rows = self._database.rows("SELECT sequence, time, kind, body, hash FROM events ORDER BY sequence")
        return [Event(sequence, time, kind, _parse_body(body), found) for sequence, time, kind, body, found in rows]

    def problem(self) -> str | None:
        """Return why the events do not chain; None if they do.

        A truncated chain is not detected here: only a receipt held elsewhere shows it.
        """
        linker = Linker()
        rows = self._database.rows("SELECT sequence, time, kind, body, hash FROM events ORDER BY sequence")
        for expected, (sequence, time, kind, body, found) in enumerate(rows, start=1):
            if sequence != expected or found != linker.append(content_digest(sequence, time, kind, body)):
                return f"event {expected} of the record was altered, added or removed"
        return None if rows else "the record has no events"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _parse_body(body: str) -> dict[str, Any]:
    """Parse the body of an event, without its salt. Return {} if it cannot be read; the chain then does not verify."""
    try:
        parsed = parse_object(body)
    except ValueError:
        return {}
    if not all(isinstance(parsed.get(key, ""), str) for key in _NAMES):
        return {}
    return {key: value for key, value in parsed.items() if key != _SALT}


def content_digest(sequence: int, time: str, kind: str, body: str) -> bytes:
    """Return the digest of an event without its place among the others: what a step of a proof reveals of it."""
    message = json.dumps([sequence, time, kind, body]).encode()
    return hashlib.blake2b(message, digest_size=HASH_BYTES, person=b"fedforget/event").digest()
