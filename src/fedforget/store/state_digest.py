"""The state digest: over a canonical export of the state, without path, time, versions or record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from fedforget.algorithm.ids import IdSet
from fedforget.store.run_directory import OpenRun


def canonical_export(run: OpenRun) -> Iterator[bytes]:
    """Yield the state as JSON lines in a fixed order: plan, server, roster, kept rounds, clients, their samples."""
    server, clients = run.server, run.clients
    yield _line("plan", run.file.encode().decode())
    yield _line("server", server.seed.value.hex(), server.seed.nonce.hex(), server.seed_origin, server.rounds_done)
    commitments = server.commitments()
    for client in server.roster:
        yield _line("client", client, commitments[client].hex(), server.first_round(client))
    for round_, model in server.kept().items():
        yield _line("round", round_, model)
    for client in clients.clients():
        seed = clients.seed_pair(client)
        yield _line("seed", client, seed.value.hex(), seed.nonce.hex())
        contents, first_steps = clients.contents(client), clients.first_steps(client)
        for sample in IdSet(contents):
            yield _line("sample", client, sample, contents[sample].hex(), first_steps.get(sample))
        for round_, witness in clients.witnesses(client).items():
            yield _line("witness", client, round_, witness.hex())


def state_digest(run: OpenRun) -> str:
    hasher = hashlib.blake2b(digest_size=32, person=b"fedforget/state")
    for line in canonical_export(run):
        hasher.update(line)
    return hasher.hexdigest()


_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode  # built once: there is a line per sample


def _line(*values: Any) -> bytes:
    return _encode(values).encode() + b"\n"
