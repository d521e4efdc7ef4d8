"""The clients' part of a run whose clients are on this machine: their books, and their notes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.disk.database import Database
from fedforget.requests.intents import Intent
from fedforget.requests.leaves import TargetLeaves
from fedforget.store import crash_check
from fedforget.store.books.leaves import target_leaves
from fedforget.store.books.tree import PARTS
from fedforget.store.client_store import ClientStore
from fedforget.store.clients_part import DataTree
from fedforget.store.names import BOOKS, USES
from fedforget.store.server_store import ServerStore

FILES = (USES, *BOOKS)


class LocalPart:
    """A ``ClientsPart`` of books and notes."""

    def __init__(self, store: ClientStore) -> None:
        self.store = store

    def data_root(self) -> bytes:
        return self.store.books.root()

    def notes_digest(self) -> bytes:
        return self.store.uses.digest()

    def tree(self) -> DataTree:
        return self.store.books

    def has(self, target: Request) -> bool:
        """Ask the book alone: a client leaves and joins there first, and the roster is large."""
        if target.sample is None:
            return self.store.has_client(target.client)
        return self.store.has(target.client, target.sample)

    def leaves_of(self, targets: Sequence[Request]) -> tuple[TargetLeaves, ...]:
        return target_leaves(self.store.books, targets)

    def check(self, clients: Collection[Id] | None = None) -> None:
        books = self.store.books
        for number in range(PARTS) if clients is None else {books.part_of(client) for client in clients}:
            books.part(number)

    # Files

    @property
    def files(self) -> tuple[str, ...]:
        return FILES

    def databases(self) -> Sequence[Database]:
        return (self.store.database,)

    def before_replacing(self, prepare: Callable[[], None]) -> None:
        self.store.books.before_write = prepare

    def replaced(self) -> Collection[str]:
        return self.store.books.changed

    def roots(self) -> Mapping[str, bytes]:
        return self.store.books.roots()

    def was_read(self, name: str) -> bool:
        return name not in BOOKS or self.store.books.is_open(name)

    def before_sealing(self, *, crashed: bool) -> None:
        if self.store.database.changed or crashed:
            self.store.uses.store_digest()

    def sealed(self) -> None:
        self.store.books.changed.clear()

    def close(self) -> None:
        self.store.books.close()

    # After a crash

    def rewind(self, rounds_done: int, last_step: int) -> None:
        self.store.rewind(rounds_done, last_step)

    def rewind_privately(self, rounds_done: int, last_step: int) -> None:
        if self.store.last_noted_step() > last_step or self.store.last_witnessed_round() > rounds_done:
            self.store.database.make_private()
            self.store.rewind(rounds_done, last_step)

    def require_applied(self, intent: Intent, server: ServerStore) -> None:
        crash_check.require_applied(intent, server, self.store)

    def require_in_step(self, server: ServerStore, rewound_to: int | None) -> None:
        crash_check.require_in_step(server, self.store, rewound_to)
