"""One digest over the seed commitments of the server and of every client of a run."""

from __future__ import annotations

import hashlib

from fedforget.algorithm.ids import id_block
from fedforget.store.run_directory import OpenRun


def commitments_digest(run: OpenRun) -> str:
    hasher = hashlib.blake2b(run.server.seed.commitment, digest_size=32, person=b"fedforget/commit")
    commitments = run.server.commitments()
    for client in run.server.roster:
        hasher.update(id_block(client) + commitments[client])
    return hasher.hexdigest()
