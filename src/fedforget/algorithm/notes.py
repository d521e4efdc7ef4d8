"""The digest of what clients note while they learn: first uses and witnesses.

Each client has a digest of its own notes. The digest of all notes is made of those, so a server that knows nothing of
samples can compute it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from fedforget.algorithm.ids import Id, id_block

DIGEST_BYTES = 32
_CLIENT, _ALL = b"fedforget/note/1", b"fedforget/uses/2"
_NUMBER_BYTES = 8


def _number(value: int) -> bytes:
    return value.to_bytes(_NUMBER_BYTES, "big")


def notes_digest_of_client(first_steps: Mapping[Id, int], witnesses: Mapping[int, bytes]) -> bytes:
    """Return the digest of one client's notes: the first step of each sample used, and the witness of each round."""
    uses = sorted((id_block(sample), step) for sample, step in first_steps.items())
    hasher = hashlib.blake2b(_number(len(uses)), digest_size=DIGEST_BYTES, person=_CLIENT)
    hasher.update(b"".join(block + _number(step) for block, step in uses))
    hasher.update(b"".join(_number(round_) + witnesses[round_] for round_ in sorted(witnesses)))
    return hasher.digest()


NO_NOTES = notes_digest_of_client({}, {})


def notes_digest(of_clients: Mapping[Id, bytes]) -> bytes:
    """Return the digest of all notes, given that of each client. A client without notes may be left out."""
    return joined_notes((id_block(client), digest) for client, digest in of_clients.items() if digest != NO_NOTES)


def joined_notes(of_blocks: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the digest of all notes, given the block and the digest of each client that has some."""
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=_ALL)
    for block, digest in sorted(of_blocks):
        hasher.update(block + digest)
    return hasher.digest()
