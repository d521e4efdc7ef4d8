"""A file of the clients' books that is open for look-ups."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.contents import CONTENT_BYTES
from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import BLOCK_BYTES, Id, IdSet, id_block
from fedforget.algorithm.seeds import Seed, commitments_of
from fedforget.algorithm.tree import LABEL_BYTES
from fedforget.disk.door import Door
from fedforget.store.books.layout import (
    NUMBER_BYTES,
    STRING,
    Column,
    damaged,
    header_of,
    names_of,
    numbers_of,
    read,
    read_errors,
    split,
)
from fedforget.store.names import BOOKS


class BookFile:
    """A file that is open for look-ups. Each one reads the few rows that it needs.

    The caller has had the file checked (``Book.read``), or only wants a first answer.
    """

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self._open = contextlib.ExitStack()
        with read_errors(path):
            self._descriptor = self._open.enter_context(Door(path.parent).opened(path.name))
            try:
                self.header = header_of(path, self._descriptor, number)
            except BaseException:
                self.close()
                raise
        self._starts = self.header.starts
        self._places: dict[Id, int] = {}  # of the clients that were looked up

    def close(self) -> None:
        self._open.close()

    def clients(self) -> IdSet:
        return self._ids(self._column("clients", BLOCK_BYTES, 0, self.header.clients), 0)

    def commitments(self) -> list[bytes]:
        """Return the clients' commitments, in the order of the file."""
        seeds, nonces = (
            self._column(name, SEED_BYTES, 0, self.header.clients).tobytes() for name in ("seeds", "nonces")
        )
        return commitments_of(seeds, nonces)

    def sizes(self) -> NDArray[np.int64]:
        """Return how many samples each client has, in the order of the file."""
        return np.diff(self._ends(0, self.header.clients), prepend=0)

    def place(self, client: Id) -> int | None:
        """Return the row of a client, or None if it has no book here."""
        place = self._places.get(client)
        if place is None:
            place = self._find("clients", id_block(client), 0, self.header.clients)
            if place is not None:
                self._places[client] = place
        return place

    def seed(self, place: int) -> Seed:
        seed, nonce = (self._column(name, SEED_BYTES, place, place + 1).tobytes() for name in ("seeds", "nonces"))
        return Seed(seed, nonce)

    def root(self, place: int) -> bytes:
        """Return the root of the tree over a client's samples."""
        return self._column("roots", LABEL_BYTES, place, place + 1).tobytes()

    def has(self, client: Id, sample: Id | None) -> bool:
        """Return whether a client, or a sample of it, is here."""
        place = self.place(client)
        if place is None or sample is None:
            return place is not None
        return self._find("samples", id_block(sample), *self._rows(place)) is not None

    def samples(self, place: int) -> IdSet:
        start, stop = self._rows(place)
        return self._ids(self._column("samples", BLOCK_BYTES, start, stop), self.header.clients + start)

    def contents(self, place: int) -> list[bytes]:
        """Return the content digests of a client's samples, in their order."""
        return split(self._column("contents", CONTENT_BYTES, *self._rows(place)).tobytes(), CONTENT_BYTES)

    def _rows(self, place: int) -> tuple[int, int]:
        start, stop = (0, *self._ends(max(0, place - 1), place + 1).tolist())[-2:]
        if not start <= stop <= self.header.samples:
            raise damaged(self.path, "the samples of a client are missing or invalid")
        return start, stop

    def _ends(self, start: int, stop: int) -> NDArray[np.int64]:
        return numbers_of(self._column("ends", NUMBER_BYTES, start, stop))

    def _find(self, column: str, block: bytes, low: int, high: int) -> int | None:
        where, descriptor = self._starts[column], self._descriptor

        def key(row: int) -> bytes:
            return os.pread(descriptor, BLOCK_BYTES, where + BLOCK_BYTES * row)

        with read_errors(self.path):
            place = bisect_left(range(high), block, low, high, key=key)
            return place if place < high and key(place) == block else None

    def _column(self, name: str, width: int, start: int, stop: int) -> Column:
        with read_errors(self.path):
            data = read(self._descriptor, self._starts[name] + width * start, width * (stop - start))
        if len(data) != width * (stop - start):
            raise damaged(self.path, "it has become shorter")
        return np.frombuffer(data, np.uint8).reshape(-1, width)

    def _ids(self, blocks: Column, first: int) -> IdSet:
        """Return ids, given their blocks and the number of the first of them."""
        if not (blocks[:, 0] == STRING).any():
            return IdSet.of_blocks(blocks)
        if not self.header.names:
            raise damaged(self.path, "it lacks the names of its ids")
        ends = numbers_of(self._column("name ends", NUMBER_BYTES, max(0, first - 1), first + len(blocks)))
        if not first:
            ends = np.concatenate([[0], ends])
        if (np.diff(ends) < 0).any() or int(ends[-1]) > self.header.size - self._starts["text"]:
            raise damaged(self.path, "the names of its ids are missing or invalid")
        text = self._column("text", 1, int(ends[0]), int(ends[-1])).tobytes()
        return IdSet.of_blocks(blocks, names_of(self.path, blocks, ends - ends[0], text))


def are_in_books(run: Path, targets: Sequence[Request]) -> bool:
    """Return whether all these clients and samples are in a run. Reads a few rows of the files, and checks none.

    It reads all files, because without the key of the run it is not known which one would hold a client.
    """
    left = list(targets)
    for number, name in enumerate(BOOKS):
        with contextlib.closing(BookFile(run / name, number)) as part:
            left = [target for target in left if not part.has(target.client, target.sample)]
    return not left
