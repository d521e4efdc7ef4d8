"""First uses and witnesses of the clients on disk: ``uses.db``. In a deployment each client has its own file.

Rounds write it, and a rewind takes their notes back. A request that changes no draw leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.notes import DIGEST_BYTES, notes_digest, notes_digest_of_client
from fedforget.algorithm.ports import WITNESS_BYTES, RemoveOrder
from fedforget.disk.column_checks import check, is_blob, is_id, is_whole
from fedforget.disk.database import Database
from fedforget.errors import RunDamaged, shown

_FOREVER = 2**63 - 1

SCHEMA = f"""
CREATE TABLE first_uses (
    client ANY NOT NULL {check(is_id("client"))},
    sample ANY NOT NULL {check(is_id("sample"))},
    step INTEGER NOT NULL {check(is_whole("step", 1))},
    PRIMARY KEY (client, sample)
) STRICT, WITHOUT ROWID;
CREATE TABLE witnesses (
    client ANY NOT NULL {check(is_id("client"))},
    round INTEGER NOT NULL {check(is_whole("round", 1))},
    witness BLOB NOT NULL {check(is_blob("witness", WITNESS_BYTES))},
    PRIMARY KEY (client, round)
) STRICT, WITHOUT ROWID;
CREATE TABLE content (
    number INTEGER PRIMARY KEY {check(is_whole("number", 1, 1))},
    digest BLOB NOT NULL {check(is_blob("digest", DIGEST_BYTES))}
) STRICT;
"""


class Uses:
    """The tables of first uses and witnesses, with a digest of both that is stored when the run is closed."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def first_steps(self, client: Id) -> Mapping[Id, int]:
        return dict(self.database.rows("SELECT sample, step FROM first_uses WHERE client = ?", (client,)))

    def checked_first_steps(self, client: Id, samples: Callable[[], Iterable[Id]]) -> Mapping[Id, int]:
        """Return a client's first uses. Raise RunDamaged if one is of a sample that the client's book lacks."""
        steps = self.first_steps(client)
        if steps and not steps.keys() <= set(samples()):
            raise RunDamaged(
                f"{self.database.path} is damaged: it notes a use of a sample that client {shown(client)} lacks"
            )
        return steps

    def witnesses(self, client: Id) -> Mapping[int, bytes]:
        return dict(
            self.database.rows("SELECT round, witness FROM witnesses WHERE client = ? ORDER BY round", (client,))
        )

    def all_first_steps(self) -> dict[Id, dict[Id, int]]:
        """Return the first uses of each client that has some."""
        return _by_client(self.database.rows("SELECT client, sample, step FROM first_uses"))

    def all_witnesses(self) -> dict[Id, dict[int, bytes]]:
        """Return the witnesses of each client that has some."""
        return _by_client(self.database.rows("SELECT client, round, witness FROM witnesses"))

    def count(self) -> int:
        """Return how many samples were used."""
        return int(self._one("SELECT count(*) FROM first_uses"))

    def last_witnessed_round(self) -> int:
        return int(self._one("SELECT coalesce(max(round), 0) FROM witnesses"))

    def last_noted_step(self, until: int = _FOREVER) -> int:
        """Return the last recorded first-use step that is at most ``until``, or 0."""
        return int(self._one("SELECT coalesce(max(step), 0) FROM first_uses WHERE step <= ?", (until,)))

    def _one(self, query: str, values: Sequence[Any] = ()) -> Any:
        return self.database.rows(query, values)[0][0]

    def note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]] = ()) -> None:
        """Store the notes of a round behind the next one, if the database writes behind."""
        if uses or witnesses:
            self.database.write(lambda: self._note(uses, witnesses))

    def _note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]]) -> None:
        with self.database.transaction():
            self._outdate()
            self.database.run_many("INSERT OR REPLACE INTO witnesses VALUES (?, ?, ?)", witnesses)
            self.database.run_many("INSERT OR REPLACE INTO first_uses VALUES (?, ?, ?)", uses)

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        """Delete the notes about data that leave. Writes nothing if there are none."""
        found = [order for order in orders if self._has_notes(order)]
        if not found:
            return
        with self.database.transaction():
            self._outdate()
            for order in found:
                if order.samples is None:
                    self.database.run("DELETE FROM first_uses WHERE client = ?", (order.client,))
                    self.database.run("DELETE FROM witnesses WHERE client = ?", (order.client,))
                else:
                    gone = ((order.client, sample) for sample in order.samples)
                    self.database.run_many("DELETE FROM first_uses WHERE client = ? AND sample = ?", gone)

    def _has_notes(self, order: RemoveOrder) -> bool:
        if order.samples is not None:
            used = "SELECT 1 FROM first_uses WHERE client = ? AND sample = ?"
            return any(self.database.rows(used, (order.client, sample)) for sample in order.samples)
        tables = ("first_uses", "witnesses")
        noted = "SELECT 1 FROM {} WHERE client = ? LIMIT 1"
        return any(self.database.rows(noted.format(table), (order.client,)) for table in tables)

    def rewind(self, rounds_done: int, last_step: int) -> None:
        """Delete what later rounds noted. Writes nothing if they noted nothing."""
        if self.last_noted_step() <= last_step and self.last_witnessed_round() <= rounds_done:
            return
        with self.database.transaction():
            self._outdate()
            self.database.run("DELETE FROM witnesses WHERE round > ?", (rounds_done,))
            self.database.run("DELETE FROM first_uses WHERE step > ?", (last_step,))

    # The digest

    def digest(self) -> bytes:
        """Return the digest of both tables: the stored one, or one computed now."""
        stored = self.database.rows("SELECT digest FROM content")
        return bytes(stored[0][0]) if stored else self.computed_digest()

    def computed_digest(self) -> bytes:
        return notes_digest(self.digests_of_clients())

    def digests_of_clients(self) -> dict[Id, bytes]:
        """Return the digest of the notes of each client that has some."""
        uses = self.database.rows("SELECT client, sample, step FROM first_uses ORDER BY client")
        witnesses, found = self.all_witnesses(), dict[Id, bytes]()
        for client, rows in groupby(uses, key=itemgetter(0)):
            steps = {sample: step for _, sample, step in rows}
            found[client] = notes_digest_of_client(steps, witnesses.pop(client, {}))
        return found | {client: notes_digest_of_client({}, noted) for client, noted in witnesses.items()}

    def digest_of_client(self, client: Id) -> bytes:
        """Return the digest of one client's notes."""
        return notes_digest_of_client(self.first_steps(client), self.witnesses(client))

    def require_digest(self) -> None:
        """Raise RunDamaged if the stored digest is not that of the content."""
        if self.digest() != self.computed_digest():
            raise RunDamaged(f"{self.database.path} is damaged: its digest is not that of its content")

    def require_clients(self, roster: IdSet) -> None:
        """Raise RunDamaged if there are notes about a client that is not in the roster."""
        noted = self.database.rows("SELECT client FROM first_uses UNION SELECT client FROM witnesses")
        if any(client not in roster for (client,) in noted):
            raise RunDamaged(
                f"{self.database.path} is damaged: it holds notes about a client that is not in the roster"
            )

    def store_digest(self) -> None:
        """Store the digest, before the run is closed."""
        if not self.database.rows("SELECT 1 FROM content"):
            with self.database.transaction():
                self.database.run("INSERT INTO content VALUES (1, ?)", (self.computed_digest(),))

    def _outdate(self) -> None:
        self.database.run("DELETE FROM content")


def _by_client(rows: Iterable[tuple[Any, ...]]) -> dict[Id, dict[Any, Any]]:
    found: dict[Id, dict[Any, Any]] = {}
    for client, key, value in rows:
        found.setdefault(client, {})[key] = value
    return found
