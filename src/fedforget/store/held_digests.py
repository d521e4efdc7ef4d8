"""What the server of a deployment knows of each client's data: the root of its samples, and the digest of its notes.

Both come with the clients' answers. They are stored in the transaction of the round or the batch that the answers
belong to, so the state is consistent after any crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.notes import DIGEST_BYTES
from fedforget.algorithm.tree import LABEL_BYTES
from fedforget.disk.column_checks import check, is_blob, is_id
from fedforget.disk.database import Database
from fedforget.errors import RunDamaged
from fedforget.store import server_store

SCHEMA = f"""{server_store.SCHEMA}
CREATE TABLE held (
    client ANY PRIMARY KEY {check(is_id("client"))},
    root BLOB NOT NULL {check(is_blob("root", LABEL_BYTES))},
    notes BLOB NOT NULL {check(is_blob("notes", DIGEST_BYTES))}
) STRICT, WITHOUT ROWID;
"""

Digests = tuple[bytes, bytes]  # the root of a client's samples, and the digest of its notes


class HeldDigests:
    """The table ``held`` in ``server.db``. ``ServerStore`` writes the received digests inside its own transactions."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._heard: dict[Id, Digests] = {}

    def hear(self, client: Id, digests: Digests) -> None:
        """Note what a client holds now. It is written with the next commit."""
        self._heard[client] = digests

    def all(self) -> dict[Id, Digests]:
        """Return the stored digests of every client."""
        rows = self._database.rows("SELECT client, root, notes FROM held")
        return {client: (bytes(root), bytes(notes)) for client, root, notes in rows}

    def of(self, client: Id) -> Digests:
        rows = self._database.rows("SELECT root, notes FROM held WHERE client = ?", (client,))
        if not rows:
            raise RunDamaged(f"{self._database.path} is damaged: it does not say what client {client} holds")
        return bytes(rows[0][0]), bytes(rows[0][1])

    def require_clients(self, roster: IdSet) -> None:
        """Raise RunDamaged unless the clients are those of the roster."""
        if self.all().keys() != set(roster):
            raise RunDamaged(f"{self._database.path} is damaged: its roster and what clients hold name other clients")

    def replace_roots(self, roots: Mapping[Id, bytes]) -> None:
        """Replace the roots of clients that have read their samples anew before the first round."""
        if roots:
            with self._database.transaction():
                rows = ((root, client) for client, root in roots.items())
                self._database.run_many("UPDATE held SET root = ? WHERE client = ?", rows)

    # Inside a transaction of the server

    def taken(self) -> Callable[[IdSet], None]:
        """Take the digests received until now. Return the function that writes those of the clients in a roster."""
        heard, self._heard = self._heard, {}
        return lambda roster: self._write(heard, roster)

    def _write(self, heard: dict[Id, Digests], roster: IdSet) -> None:
        rows = ((client, *digests) for client, digests in heard.items() if client in roster)
        self._database.run_many("INSERT OR REPLACE INTO held VALUES (?, ?, ?)", rows)

    def drop(self, leaving: Collection[Id]) -> None:
        self._database.run_many("DELETE FROM held WHERE client = ?", ((client,) for client in leaving))
