"""The clients' part of a run whose clients are on other machines: digests of what they hold, and how to reach them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.notes import notes_digest
from fedforget.algorithm.tree import Leaf, joined, labels_of, root_of
from fedforget.algorithm.withdrawals import is_withdrawal
from fedforget.disk.database import Database
from fedforget.errors import InvalidInput
from fedforget.requests.book import RequestBook
from fedforget.requests.intents import Intent
from fedforget.requests.leaves import TargetLeaves
from fedforget.store.books.tree import DEPTH, number_of
from fedforget.store.clients_part import DataTree
from fedforget.store.contacts import Contacts
from fedforget.store.crash_check import lost
from fedforget.store.held_digests import HeldDigests
from fedforget.store.names import BOOKS, CONTACTS
from fedforget.store.server_store import ServerStore

FILES = (CONTACTS,)


class RemotePart:
    """A ``ClientsPart`` without books and notes: clients hold them on their own machines."""

    def __init__(self, server: ServerStore, held: HeldDigests, contacts: Contacts, book: RequestBook) -> None:
        self._server, self.held, self.contacts, self._book = server, held, contacts, book
        server.beside = held

    # What the state is a function of

    def data_root(self) -> bytes:
        return joined(list(self.tree().roots().values()))

    def _leaves(self, clients: IdSet) -> dict[Id, Leaf]:
        held, commitments = self.held.all(), self._server.commitments()
        labels = labels_of(self._server.tree_key, clients)
        return {
            client: (label, commitments[client] + held[client][0])
            for client, label in zip(clients, labels, strict=True)
        }

    def notes_digest(self) -> bytes:
        held = self.held.all()
        return notes_digest({client: held[client][1] for client in self._server.roster})

    def tree(self) -> DataTree:
        return RemoteTree(self._leaves(self._server.roster), self._server.database.path)

    def has(self, target: Request) -> bool:
        if target.client not in self._server.roster or target.sample is None:
            return target.client in self._server.roster
        if not is_withdrawal(target.sample):
            raise samples_elsewhere(target)
        return self._book.id_of_exactly(target) is None  # its client reports it again until it is notified

    def leaves_of(self, targets: Sequence[Request]) -> tuple[TargetLeaves, ...]:
        """Return the leaves of clients; none if a target is a withdrawal, whose leaf only its client knows."""
        if any(target.sample is not None for target in targets):
            return ()
        leaves = self._leaves(IdSet.of_canonical([target.client for target in targets]))
        return tuple(TargetLeaves(leaves[target.client], None) for target in targets)

    def check(self, clients: Collection[Id] | None = None) -> None:
        for client in self._server.roster if clients is None else [c for c in clients if c in self._server.roster]:
            self.held.of(client)

    # Files

    @property
    def files(self) -> tuple[str, ...]:
        return FILES

    def databases(self) -> Sequence[Database]:
        return (self.contacts.database,)

    def before_replacing(self, prepare: Callable[[], None]) -> None:
        """Do nothing: all files are databases."""

    def replaced(self) -> Collection[str]:
        return ()

    def roots(self) -> Mapping[str, bytes]:
        return {}

    def was_read(self, name: str) -> bool:  # noqa: ARG002
        return True

    def before_sealing(self, *, crashed: bool) -> None:  # noqa: ARG002
        """Delete how clients that left are reached."""
        self.contacts.tidy(self._server.roster)

    def sealed(self) -> None:
        """Do nothing: nothing is replaced as a whole."""

    def close(self) -> None:
        """Do nothing: all files are databases."""

    # After a crash

    def rewind(self, rounds_done: int, last_step: int) -> None:
        """Do nothing: digests are committed with their round."""

    def rewind_privately(self, rounds_done: int, last_step: int) -> None:
        """Do nothing: digests are committed with their round."""

    def require_applied(self, intent: Intent, server: ServerStore) -> None:
        if any(client in server.roster for client in intent.decision.leaving):
            raise lost(server.database.path, "it holds a client that was removed")
        if any(new.client not in server.roster for new in intent.decision.joining):
            raise lost(server.database.path, "it lacks a client that was added")

    def require_in_step(self, server: ServerStore, rewound_to: int | None) -> None:  # noqa: ARG002
        self.held.require_clients(server.roster)


class RemoteTree:
    """The ``DataTree`` of clients on other machines: their own leaves, and none of their samples."""

    def __init__(self, leaves: Mapping[Id, Leaf], path: Path) -> None:
        self._path = path
        self._parts: list[dict[Id, Leaf]] = [{} for _ in BOOKS]
        for client, leaf in leaves.items():
            self._parts[number_of(leaf[0])][client] = leaf

    def roots(self) -> dict[str, bytes]:
        return {name: root_of(part.values(), DEPTH) for name, part in zip(BOOKS, self._parts, strict=True)}

    def client_leaves(self, number: int) -> dict[Id, Leaf]:
        return self._parts[number]

    def sample_leaves(self, client: Id) -> list[Leaf]:
        raise InvalidInput(f"only client {client} knows its samples", hint="its own receipt proves what it erased")

    def path_of(self, client: Id) -> Path:  # noqa: ARG002
        return self._path


def samples_elsewhere(target: Request) -> InvalidInput:
    return InvalidInput(
        f"only client {target.client} knows its samples, so {target} cannot be erased here",
        hint=f"at the client: `fedforget client forget --state-dir DIR --sample {target.sample}`",
    )
