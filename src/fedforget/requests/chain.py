"""The events of a run in an append-only chain: each hash covers the event, the hash before it and one further back.

Every event holds a random salt. Receipts name hashes, and everything else in an event can be guessed. Without the salt,
a reader of two receipts could search for what happened between them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fedforget.disk.column_checks import check, is_blob, is_name, is_text
from fedforget.disk.database import Database
from fedforget.disk.parsing import parse_object
from fedforget.requests.links import BEGINNING, HASH_BYTES, Linker, Step, link, proof, shortcut_of

_COLUMNS = "SELECT sequence, time, kind, body, hash FROM events"

SCHEMA = f"""
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    time TEXT NOT NULL {check(is_name("time"))},
    kind TEXT NOT NULL {check(is_name("kind"))},
    about TEXT {check(is_name("about"), optional="about")},
    body TEXT NOT NULL {check(is_text("body"))},
    hash BLOB NOT NULL {check(is_blob("hash", HASH_BYTES))}
) STRICT;
CREATE INDEX events_by_about ON events (about) WHERE about IS NOT NULL;
CREATE INDEX events_by_kind ON events (kind, sequence);
"""
_NO_END = 2**63 - 1  # after the last event
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
        self.append_all([(kind, body)])

    def append_all(self, events: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Append events in order, each with its kind and body."""
        rows = self._database.rows("SELECT sequence, hash, time FROM events ORDER BY sequence DESC LIMIT 1")
        sequence, previous, before = rows[0] if rows else (0, BEGINNING, "")
        time = max(now(), before)  # event times never decrease
        fresh: list[tuple[Any, ...]] = []
        first = sequence + 1
        for kind, body in events:
            text = json.dumps({**body, _SALT: secrets.token_hex(_SALT_BYTES)}, sort_keys=True)
            sequence += 1
            back = shortcut_of(sequence)
            shortcut = self.hash_at(back) if back < first else bytes(fresh[back - first][-1])
            previous = link(sequence, previous, shortcut, content_digest(sequence, time, kind, text))
            fresh.append((sequence, time, kind, about(body), text, previous))
        self._database.run_many("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", fresh)

    def hash_at(self, sequence: int) -> bytes:
        """Return the hash of an event, or that of the beginning if there is none."""
        rows = self._database.rows("SELECT hash FROM events WHERE sequence = ?", (sequence,)) if sequence else []
        return bytes(rows[0][0]) if rows else BEGINNING

    def _digest_at(self, sequence: int) -> bytes:
        return content_digest(
            *self._database.rows("SELECT sequence, time, kind, body FROM events WHERE sequence = ?", (sequence,))[0]
        )

    def proof(self, newer: int, older: int) -> list[Step]:
        """Return the steps that show that one event follows another, which reveal nothing about those between."""
        return proof(newer, older, self._digest_at, self.hash_at)

    def length(self) -> int:
        """Return the sequence number of the last event."""
        return int(self._database.rows("SELECT coalesce(max(sequence), 0) FROM events")[0][0])

    def first(self) -> Event:
        return self._events(self._database.rows(f"{_COLUMNS} ORDER BY sequence LIMIT 1"))[0]

    def last(self) -> Event | None:
        rows = self._database.rows(f"{_COLUMNS} ORDER BY sequence DESC LIMIT 1")
        return next(iter(self._events(rows)), None)

    def events(self) -> list[Event]:
        return self._events(self._database.rows(f"{_COLUMNS} ORDER BY sequence"))

    def about(self, names: Sequence[str]) -> list[Event]:
        """Return the events about these requests or batches, in order."""
        return sorted(self._events(self._database.rows_in(_COLUMNS, "about", names)), key=lambda event: event.sequence)

    def at(self, sequence: int) -> Event | None:
        rows = self._database.rows(f"{_COLUMNS} WHERE sequence = ?", (sequence,))
        return next(iter(self._events(rows)), None)

    def last_of(self, *kinds: str, before: int = _NO_END) -> int:
        """Return the sequence number of the last event of one of these kinds, or 0."""
        sql = "SELECT coalesce(max(sequence), 0) FROM events WHERE kind = ? AND sequence < ?"
        return max(int(self._database.rows(sql, (kind, before))[0][0]) for kind in kinds)

    def all_of(self, kind: str, before: int = _NO_END) -> list[Event]:
        """Return the events of a kind, in order."""
        sql = f"{_COLUMNS} WHERE kind = ? AND sequence < ? ORDER BY sequence"
        return self._events(self._database.rows(sql, (kind, before)))

    def has(self, found: str) -> bool:
        """Return whether an event has this hash, given as text. Reads all events."""
        return bool(self._database.rows("SELECT 1 FROM events WHERE lower(hex(hash)) = ? LIMIT 1", (found,)))

    @staticmethod
    def _events(rows: Iterable[tuple[Any, ...]]) -> list[Event]:
        return [Event(sequence, time, kind, _parse_body(body), found) for sequence, time, kind, body, found in rows]

    def problem(self) -> str | None:
        """Return why the events do not chain; None if they do.

        A truncated chain is not detected here: only a receipt held elsewhere shows it.
        """
        linker = Linker()
        rows = self._database.rows("SELECT sequence, time, kind, body, hash, about FROM events ORDER BY sequence")
        for expected, (sequence, time, kind, body, found, subject) in enumerate(rows, start=1):
            whole = sequence == expected and found == linker.append(content_digest(sequence, time, kind, body))
            if not whole or subject != about(_parse_body(body)):
                return f"event {expected} of the record was altered, added or removed"
        return None if rows else "the record has no events"


def about(body: Mapping[str, Any]) -> str | None:
    """Return what an event is found by: its request, else its batch."""
    return body.get("request") or body.get("batch")


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
