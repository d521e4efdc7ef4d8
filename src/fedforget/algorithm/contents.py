"""The samples of some clients with their content digests, as arrays: what a run is made of, many clients at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.ids import BLOCK_BYTES, Id, IdSet, id_block

CONTENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Contents:
    """The samples of clients, one client after the other, each in the order of the id blocks."""

    sizes: NDArray[np.int64]  # of each client
    blocks: NDArray[np.uint8]  # of each sample's id
    digests: bytes  # of each sample's content
    names: Mapping[bytes, str] = field(default_factory=dict)  # the string behind each block of one

    def of_each(self) -> Iterator[dict[Id, bytes]]:
        """Yield the samples of each client with their digests."""
        start = 0
        for size in self.sizes.tolist():
            ids = IdSet.of_blocks(self.blocks[start : start + size], self.names)
            digests = self.digests[CONTENT_BYTES * start : CONTENT_BYTES * (start + size)]
            yield {each: digests[CONTENT_BYTES * row : CONTENT_BYTES * (row + 1)] for row, each in enumerate(ids)}
            start += size


ContentsOf = Callable[[Sequence[Id]], Contents]


def one_by_one(of: Callable[[Id], tuple[IdSet, bytes]]) -> ContentsOf:
    """Return a function for many clients, given one that returns the samples and the digests of one client."""

    def of_many(clients: Sequence[Id]) -> Contents:
        found = [of(client) for client in clients]
        blocks = [ids.blocks for ids, _ in found]
        strings = (each for ids, _ in found if ids.blocks[:, 0].any() for each in ids if isinstance(each, str))
        return Contents(
            np.array([len(ids) for ids, _ in found], np.int64),
            np.concatenate(blocks) if blocks else np.empty((0, BLOCK_BYTES), np.uint8),
            b"".join(digests for _, digests in found),
            {id_block(each): each for each in strings},
        )

    return of_many
