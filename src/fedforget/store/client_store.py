"""The clients' memory on disk: their books, and their notes of first uses and witnesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.ports import Newcomer, RemoveOrder
from fedforget.algorithm.seeds import Seed
from fedforget.disk.database import Database
from fedforget.store.books.books import Books
from fedforget.store.uses import Uses


class ClientStore:
    """A ``ClientMemory`` on disk. Books change with the data, notes change with the rounds."""

    def __init__(self, books: Books, uses: Uses) -> None:
        self.books = books
        self.uses = uses

    @property
    def database(self) -> Database:
        """The database of the notes."""
        return self.uses.database

    # Books

    def clients(self) -> IdSet:
        return IdSet.of_canonical(list(self.books.clients()))

    def commitments(self) -> dict[Id, bytes]:
        """Return each client's commitment, computed from its seed and nonce."""
        return self.books.commitments()

    def sizes(self) -> dict[Id, int]:
        """Return the number of samples of each client."""
        return self.books.sizes()

    def sample_counts(self) -> NDArray[np.int64]:
        """Return the number of samples of each client, without the clients."""
        return self.books.sample_counts()

    def samples(self, client: Id) -> IdSet:
        return self.books.samples(client)

    def has(self, client: Id, sample: Id) -> bool:
        return self.books.has(client, sample)

    def has_client(self, client: Id) -> bool:
        return self.books.has_client(client)

    def contents(self, client: Id, samples: Sequence[Id] | None = None) -> dict[Id, bytes]:
        """Return the content digest of each sample of a client, or of some of its samples."""
        return self.books.contents(client, samples)

    def seed(self, client: Id) -> bytes:
        return self.books.seed(client).value

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        """Insert new samples, of new or existing clients. Idempotent."""
        self.books.join(newcomers)

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        self.books.reseed(seeds)

    # Notes

    def first_steps(self, client: Id) -> Mapping[Id, int]:
        return self.uses.checked_first_steps(client, lambda: self.samples(client))

    def witnesses(self, client: Id) -> Mapping[int, bytes]:
        return self.uses.witnesses(client)

    def last_witnessed_round(self) -> int:
        return self.uses.last_witnessed_round()

    def last_noted_step(self, until: int = 2**63 - 1) -> int:
        """Return the last recorded first-use step that is at most ``until``, or 0."""
        return self.uses.last_noted_step(until)

    def has_unused(self) -> bool:
        return int(self.sample_counts().sum()) > self.uses.count()

    def note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]] = ()) -> None:
        self.uses.note(uses, witnesses)

    def rewind(self, rounds_done: int, last_step: int) -> None:
        self.uses.rewind(rounds_done, last_step)

    # Both

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        """Remove data and the notes about them. Idempotent."""
        self.uses.remove(orders)
        self.books.remove(orders)
