"""The events of a run in an append-only chain: each hash covers the event and the hash before it.

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

_HASH_BYTES = 32

SCHEMA = f"""
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    time TEXT NOT NULL {check(is_name("time"))},
    kind TEXT NOT NULL {check(is_name("kind"))},
    body TEXT NOT NULL {check(is_text("body"))},
    hash BLOB NOT NULL {check(is_blob("hash", _HASH_BYTES))}
);
"""
_BEGINNING = bytes(_HASH_BYTES)
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
        last, previous, before = rows[0] if rows else (0, _BEGINNING, "")
        sequence, text = last + 1, json.dumps({**body, _SALT: secrets.token_hex(_SALT_BYTES)}, sort_keys=True)
        time = max(now(), before)  # event times never decrease
        self._database.run(
            "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
            (sequence, time, kind, text, _link(previous, sequence, time, kind, text)),
        )

    def length(self) -> int:
        return int(self._database.rows("SELECT count(*) FROM events")[0][0])

    def events(self) -> list[Event]:
        rows = self._database.rows("SELECT sequence, time, kind, body, hash FROM events ORDER BY sequence")
        return [Event(sequence, time, kind, _parse_body(body), link) for sequence, time, kind, body, link in rows]

    def problem(self) -> str | None:
        """Return why the events do not chain; None if they do.

        A truncated chain is not detected here: only a receipt held elsewhere shows it.
        """
        previous = _BEGINNING
        rows = self._database.rows("SELECT sequence, time, kind, body, hash FROM events ORDER BY sequence")
        for expected, (sequence, time, kind, body, link) in enumerate(rows, start=1):
            if sequence != expected or link != _link(previous, sequence, time, kind, body):
                return f"event {expected} of the record was altered, added or removed"
            previous = link
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


def _link(previous: bytes, sequence: int, time: str, kind: str, body: str) -> bytes:
    message = json.dumps([previous.hex(), sequence, time, kind, body]).encode()
    return hashlib.blake2b(message, digest_size=32, person=b"fedforget/event").digest()
