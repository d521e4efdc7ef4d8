"""A dataset as it was read: its rows, its split into training and test data, and its natural clients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.data.rows import ImageRows, Rows, TextWindows
from fedforget.errors import DataDamaged

WHOLE, SUBSET = "whole", "subset"
_CHECKSUM_BYTES = 16
_PIECE = 2**24  # bytes of an array that are hashed at once


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one natural client (a writer, a role): ranges of places in the training and the test rows."""

    train: range
    test: range


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset in memory, or mapped into it. ``ids`` are the rows' ids where they are not their places.

    ``which``: whether it is the whole dataset or a subset of it. ``place``: the directory or hub id it came from.
    """

    name: str
    which: str
    train: Rows
    test: Rows
    place: str
    ids: NDArray[np.int64] | None = None
    groups: Mapping[str, Group] | None = None

    @property
    def labels(self) -> NDArray[Any]:
        """The labels of the training rows. Text has none: its clients are natural."""
        if not isinstance(self.train, ImageRows):
            raise TypeError(f"{self.name} has no labels to partition by")
        return self.train.labels

    @property
    def train_count(self) -> int:
        return _count(self.train, [group.train for group in (self.groups or {}).values()])

    @property
    def test_count(self) -> int:
        return _count(self.test, [group.test for group in (self.groups or {}).values()])

    def row_ids(self) -> NDArray[np.int64]:
        """Return the id of each training row of a dataset without natural clients."""
        return np.arange(self.train_count, dtype=np.int64) if self.ids is None else self.ids

    def checksum(self) -> str:
        """Return a digest of ids, features, labels and clients. The same data in another format has the same."""
        hasher = hashlib.blake2b(digest_size=_CHECKSUM_BYTES, person=b"fedforget/data/1")
        for part in self._parts():
            flat = np.ascontiguousarray(part)
            hasher.update(f"{flat.dtype.str}{flat.shape};".encode())
            data = flat.reshape(-1).view(np.uint8)
            for start in range(0, len(data), _PIECE):
                hasher.update(data[start : start + _PIECE].data)
        for name, group in (self.groups or {}).items():
            hasher.update(f"{name}:{len(group.train)},{len(group.test)};".encode())
        return hasher.hexdigest()

    def _parts(self) -> Iterator[NDArray[Any]]:
        if self.ids is not None:
            yield self.ids
        if isinstance(self.train, TextWindows):
            yield self.train.text
        for rows in (self.train, self.test):
            if isinstance(rows, ImageRows):
                yield rows.images
                yield rows.labels.astype(np.uint8)


def _count(rows: Rows, ranges: list[range]) -> int:
    return len(rows) if isinstance(rows, ImageRows) else sum(map(len, ranges))


def grouped(names: NDArray[np.integer], count: int, what: str) -> list[range]:
    """Return the rows of each of ``count`` clients, given the client of every row. A client's rows lie together."""
    starts = np.searchsorted(names, np.arange(count + 1))
    if (np.diff(names) < 0).any():
        raise DataDamaged(f"the rows of {what} are not grouped by client", hint="get the file again")
    return [range(start, stop) for start, stop in pairwise(starts.tolist())]
