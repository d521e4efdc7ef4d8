"""Bytes that messages between the server and the clients carry."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fedforget.federation.parcels import Parcel


@dataclass(slots=True)
class Traffic:
    """Bytes to the server and from it: bodies and tensors, each message once, without what a transport adds."""

    bytes_up: int = 0
    bytes_down: int = 0

    def sent(self, parcel: Parcel) -> None:
        self.bytes_down += size_of(parcel)

    def received(self, parcel: Parcel) -> None:
        self.bytes_up += size_of(parcel)


def size_of(parcel: Parcel) -> int:
    """Return the bytes of a parcel: its body as JSON, and its tensors."""
    tensors = sum(tensor.nbytes for tensor in (parcel.model or {}).values())
    return len(json.dumps(dict(parcel.body))) + tensors
