"""Keyed digests of ids. Without their key they reveal nothing."""

from __future__ import annotations

import hashlib

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import id_block
from fedforget.disk.database import Database
from fedforget.errors import RunDamaged
from fedforget.requests.vault import Vault


class Pseudonyms:
    """Keyed digests of erased ids. Forgetting the record drops their key from the file of keys."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._database = database
        self._vault = vault
        self._known: tuple[int, bytes] | None = None

    def new_key(self) -> int:
        """Take a new key. Call inside a transaction, and note its number in the record."""
        self._known = None
        return self._vault.take()

    def mac(self, purpose: str, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key(), digest_size=16, person=purpose.encode().ljust(16, b"\0")).digest()

    def of(self, request: Request) -> bytes:
        sample = b"" if request.sample is None else id_block(request.sample)
        return self.mac("pseudonym", id_block(request.client) + sample)

    def _key(self) -> bytes:
        if self._known is None:
            number = self._database.rows("SELECT value FROM record WHERE key = 'pseudonym_key'")[0][0]
            key = self._vault.keys.key(number)
            if key is None:
                raise RunDamaged(
                    f"{self._vault.keys.path} is not that of {self._database.path}: it lacks the key of the pseudonyms",
                    hint="restore both from the same backup",
                )
            self._known = number, key
        return self._known[1]
