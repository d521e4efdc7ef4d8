"""The clients' memory on disk: ``clients.db``. In a deployment each client has its own file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.ports import WITNESS_BYTES, Newcomer, RemoveOrder
from fedforget.algorithm.seeds import Seed
from fedforget.disk.column_checks import check, is_blob, is_id, is_whole
from fedforget.disk.database import Database
from fedforget.errors import RunDamaged, shown

_LONGEST_CONTENT = 64
_AT_ONCE = 500  # values in one query

SCHEMA = f"""
CREATE TABLE clients (
    client PRIMARY KEY {check(is_id("client"))},
    seed BLOB NOT NULL {check(is_blob("seed", SEED_BYTES))},
    nonce BLOB NOT NULL {check(is_blob("nonce", SEED_BYTES))}
) WITHOUT ROWID;
CREATE TABLE samples (
    client {check(is_id("client"))},
    sample {check(is_id("sample"))},
    content BLOB NOT NULL {check(is_blob("content", 1, _LONGEST_CONTENT))},
    first_step INTEGER {check(is_whole("first_step", 1), optional="first_step")},
    PRIMARY KEY (client, sample)
) WITHOUT ROWID;
CREATE TABLE witnesses (
    client {check(is_id("client"))},
    round INTEGER NOT NULL {check(is_whole("round", 1))},
    witness BLOB NOT NULL {check(is_blob("witness", WITNESS_BYTES))},
    PRIMARY KEY (client, round)
) WITHOUT ROWID;
"""


class ClientStore:
    """A ``ClientMemory`` in SQLite."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, client: Id, seed: Seed, contents: Iterable[tuple[Id, bytes]]) -> None:
        """Insert a client with its samples and their content digests. Call inside a transaction."""
        self.database.run("INSERT INTO clients VALUES (?, ?, ?)", (client, seed.value, seed.nonce))
        self.database.run_many(
            "INSERT INTO samples VALUES (?, ?, ?, NULL)", ((client, sample, content) for sample, content in contents)
        )

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        """Insert new samples, of new or existing clients. Idempotent."""
        with self.database.transaction():
            for new in newcomers:
                if new.seed is not None:
                    self.database.run(
                        "INSERT OR IGNORE INTO clients VALUES (?, ?, ?)", (new.client, new.seed.value, new.seed.nonce)
                    )
                self.database.run_many(
                    "INSERT OR IGNORE INTO samples VALUES (?, ?, ?, NULL)",
                    ((new.client, sample, content) for sample, content in new.samples),
                )

    def clients(self) -> IdSet:
        return IdSet(client for (client,) in self.database.rows("SELECT client FROM clients"))

    def commitments(self) -> dict[Id, bytes]:
        """Return each client's commitment, computed from its seed and nonce."""
        rows = self.database.rows("SELECT client, seed, nonce FROM clients")
        return {client: Seed(seed, nonce).commitment for client, seed, nonce in rows}

    def sizes(self) -> dict[Id, int]:
        """Return the number of samples of each client."""
        return dict(self.database.rows("SELECT client, count(*) FROM samples GROUP BY client"))

    def samples(self, client: Id) -> IdSet:
        rows = self.database.rows("SELECT sample FROM samples WHERE client = ?", (client,))
        return IdSet(sample for (sample,) in rows)

    def has(self, client: Id, sample: Id) -> bool:
        return bool(self.database.rows("SELECT 1 FROM samples WHERE client = ? AND sample = ?", (client, sample)))

    def contents(self, client: Id, samples: Sequence[Id] | None = None) -> dict[Id, bytes]:
        """Return the content digest of each sample of a client, or of some of its samples."""
        if samples is None:
            return dict(self.database.rows("SELECT sample, content FROM samples WHERE client = ?", (client,)))
        found: dict[Id, bytes] = {}
        for start in range(0, len(samples), _AT_ONCE):
            some = samples[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            query = f"SELECT sample, content FROM samples WHERE client = ? AND sample IN ({marks})"  # noqa: S608
            found.update(self.database.rows(query, (client, *some)))
        return found

    def first_steps(self, client: Id) -> Mapping[Id, int]:
        return dict(
            self.database.rows(
                "SELECT sample, first_step FROM samples WHERE client = ? AND first_step IS NOT NULL", (client,)
            )
        )

    def witnesses(self, client: Id) -> Mapping[int, bytes]:
        return dict(
            self.database.rows("SELECT round, witness FROM witnesses WHERE client = ? ORDER BY round", (client,))
        )

    def last_witnessed_round(self) -> int:
        return int(self.database.rows("SELECT coalesce(max(round), 0) FROM witnesses")[0][0])

    def last_noted_step(self, until: int = 2**63 - 1) -> int:
        """Return the last recorded first-use step that is at most ``until``, or 0."""
        rows = self.database.rows("SELECT coalesce(max(first_step), 0) FROM samples WHERE first_step <= ?", (until,))
        return int(rows[0][0])

    def has_unused(self) -> bool:
        return bool(self.database.rows("SELECT 1 FROM samples WHERE first_step IS NULL LIMIT 1"))

    def seed_pair(self, client: Id) -> Seed:
        rows = self.database.rows("SELECT seed, nonce FROM clients WHERE client = ?", (client,))
        if not rows:
            raise RunDamaged(f"{self.database.path} lacks client {shown(client)}")
        return Seed(*rows[0])

    def seed(self, client: Id) -> bytes:
        return self.seed_pair(client).value

    def note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]] = ()) -> None:
        if uses or witnesses:
            self.database.write(lambda: self._note(uses, witnesses))

    def _note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]]) -> None:
        with self.database.transaction():
            self.database.run_many("INSERT OR REPLACE INTO witnesses VALUES (?, ?, ?)", witnesses)
            self.database.run_many("UPDATE samples SET first_step = ?3 WHERE client = ?1 AND sample = ?2", uses)

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        with self.database.transaction():
            for order in orders:
                if order.samples is None:
                    self.database.run("DELETE FROM clients WHERE client = ?", (order.client,))
                    self.database.run("DELETE FROM samples WHERE client = ?", (order.client,))
                    self.database.run("DELETE FROM witnesses WHERE client = ?", (order.client,))
                else:
                    self.database.run_many(
                        "DELETE FROM samples WHERE client = ? AND sample = ?",
                        ((order.client, sample) for sample in order.samples),
                    )

    def rewind(self, rounds_done: int, last_step: int) -> None:
        with self.database.transaction():
            self.database.run("DELETE FROM witnesses WHERE round > ?", (rounds_done,))
            self.database.run("UPDATE samples SET first_step = NULL WHERE first_step > ?", (last_step,))

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        with self.database.transaction():
            self.database.run_many(
                "UPDATE clients SET seed = ?, nonce = ? WHERE client = ?",
                ((seed.value, seed.nonce, client) for client, seed in seeds.items()),
            )
