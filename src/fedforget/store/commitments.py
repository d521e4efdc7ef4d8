"""One digest over the seed commitments of the server and of every client of a run."""

from __future__ import annotations

import hashlib

from fedforget.store.run_directory import OpenRun


def commitments_digest(run: OpenRun) -> str:
    hasher = hashlib.blake2b(run.server.seed.commitment, digest_size=32, person=b"fedforget/commit")
    for client, commitment in run.server.commitments().items():  # in the order of the roster on disk
        hasher.update(repr(client).encode() + commitment)
    return hasher.hexdigest()
