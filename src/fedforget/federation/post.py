"""How parcels reach nodes: pushed with an address, and pulled by message id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fedforget.federation.parcels import Parcel

FOREIGN = "run FedForget's app on both sides, in the same version"  # the remedy where a message cannot be read
Address = int  # of a node; it may be another one after a restart


@dataclass(frozen=True, slots=True)
class Letter:
    """The reply to a message: an answer, or why there is none."""

    message: str  # the message that it answers
    answer: Parcel | None = None  # None as well if it cannot be read
    error: int | None = None  # a code of Flower
    reason: str = ""  # of the error, or why the answer cannot be read


class Post(Protocol):
    """Carries parcels to nodes. Messages and answers may get lost, and come in any order."""

    def nodes(self) -> list[Address]:
        """Return the nodes that are connected now."""

    def push(self, parcels: Sequence[tuple[Parcel, Address]]) -> list[str]:
        """Send parcels, and return the id of each message."""

    def pull(self, messages: Sequence[str]) -> list[Letter]:
        """Return the replies to these messages that have come so far."""

    def close(self) -> None: ...
