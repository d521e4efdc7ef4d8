"""Keyed digests of ids. Without the record's key they reveal nothing."""

from __future__ import annotations

import hashlib

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import id_block
from fedforget.disk.database import Database


class Pseudonyms:
    """Keyed digests of erased ids. The key is in the record; forgetting the record deletes it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def mac(self, purpose: str, data: bytes) -> bytes:
        key = self._database.rows("SELECT value FROM record WHERE key = 'key'")[0][0]
        return hashlib.blake2b(data, key=key, digest_size=16, person=purpose.encode().ljust(16, b"\0")).digest()

    def of(self, request: Request) -> bytes:
        sample = b"" if request.sample is None else id_block(request.sample)
        return self.mac("pseudonym", id_block(request.client) + sample)
