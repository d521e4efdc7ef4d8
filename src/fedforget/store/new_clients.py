"""The clients' part of a run that is being created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedforget.algorithm.contents import ContentsOf
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.notes import NO_NOTES
from fedforget.algorithm.seeds import Seed
from fedforget.disk.database import Database
from fedforget.store import contacts, held_digests, server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.contacts import Contacts, EnrolledClient
from fedforget.store.held_digests import HeldDigests
from fedforget.store.local_part import FILES as LOCAL_FILES
from fedforget.store.names import CONTACTS, USES
from fedforget.store.remote_part import FILES as REMOTE_FILES
from fedforget.store.uses import Uses


class NewClients(Protocol):
    """Writes the clients' part of a new run."""

    @property
    def server_schema(self) -> str:
        """The tables of ``server.db``."""

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files that a seal vouches for."""

    def commitments(self) -> dict[Id, bytes]:
        """Return each client's commitment to its seed."""

    def create(self, run: Path, tree_key: bytes, server: Database) -> Mapping[str, bytes]:
        """Write the files, and return the root of each that has one. ``server``: the new ``server.db``."""


@dataclass(frozen=True, slots=True)
class LocalNewClients:
    """Clients on this machine: their seeds and the contents of their samples."""

    seeds: Mapping[Id, Seed]
    contents: ContentsOf
    in_memory: bool = False  # a second process may read the contents
    server_schema: str = server_store.SCHEMA
    files: tuple[str, ...] = LOCAL_FILES

    def commitments(self) -> dict[Id, bytes]:
        return {client: seed.commitment for client, seed in self.seeds.items()}

    def create(self, run: Path, tree_key: bytes, server: Database) -> Mapping[str, bytes]:  # noqa: ARG002
        notes = Database(run / USES, uses.SCHEMA, create=True)
        books = Books(run, tree_key)
        books.create(self.seeds, self.contents, in_memory=self.in_memory)
        Uses(notes).store_digest()
        notes.close_canonical()
        roots = books.roots()
        books.close()
        return roots


@dataclass(frozen=True, slots=True)
class RemoteNewClients:
    """Clients on other machines, as they enrolled."""

    enrolments: Sequence[EnrolledClient]
    server_schema: str = held_digests.SCHEMA
    files: tuple[str, ...] = REMOTE_FILES

    def commitments(self) -> dict[Id, bytes]:
        return {each.client: each.commitment for each in self.enrolments}

    def create(self, run: Path, tree_key: bytes, server: Database) -> Mapping[str, bytes]:  # noqa: ARG002
        database = Database(run / CONTACTS, contacts.SCHEMA, create=True)
        known, held = Contacts(database), HeldDigests(server)
        known.create()
        known.enroll(*self.enrolments, joins=False)
        for each in self.enrolments:
            held.hear(each.client, (each.root, NO_NOTES))
        with server.transaction():
            held.taken()(IdSet.of_canonical([each.client for each in self.enrolments]))
        database.close_canonical()
        return {}
