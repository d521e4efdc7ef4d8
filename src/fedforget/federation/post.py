"""How parcels reach nodes: pushed with an address, and pulled by the names that they were given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedforget.federation.parcels import Parcel

Address = int  # of a node; it may be another one after a restart


@dataclass(frozen=True, slots=True)
class Letter:
    """What came back for a message: an answer, or why there is none."""

    message: str  # the message that it answers
    answer: Parcel | None = None  # None as well if it cannot be read
    error: int | None = None  # a code of Flower
    reason: str = ""


class Post(Protocol):
    """Carries parcels to nodes. Messages and answers may get lost, and come in any order."""

    def nodes(self) -> list[Address]:
        """Return the nodes that are connected now."""

    def push(self, parcels: Sequence[tuple[Parcel, Address]]) -> list[str]:
        """Send parcels, and return the name of each message."""

    def pull(self, messages: Sequence[str]) -> list[Letter]:
        """Return what has come for these messages until now."""

    def close(self) -> None: ...
