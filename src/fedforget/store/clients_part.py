"""The clients' part of a run directory: their books and notes, or what a server knows of clients on other machines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.tree import Leaf
from fedforget.disk.database import Database
from fedforget.requests.intents import Intent
from fedforget.requests.leaves import TargetLeaves
from fedforget.store.server_store import ServerStore


class DataTree(Protocol):
    """The tree over all data, in parts by the first bits of a label."""

    def roots(self) -> dict[str, bytes]:
        """Return the root of each part."""

    def client_leaves(self, number: int) -> dict[Id, Leaf]:
        """Return the leaf of every client in a part."""

    def sample_leaves(self, client: Id) -> list[Leaf]:
        """Return the leaves of a client's samples. Only where its book is."""

    def path_of(self, client: Id) -> Path:
        """Return the file that holds a client."""


class ClientsPart(Protocol):
    """What a run holds about its clients' data. ``LocalPart`` holds all of it, ``RemotePart`` only digests."""

    # What the state is a function of

    def data_root(self) -> bytes:
        """Return the root of the tree over all clients and samples."""

    def notes_digest(self) -> bytes:
        """Return the digest of all first uses and witnesses."""

    def tree(self) -> DataTree: ...

    def has(self, target: Request) -> bool:
        """Return whether a client, or a sample of a client, is in the run."""

    def leaves_of(self, targets: Sequence[Request]) -> tuple[TargetLeaves, ...]:
        """Return the leaves of targets that are in the data now."""

    def check(self, clients: Collection[Id] | None = None) -> None:
        """Read the stored data of these clients (None: of all), and raise RunDamaged if they are damaged."""

    # Files

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files that a seal vouches for."""

    def databases(self) -> Sequence[Database]: ...

    def before_replacing(self, prepare: Callable[[], None]) -> None:
        """Call ``prepare`` before a file is replaced as a whole."""

    def replaced(self) -> Collection[str]:
        """Return the files that were replaced since the run was opened or sealed."""

    def roots(self) -> Mapping[str, bytes]:
        """Return the root of each file that has one."""

    def was_read(self, name: str) -> bool:
        """Return whether a file was read as a whole, if it was opened at all."""

    def before_sealing(self, *, crashed: bool) -> None:
        """Store derived digests and delete unused rows. ``crashed``: also where nothing seems to have changed."""

    def sealed(self) -> None:
        """Note that the run was sealed."""

    def close(self) -> None:
        """Close everything but databases."""

    # After a crash

    def rewind(self, rounds_done: int, last_step: int) -> None:
        """Drop notes of a round that was not committed."""

    def rewind_privately(self, rounds_done: int, last_step: int) -> None:
        """The same in memory only."""

    def require_applied(self, intent: Intent, server: ServerStore) -> None:
        """Raise CommitsLost if data that a batch removed are there, or data that it added are not."""

    def require_in_step(self, server: ServerStore, rewound_to: int | None) -> None:
        """Raise CommitsLost if the notes are not those of the committed rounds."""
