"""One thing that must hold before a run is used, and how the clients' part of a run says what must hold of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from fedforget.store.clients_part import ClientsPart
from fedforget.store.record import Record
from fedforget.store.server_store import ServerStore


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that must hold. ``check`` returns a detail for people, or raises."""

    name: str
    check: Callable[[], str]


class ClientsFiles(Protocol):
    """Opens the clients' part of a run."""

    part: ClientsPart | None  # until its files were found to be in order

    @property
    def server_schema(self) -> str:
        """The tables of ``server.db`` in such a run."""

    def facts(self, server: ServerStore | None, record: Record | None, *, everything: bool) -> Iterator[Fact]:
        """Check each fact before advancing. ``everything``: also read files that are otherwise checked on first use."""

    def require_seeds(self, server: ServerStore) -> None:
        """Raise RunDamaged if the clients are not those that the roster is committed to."""
