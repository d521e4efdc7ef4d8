"""The roster in ``server.db``: the clients that are present, and their commitments, as columns in a few rows.

A draw needs the blocks of all ids as one array, and nothing else of a client. So a row holds many clients, in the order
of the blocks: a million clients are sixteen rows. Strings have their names in a table of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.ids import BLOCK_BYTES, Id, IdSet, id_block
from fedforget.disk.column_checks import check, is_blob, is_id, is_text, is_whole
from fedforget.disk.database import Database
from fedforget.errors import RunDamaged
from fedforget.store.books.layout import STRING, Column, are_ascending, split

_IN_A_ROW = 2**16  # clients

SCHEMA = f"""
CREATE TABLE roster (
    number INTEGER PRIMARY KEY {check(is_whole("number"))},
    clients BLOB NOT NULL {check(is_blob("clients", BLOCK_BYTES, BLOCK_BYTES * _IN_A_ROW))},
    commitments BLOB NOT NULL {check(is_blob("commitments", SEED_BYTES, SEED_BYTES * _IN_A_ROW))}
) STRICT;
CREATE TABLE names (
    client TEXT PRIMARY KEY {check(f"({is_text('client')}) AND ({is_id('client')})")}
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Roster:
    """The clients in the order of their blocks, and a commitment in each row."""

    ids: IdSet
    commitments: Column

    @classmethod
    def of(cls, commitments: Mapping[Id, bytes]) -> Roster:
        ids = IdSet.of_canonical(commitments)
        joined = b"".join(commitments[client] for client in ids)
        return cls(ids, np.frombuffer(joined, np.uint8).reshape(-1, SEED_BYTES))

    @classmethod
    def read(cls, database: Database) -> Roster:
        """Read and check the roster."""
        rows = database.rows("SELECT number, clients, commitments FROM roster ORDER BY number")
        names = {id_block(name): name for (name,) in database.rows("SELECT client FROM names")}
        blocks, commitments = (b"".join(row[place] for row in rows) for place in (1, 2))
        whole = [number for number, _, _ in rows] == list(range(len(rows)))
        whole &= all(len(clients) == BLOCK_BYTES * _IN_A_ROW for _, clients, _ in rows[:-1])
        whole &= all(2 * len(clients) == len(own) for _, clients, own in rows) and len(blocks) % BLOCK_BYTES == 0
        if not whole:
            raise _damaged(database)
        column = np.frombuffer(blocks, np.uint8).reshape(-1, BLOCK_BYTES)
        strings = column[column[:, 0] == STRING]
        if not are_ascending(column) or set(map(bytes, strings)) != names.keys():
            raise _damaged(database)
        return cls(IdSet.of_blocks(column, names), np.frombuffer(commitments, np.uint8).reshape(-1, SEED_BYTES))

    def write(self, database: Database, before: Roster | None = None) -> None:
        """Store the roster, inside a transaction. ``before``: what is stored; only the rows that differ are written."""
        old = [] if before is None else before._rows()  # noqa: SLF001 (its own class)
        new = self._rows()
        database.run_many("DELETE FROM roster WHERE number = ?", ((number,) for number in range(len(new), len(old))))
        changed = (
            (number, *(column.tobytes() for column in columns))
            for number, columns in enumerate(new)
            if number >= len(old) or not all(map(np.array_equal, columns, old[number]))
        )
        database.run_many("INSERT OR REPLACE INTO roster VALUES (?, ?, ?)", changed)
        known = set() if before is None else set(before.names())
        names = set(self.names())
        database.run_many("DELETE FROM names WHERE client = ?", ((name,) for name in known - names))
        database.run_many("INSERT INTO names VALUES (?)", ((name,) for name in names - known))

    def _rows(self) -> list[tuple[Column, Column]]:
        parts = [slice(start, start + _IN_A_ROW) for start in range(0, len(self.ids), _IN_A_ROW)]
        return [(self.ids.blocks[part], self.commitments[part]) for part in parts]

    def names(self) -> Iterator[str]:
        """Yield the ids that are strings."""
        return (str(self.ids.at(place)) for place in np.flatnonzero(self.ids.blocks[:, 0] == STRING).tolist())

    def as_dict(self) -> dict[Id, bytes]:
        return dict(zip(self.ids, split(self.commitments.tobytes(), SEED_BYTES), strict=True))

    def without(self, leaving: Collection[Id]) -> Roster:
        """Return the roster without some clients."""
        stays: NDArray[np.bool_] = np.ones(len(self.ids), bool)
        stays[[place for client in leaving if (place := self.ids.place_of(client)) is not None]] = False
        return Roster(self.ids.without(leaving), self.commitments[stays])

    def joined_by(self, new: Mapping[Id, bytes]) -> Roster:
        """Return the roster with more clients, those that are not in it."""
        fresh = {client: found for client, found in new.items() if client not in self.ids}
        return Roster.of({**self.as_dict(), **fresh}) if fresh else self

    def committed_to(self, new: Mapping[Id, bytes]) -> Roster:
        """Return the roster with other commitments of some of its clients."""
        made = self.commitments.copy()
        for client, commitment in new.items():
            if (place := self.ids.place_of(client)) is not None:
                made[place] = np.frombuffer(commitment, np.uint8)
        return Roster(self.ids, made)


def _damaged(database: Database) -> RunDamaged:
    return RunDamaged(f"{database.path} is damaged: its roster is missing or invalid")
