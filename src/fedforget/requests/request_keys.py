"""Idempotency keys: the same key again is the same request. The record keeps a MAC of each key and of its targets."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fedforget.disk.database import Database
from fedforget.disk.parsing import parse_json
from fedforget.errors import InvalidInput, RunDamaged, quoted
from fedforget.requests.lifecycle import Submission
from fedforget.requests.pseudonyms import Pseudonyms


class RequestKeys:
    """The table ``keys`` of a record."""

    def __init__(self, database: Database, pseudonyms: Pseudonyms) -> None:
        self._database, self._pseudonyms = database, pseudonyms

    def ids_of(self, submission: Submission) -> list[str] | None:
        """Return the ids of the requests that used this key before. Refuse the key for other requests."""
        row = None if submission.key is None else self._row(submission.key)
        if row is None:
            return None
        if row[0] != self._pseudonyms.mac("key body", submission.body()):
            raise InvalidInput(
                f"the idempotency key {quoted(str(submission.key))} was used for other requests",
                hint="use a new key for new requests",
            )
        return self._ids(row[1])

    def ids_with(self, key: str) -> list[str] | None:
        """Return the ids of the requests that used this key before, whatever they were for."""
        row = self._row(key)
        return None if row is None else self._ids(row[1])

    def _row(self, key: str) -> tuple[bytes, str] | None:
        sql = "SELECT body, requests FROM keys WHERE mac = ?"
        rows = self._database.rows(sql, (self._pseudonyms.mac("key", key.encode()),))
        return (rows[0][0], rows[0][1]) if rows else None

    def _ids(self, requests: str) -> list[str]:
        try:
            return [str(each) for each in parse_json(requests)]
        except (ValueError, TypeError) as error:
            raise RunDamaged(
                f"{self._database.path} is damaged: the requests of an idempotency key cannot be read"
            ) from error

    def note(self, submission: Submission, ids: Sequence[str]) -> None:
        """Note the key of a submission, if it has one. Call inside a transaction."""
        if submission.key is not None:
            key = self._pseudonyms.mac("key", submission.key.encode())
            body = self._pseudonyms.mac("key body", submission.body())
            self._database.run("INSERT OR IGNORE INTO keys VALUES (?, ?, ?)", (key, body, json.dumps(ids)))
