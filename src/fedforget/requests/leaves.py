"""The leaves of a batch's targets in the tree over the data, which the record keeps while their proofs are valid.

The leaves of the last batches are enough to build the tree before them from the tree after them. They go with the next
change of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedforget.algorithm.tree import LABEL_BYTES, Leaf

_CLIENT = LABEL_BYTES + 64  # bytes: a label, a commitment and the root of the samples
_SAMPLE = LABEL_BYTES + 32  # a label and a salted content digest
_NUMBER = 8


@dataclass(frozen=True, slots=True)
class TargetLeaves:
    """The leaf of a client, and that of the sample if the request is about one, as they were before the request."""

    client: Leaf
    sample: Leaf | None

    @property
    def labels(self) -> bytes:
        return self.client[0] + (self.sample[0] if self.sample else b"")


def encode(number: int, leaves: Sequence[TargetLeaves]) -> bytes:
    """Return the leaves of a batch as bytes. ``number``: its place in the event chain."""
    parts = (bytes([each.sample is not None]) + b"".join((*each.client, *(each.sample or ()))) for each in leaves)
    return number.to_bytes(_NUMBER, "big") + b"".join(parts)


def decode(data: bytes) -> tuple[int, list[TargetLeaves]]:
    """Return the place of a batch and the leaves of its targets; raise ValueError for any other bytes."""
    return int.from_bytes(data[:_NUMBER], "big"), list(_decoded(data[_NUMBER:]))


def _decoded(data: bytes) -> Iterator[TargetLeaves]:
    while data:
        size = _CLIENT + _SAMPLE * data[0]
        body, data = data[1 : 1 + size], data[1 + size :]
        if len(body) != size or size > _CLIENT + _SAMPLE:
            raise ValueError("the leaves of a request have another length")
        client, sample = body[:_CLIENT], body[_CLIENT:]
        yield TargetLeaves(_leaf(client), _leaf(sample) if sample else None)


def _leaf(data: bytes) -> Leaf:
    return data[:LABEL_BYTES], data[LABEL_BYTES:]
