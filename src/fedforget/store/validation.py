"""Whether a run without seals (after a crash, or altered) holds values that can be what they should be.

Types and shapes only: whether they are the right ones is for ``verify`` to say.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterable
from typing import Any

from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.ids import canonical_id
from fedforget.algorithm.seeds import Seed
from fedforget.errors import InvalidId, RunDamaged
from fedforget.store.database import Database
from fedforget.store.requests import Stage

_DIGEST = re.compile(r"[0-9a-f]{64}")


_COLUMNS = (
    'SELECT t.name, c.name, c.type, c."notnull", c.pk FROM sqlite_schema t, pragma_table_info(t.name) c '
    "WHERE t.type = 'table' ORDER BY t.name, c.cid"
)


def require_schema(database: Database, schema: str) -> None:
    """No seal covers the names of columns, and most commands need only some of them."""
    with contextlib.closing(sqlite3.connect(":memory:")) as expected:
        expected.executescript(schema)
        sound = database.rows(_COLUMNS) == expected.execute(_COLUMNS).fetchall()
    _require(database, sound, "one of its tables or columns")


def validate_seeds(server: Database, clients: Database, committed: bytes) -> None:
    """Everybody's seed must be the one that was committed to: with another, every draw would be another."""
    values = dict(server.rows("SELECT key, value FROM server"))
    _require(server, Seed(values["seed"], values["nonce"]).commitment == committed, "the seed")
    commitments = dict(server.rows("SELECT client, commitment FROM roster"))
    for client, seed, nonce in clients.rows("SELECT client, seed, nonce FROM clients"):
        _require(clients, Seed(seed, nonce).commitment == commitments.get(client), f"the seed of client {client!r}")


def validate_server(database: Database, rounds: int) -> None:
    values = dict(database.rows("SELECT key, value FROM server"))
    done = values.get("rounds_done")
    _require(database, isinstance(done, int) and 0 <= done <= rounds, "rounds_done")
    for key in ("seed", "nonce"):
        _require(database, _is_seed(values.get(key)), key)
    for key in ("seed_origin", "plan_digest"):
        _require(database, isinstance(values.get(key), str), key)
    for client, commitment, first in database.rows("SELECT client, commitment, first_round FROM roster"):
        _require(database, _is_id(client) and isinstance(commitment, bytes) and _is_when(first), f"client {client!r}")
    kept = dict(database.rows("SELECT round, model FROM rounds"))
    for round_, model in kept.items():
        _require(database, isinstance(model, str) and bool(_DIGEST.fullmatch(model)), f"round {round_!r}")
    _require(database, 0 in kept and done in kept, "the models of its first and last round")


def validate_clients(database: Database) -> None:
    known = set()
    for client, seed, nonce in database.rows("SELECT client, seed, nonce FROM clients"):
        _require(database, _is_id(client) and _is_seed(seed) and _is_seed(nonce), f"client {client!r}")
        known.add(client)
    filled = set()
    for client, sample, content, first in database.rows("SELECT client, sample, content, first_step FROM samples"):
        sound = client in known and _is_id(sample) and isinstance(content, bytes) and _is_when(first)
        _require(database, sound, f"sample {sample!r} of client {client!r}")
        filled.add(client)
    _require(database, filled == known, "the samples of a client")


def validate_record(database: Database) -> None:
    values = dict(database.rows("SELECT key, value FROM record"))
    _require(database, _is_seed(values.get("key")), "key")
    _require(database, values.get("tainted") in (0, 1), "tainted")
    stages: Iterable[tuple[Any, ...]] = database.rows("SELECT stage FROM intents UNION ALL SELECT state FROM requests")
    for (stage,) in stages:
        _require(database, stage in list(Stage), f"stage {stage!r}")


def _require(database: Database, holds: bool, what: str) -> None:
    if not holds:
        raise RunDamaged(
            f"{database.path} is damaged: {what} is missing or cannot be right",
            hint="restore it from a backup; see `fedforget doctor`",
        )


def _is_seed(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == SEED_BYTES


def _is_when(value: object) -> bool:
    return value is None or (isinstance(value, int) and value >= 1)


def _is_id(value: object) -> bool:
    try:
        return canonical_id(value) == value
    except InvalidId:
        return False
