"""``record.db`` of a client: requests of this client, their handles, pending additions, and events.

Its tables of requests and events are those of a run's record. What must be erasable is encrypted with keys in
``record.keys`` (``requests.vault``): deleting a key destroys the ids that it encrypted.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fedforget.algorithm.ids import Id, canonical_id
from fedforget.disk.column_checks import check, is_blob, is_name, is_one_of, is_text, is_whole
from fedforget.disk.database import Database
from fedforget.disk.parsing import LONGEST, parse_json, parse_names
from fedforget.errors import FedForgetError, RunDamaged
from fedforget.requests import chain, schema
from fedforget.requests.batches import Batches
from fedforget.requests.book import RequestBook
from fedforget.requests.chain import EventChain
from fedforget.requests.pseudonyms import Pseudonyms
from fedforget.requests.vault import Vault
from fedforget.store import environments
from fedforget.store.environments import Environments

WAITING, JOINED = "waiting", "joined"
HANDLE_BYTES = 16
_HANDLE = f"{is_name('handle')} AND length(handle) = {2 * HANDLE_BYTES}"

SCHEMA = f"""
CREATE TABLE record (
    key TEXT PRIMARY KEY, value ANY NOT NULL,
    CHECK (CASE key
        WHEN 'pseudonym_key' THEN {is_whole("value", 1)}
        WHEN 'tainted' THEN {is_whole("value", 0, 1)}
        WHEN 'receipt_key' THEN {is_name("value")}
        WHEN 'epoch' THEN {is_whole("value")}
        WHEN 'last_round' THEN {is_whole("value")}
        WHEN 'run' THEN {is_text("value")}
        WHEN 'reseeded' THEN {is_text("value")}
        WHEN 'learner' THEN {is_text("value")}
        ELSE 0 END)
) STRICT, WITHOUT ROWID;
CREATE TABLE withdrawals (
    request TEXT PRIMARY KEY {check(is_name("request"))},
    handle TEXT NOT NULL {check(_HANDLE)}
) STRICT, WITHOUT ROWID;
CREATE INDEX withdrawals_by_handle ON withdrawals (handle);
CREATE TABLE additions (
    handle TEXT PRIMARY KEY {check(_HANDLE)},
    state TEXT NOT NULL {check(is_one_of("state", WAITING, JOINED))}
) STRICT, WITHOUT ROWID;
CREATE TABLE arriving (
    handle TEXT PRIMARY KEY {check(_HANDLE)},
    key INTEGER NOT NULL {check(is_whole("key", 1))},
    body BLOB NOT NULL {check(is_blob("body", 1, LONGEST))}
) STRICT, WITHOUT ROWID;
{schema.SCHEMA}
{chain.SCHEMA}
{environments.SCHEMA}
"""


class OwnRecord:
    """The record of a client."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.chain = EventChain(database)
        self.vault = Vault(database, also=["SELECT key FROM arriving"])
        self.pseudonyms = Pseudonyms(database, self.vault)
        self.environments = Environments(database)
        self.book = RequestBook(database, self.chain, self.pseudonyms, self.vault, self._give_handle)
        self.batches = Batches(database, self.chain, self.pseudonyms, self.vault, ())

    def create(self, seed_origin: str, key: str, commitment: bytes) -> None:
        """Write the first rows and the file of keys. ``key``: the id of the key that signs."""
        self.vault.keys.create()
        with self.database.transaction():
            self._set("pseudonym_key", self.pseudonyms.new_key())
            self._set("tainted", 0)
            self._set("epoch", 0)
            self._set("receipt_key", key)
            self.chain.append("created", {"seed_origin": seed_origin, "commitment": commitment.hex(), "key": key})

    # Single values

    def value(self, key: str) -> Any:
        rows = self.database.rows("SELECT value FROM record WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def _set(self, key: str, value: Any) -> None:
        self.database.run("INSERT OR REPLACE INTO record VALUES (?, ?)", (key, value))

    def note(self, event: tuple[str, Mapping[str, Any]] | None = None, **values: Any) -> None:
        """Store values and an event in one transaction."""
        with self.database.transaction():
            for key, value in values.items():
                self._set(key, value)
            if event is not None:
                self.chain.append(*event)

    def names(self, key: str) -> dict[str, str]:
        """Return a value that is an object of texts."""
        return parse_names(self.value(key) or "{}", self.database.path)

    # Withdrawals

    def _give_handle(self, requests: Sequence[str]) -> None:
        """Give requests that one transaction accepted one handle."""
        handle = new_handle()
        self.database.run_many("INSERT INTO withdrawals VALUES (?, ?)", ((each, handle) for each in requests))

    def handles(self, requests: Collection[str]) -> dict[str, str]:
        """Return the handle of each of these requests that has one."""
        sql = "SELECT request, handle FROM withdrawals"
        return dict(self.database.rows_in(sql, "request", list(requests)))

    def requests_of(self, handles: Collection[str]) -> list[str]:
        """Return the requests that these handles stand for."""
        rows = self.database.rows_in("SELECT request FROM withdrawals", "handle", sorted(handles))
        return [request for (request,) in rows]

    def knows_handle(self, handle: str) -> bool:
        return bool(self.requests_of([handle])) or self._state_of(handle) is not None

    # Additions

    def _state_of(self, handle: str) -> str | None:
        rows = self.database.rows("SELECT state FROM additions WHERE handle = ?", (handle,))
        return str(rows[0][0]) if rows else None

    def arriving(self) -> dict[str, dict[Id, bytes]]:
        """Return the samples of each pending addition."""
        rows = self.database.rows("SELECT handle, key, body FROM arriving ORDER BY handle")
        return {handle: self._decoded(handle, self.vault.keys.decrypt(key, body, handle)) for handle, key, body in rows}

    def _decoded(self, handle: str, body: bytes) -> dict[Id, bytes]:
        try:
            return {canonical_id(sample): bytes.fromhex(content) for sample, content in parse_json(body)}
        except (ValueError, TypeError, FedForgetError) as error:
            raise RunDamaged(f"{self.database.path} is damaged: the addition {handle} cannot be read") from error

    def keep_arriving(self, samples: Sequence[Mapping[Id, bytes]], kept: Iterable[str] = ()) -> None:
        """Replace the pending additions. Each group gets a handle; the first ones keep those in ``kept``.

        All are encrypted with a new key, so that a dropped addition cannot be read. Call inside a transaction.
        """
        handles = list(kept)
        groups = dict(zip([*handles, *(new_handle() for _ in samples[len(handles) :])], samples, strict=True))
        self.database.run("DELETE FROM arriving")
        gone = [(handle,) for (handle,) in self._waiting() if handle not in groups]
        self.database.run_many("UPDATE additions SET state = 'joined' WHERE handle = ?", gone)
        key = self.vault.take() if groups else 0
        for handle, group in groups.items():
            body = json.dumps([[sample, content.hex()] for sample, content in group.items()]).encode()
            self.database.run("INSERT OR REPLACE INTO additions VALUES (?, 'waiting')", (handle,))
            sealed = self.vault.keys.encrypt(key, body, handle)
            self.database.run("INSERT INTO arriving VALUES (?, ?, ?)", (handle, key, sealed))

    def _waiting(self) -> list[tuple[str]]:
        return [(handle,) for (handle,) in self.database.rows("SELECT handle FROM additions WHERE state = 'waiting'")]

    def arrived(self, handles: Collection[str], count: int) -> None:
        """Record that additions have joined the run. Idempotent."""
        waiting = self.arriving()
        if not waiting.keys() & set(handles):
            return
        left = {handle: group for handle, group in waiting.items() if handle not in handles}
        with self.database.transaction():
            self.keep_arriving(list(left.values()), left)
            self.chain.append("joined", {"samples": count})


def new_handle() -> str:
    return secrets.token_hex(HANDLE_BYTES)
