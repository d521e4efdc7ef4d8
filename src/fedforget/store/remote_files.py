"""Open what a run knows of clients on other machines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fedforget.store import contacts, held_digests
from fedforget.store.clients_part import ClientsPart
from fedforget.store.contacts import Contacts
from fedforget.store.fact import Fact
from fedforget.store.held_digests import HeldDigests
from fedforget.store.names import CONTACTS
from fedforget.store.record import Record
from fedforget.store.remote_part import RemotePart
from fedforget.store.sealed_files import SealedFiles
from fedforget.store.server_store import ServerStore


class RemoteFiles:
    """``ClientsFiles`` of contacts and of digests in ``server.db``."""

    server_schema = held_digests.SCHEMA

    def __init__(self, files: SealedFiles) -> None:
        self._files = files
        self.part: ClientsPart | None = None

    def facts(self, server: ServerStore | None, record: Record | None, *, everything: bool) -> Iterator[Fact]:  # noqa: ARG002
        yield Fact(CONTACTS, partial(self._open, server, record))

    def _open(self, server: ServerStore | None, record: Record | None) -> str:
        known = Contacts(self._files.database(CONTACTS, contacts.SCHEMA))
        known.validate()
        if server is not None and record is not None:
            self.part = RemotePart(server, HeldDigests(server.database), known, record.book)
        return self._files.size(CONTACTS)

    def require_seeds(self, server: ServerStore) -> None:
        """Compare the roster with what clients hold. Their seeds are their own."""
        HeldDigests(server.database).require_clients(server.roster)
