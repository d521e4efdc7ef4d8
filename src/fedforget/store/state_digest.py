"""The state digest: over what is a function of plan, seeds and data, without path, time, versions or record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from fedforget.store.run_directory import OpenRun


def canonical_export(run: OpenRun) -> Iterator[bytes]:
    """Yield the state as JSON lines in a fixed order: plan, server, data, notes, first rounds, kept rounds.

    The root of the tree stands for all clients with their seeds, samples and contents. It is stored, and so is the
    digest of the notes, so that a request that touches one book reads no other.
    """
    server, part = run.server, run.part
    yield _line("plan", run.file.encode().decode())
    yield _line("server", server.seed.value.hex(), server.seed.nonce.hex(), server.seed_origin, server.rounds_done)
    yield _line("data", part.data_root().hex())
    yield _line("uses", part.notes_digest().hex())
    for client, round_ in server.stored_first_rounds():
        yield _line("client", client, round_)
    for round_, model in server.kept().items():
        yield _line("round", round_, model)


def state_digest(run: OpenRun) -> str:
    hasher = hashlib.blake2b(digest_size=32, person=b"fedforget/state")
    for line in canonical_export(run):
        hasher.update(line)
    return hasher.hexdigest()


_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def _line(*values: Any) -> bytes:
    return _encode(values).encode() + b"\n"
