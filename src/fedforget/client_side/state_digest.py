"""The digest of a client's part of the function: its commitment, the root of its samples, its notes."""

from __future__ import annotations

import hashlib

from fedforget.client_side.directory import OpenDirectory


def state_digest(state: OpenDirectory) -> str:
    hasher = hashlib.blake2b(digest_size=32, person=b"fedforget/client")
    if not state.book.is_empty:
        hasher.update(state.book.seed.commitment + state.book.root + state.uses.digest_of_client(state.client))
    return hasher.hexdigest()
