"""Open the books and notes of a run whose clients are on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fedforget.algorithm.ids import Id
from fedforget.errors import RunDamaged, shown
from fedforget.store import server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.books.content import Book
from fedforget.store.client_store import ClientStore
from fedforget.store.clients_part import ClientsPart
from fedforget.store.fact import Fact
from fedforget.store.local_part import LocalPart
from fedforget.store.names import BOOKS, USES
from fedforget.store.record import Record
from fedforget.store.sealed_files import SealedFiles
from fedforget.store.seals import roots_in
from fedforget.store.server_store import ServerStore
from fedforget.store.uses import Uses


class LocalFiles:
    """``ClientsFiles`` of books and notes."""

    server_schema = server_store.SCHEMA

    def __init__(self, files: SealedFiles) -> None:
        self._files = files
        self._clients: ClientStore | None = None
        self.part: ClientsPart | None = None

    def facts(self, server: ServerStore | None, record: Record | None, *, everything: bool) -> Iterator[Fact]:  # noqa: ARG002
        yield Fact(USES, partial(self._open_uses, server, everything))
        for name in BOOKS:
            yield Fact(name, partial(self._find_book, name, opening=everything))

    def _open_uses(self, server: ServerStore | None, everything: bool) -> str:
        files = self._files
        notes = Uses(files.database(USES, uses.SCHEMA))
        if server is not None:
            found = Books(files.path, server.tree_key, self._checked_book, roots_in(files.seals))
            files.opened.callback(found.close)
            self._clients = ClientStore(found, notes)
            self.part = LocalPart(self._clients)
        if everything:
            notes.require_digest()
            if server is not None:
                notes.require_clients(server.roster)
        return files.size(USES)

    def _checked_book(self, name: str) -> bool:
        self._files.require_as_sealed(name)
        return self._files.trusts(name)

    def _find_book(self, name: str, *, opening: bool) -> str:
        files = self._files
        size = files.size(name)
        number = BOOKS.index(name)
        if opening and self._clients is not None:
            self._clients.books.require_tree(number)
        elif opening:  # the key of the tree is not known
            files.require_as_sealed(name)
            Book.read(files.path / name, number)
        return size

    def require_seeds(self, server: ServerStore) -> None:
        if self._clients is not None:
            for problem in seed_problems(server, self._clients, self._clients.commitments()):
                raise RunDamaged(problem)


def seed_problems(server: ServerStore, clients: ClientStore, answers: dict[Id, bytes]) -> Iterator[str]:
    """Compare the clients' seeds with their commitments in the roster.

    ``answers``: the commitments that the clients give now.
    """
    commitments = server.commitments()
    if answers.keys() != commitments.keys():
        books = server.database.path.with_name("clients-*.book")
        yield f"{books} and the roster in {server.database.path} name different clients"
    for client in commitments.keys() & answers.keys():
        if answers[client] != commitments[client]:
            yield (
                f"the seed of client {shown(client)} in {clients.books.path_of(client)} is not the one that "
                f"{server.database.path} says it is committed to"
            )
