"""A client's memory on disk: its book, and its notes of first uses and witnesses in ``uses.db``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.ports import Newcomer, RemoveOrder
from fedforget.algorithm.seeds import Seed
from fedforget.client_side.own_book import OwnBook
from fedforget.store.environments import Environments
from fedforget.store.uses import Uses


class OwnMemory:
    """A ``ClientMemory`` of one client. ``environments`` are rewound with the notes."""

    def __init__(self, client: Id, book: OwnBook, uses: Uses, environments: Environments) -> None:
        self._client, self.book, self.uses, self._environments = client, book, uses, environments

    def commitments(self) -> Mapping[Id, bytes]:
        return {} if self.book.is_empty else {self._client: self.book.seed.commitment}

    def samples(self, client: Id) -> IdSet:  # noqa: ARG002 (there is one)
        return self.book.samples

    def seed(self, client: Id) -> bytes:  # noqa: ARG002 (there is one)
        return self.book.seed.value

    def first_steps(self, client: Id) -> Mapping[Id, int]:
        return self.uses.checked_first_steps(client, lambda: self.book.samples)

    def witnesses(self, client: Id) -> Mapping[int, bytes]:
        return self.uses.witnesses(client)

    def note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]] = ()) -> None:
        self.uses.note(uses, witnesses)

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        self.uses.remove(orders)
        for order in orders:
            self.book.remove(order.samples)

    def remove_samples(self, samples: tuple[Id, ...]) -> None:
        self.remove([RemoveOrder(self._client, samples)])

    def remove_all(self) -> None:
        """Remove the client's notes, samples and seed."""
        self.remove([RemoveOrder(self._client, None)])

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        for new in newcomers:
            self.book.join(dict(new.samples))

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        self.book.reseed(seeds[self._client])

    def rewind(self, rounds_done: int, last_step: int) -> None:
        self.uses.rewind(rounds_done, last_step)
        self._environments.rewind_to(rounds_done)
