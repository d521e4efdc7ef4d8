"""One digest over the seed commitments of the server and of every client of a run."""

from __future__ import annotations

import hashlib

from fedforget.store.run_directory import OpenRun


def commitments_digest(run: OpenRun) -> str:
    hasher = hashlib.blake2b(run.server.seed.commitment, digest_size=32, person=b"fedforget/commit")
    members = run.server.members
    hasher.update(members.ids.blocks.tobytes())
    hasher.update(members.commitments.tobytes())
    return hasher.hexdigest()
