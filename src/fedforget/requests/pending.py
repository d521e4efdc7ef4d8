"""Pending requests: accepted, and in no batch yet. Their targets are encrypted, and found by pseudonym."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.disk.database import Database
from fedforget.disk.parsing import parse_json
from fedforget.errors import FedForgetError, RunDamaged
from fedforget.requests.pseudonyms import Pseudonyms
from fedforget.requests.vault import Vault, waiting

_ROWS = "SELECT id, number, key, body FROM waiting JOIN requests USING (number)"


class PendingRequests:
    """The table ``waiting``. The cost of one request does not depend on how many others are pending."""

    def __init__(self, database: Database, pseudonyms: Pseudonyms, vault: Vault) -> None:
        self._database = database
        self._pseudonyms = pseudonyms
        self._vault = vault

    def __bool__(self) -> bool:
        return bool(self._database.rows("SELECT 1 FROM waiting LIMIT 1"))

    def all(self) -> dict[str, Request]:
        """Return all pending requests by id, in the order of receipt."""
        return self._decrypted(self._database.rows(f"{_ROWS} ORDER BY number"))

    def of(self, identifiers: Sequence[str]) -> dict[str, Request]:
        """Return the pending ones of these requests."""
        found = self._decrypted(self._database.rows_in(_ROWS, "id", identifiers))
        return {identifier: found[identifier] for identifier in identifiers if identifier in found}

    def is_for(self, identifier: str, target: Request) -> bool:
        """Return whether a request is pending, and for exactly this target."""
        sql = "SELECT 1 FROM requests JOIN waiting USING (number) WHERE id = ? AND target = ?"
        return bool(self._database.rows(sql, (identifier, self._pseudonyms.of(target))))

    def ids_of(self, targets: Sequence[Request]) -> dict[Request, str]:
        """Return the id of each target's pending request."""
        names = {self._pseudonyms.of(target): target for target in targets} if self else {}
        sql = "SELECT target, id FROM waiting JOIN requests USING (number)"
        return {names[target]: identifier for target, identifier in self._database.rows_in(sql, "target", list(names))}

    def under(self, targets: Collection[Request], leaving: Collection[Id]) -> dict[str, Request]:
        """Return the pending requests for these targets, and for anything of clients that leave."""
        if not self:
            return {}
        own = [self._pseudonyms.of(target) for target in targets]
        clients = [self._pseudonyms.of(Request(client)) for client in leaving]
        rows = self._database.rows_in(_ROWS, "target", own) + self._database.rows_in(_ROWS, "client", clients)
        return self._decrypted(sorted(set(rows), key=lambda row: row[1]))

    def enter(self, numbers: Sequence[int], requests: Sequence[Request]) -> None:
        """Add pending requests, encrypted in groups. Call inside a transaction."""
        entries, start = list(zip(numbers, requests, strict=True)), 0
        while start < len(entries):
            key, room = self._vault.key_for_waiting()
            some = entries[start : start + room]
            rows = (self._row(number, request, key) for number, request in some)
            self._database.run_many("INSERT INTO waiting VALUES (?, ?, ?, ?, ?)", rows)
            self._vault.entered(key, len(some))
            start += room

    def _row(self, number: int, request: Request, key: int) -> tuple[int, bytes, bytes, int, bytes]:
        target = json.dumps([request.client, request.sample]).encode()
        sealed = self._vault.keys.encrypt(key, target, waiting(number))
        return number, self._pseudonyms.of(request), self._pseudonyms.of(Request(request.client)), key, sealed

    def leave(self, identifier: str) -> bool:
        """Remove a pending request, and return whether it was pending. Call inside a transaction."""
        sql = "SELECT number FROM requests JOIN waiting USING (number) WHERE id = ?"
        numbers = [number for (number,) in self._database.rows(sql, (identifier,))]
        self._vault.leaves(numbers)
        return bool(numbers)

    def _decrypted(self, rows: Sequence[tuple[str, int, int, bytes]]) -> dict[str, Request]:
        found = {}
        for identifier, number, key, body in rows:
            data = self._vault.keys.decrypt(key, body, waiting(number))
            try:
                client, sample = parse_json(data)
                found[identifier] = Request(client, sample)
            except (ValueError, TypeError, FedForgetError) as error:
                raise RunDamaged(
                    f"{self._database.path} is damaged: the target of request {identifier} cannot be read"
                ) from error
        return found
