"""A federation on the rows of arrays whose clients and samples have integer ids: nothing is built for each sample."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.contents import CONTENT_BYTES, Contents
from fedforget.algorithm.ids import Id, integer_blocks
from fedforget.errors import InvalidInput, shown

Sample = tuple[Any, Any]
CONTENT_PERSON = b"fedforget/sample"
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}  # types that PyTorch has
TYPES = {np.dtype(f"{kind}{size}") for kind, sizes in _SIZES.items() for size in sizes}


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of all clients, sorted by client and id."""

    x: Any
    y: Any
    ids: NDArray[np.int64]  # of the sample in each row
    places: NDArray[np.int64]  # where each row is in x and y
    starts: NDArray[np.int64]  # where the rows of each client begin, and after the last client, their number
    clients: NDArray[np.int64]  # ascending

    @classmethod
    def of(cls, x: Any, y: Any, owners: Sequence[Any], ids: Sequence[Any] | None) -> Table | None:
        """Return the table of these rows, or None if some ids are not integers."""
        clients, samples = _whole(owners), np.arange(len(owners)) if ids is None else _whole(ids)
        if clients is None or samples is None or len(samples) != len(clients):
            return None
        order = np.lexsort((samples, clients))
        clients, samples = clients[order], samples[order]
        same = clients[1:] == clients[:-1]
        if (twice := np.flatnonzero(same & (samples[1:] == samples[:-1]))).size:
            client, sample = int(clients[twice[0]]), int(samples[twice[0]])
            raise InvalidInput(
                f"client {shown(client)} has the sample id {shown(sample)} twice", hint="give each sample its own id"
            )
        firsts = np.flatnonzero(np.concatenate([[True], ~same])) if len(clients) else np.empty(0, np.int64)
        return cls(x, y, samples, order, np.append(firsts, len(clients)), clients[firsts])

    def clients_of(self) -> dict[Id, Mapping[Id, Sample]]:
        """Return each client's samples."""
        bounds = self.starts.tolist()
        return {
            client: OwnRows(self, start, stop)
            for client, start, stop in zip(self.clients.tolist(), bounds[:-1], bounds[1:], strict=True)
        }

    @property
    def is_of_arrays(self) -> bool:
        """Whether the bytes of a row are those of its sample. Elsewhere numpy gives a row another type or shape."""
        return all(type(each) in (np.ndarray, np.memmap) and each.dtype in TYPES for each in (self.x, self.y))

    def contents(self, rows: Sequence[OwnRows], header: Callable[[np.dtype[Any], tuple[int, ...]], bytes]) -> Contents:
        """Return the ids and content digests of some clients' samples. The table must be of arrays.

        ``header``: what stands before an array in the digest of a content.
        """
        sizes = np.array([each.stop - each.start for each in rows], np.int64)
        starts = np.array([each.start for each in rows], np.int64)
        own = np.repeat(starts - (sizes.cumsum() - sizes), sizes) + np.arange(sizes.sum())
        places, parts = self.places[own], list[NDArray[np.uint8]]()
        for array in (self.x, self.y):
            some = np.ascontiguousarray(array[places])
            head = np.frombuffer(header(array.dtype, array.shape[1:]), np.uint8)
            parts.append(np.broadcast_to(head, (len(places), len(head))))
            parts.append(some.reshape(len(places), -1).view(np.uint8))
        return Contents(sizes, integer_blocks(self.ids[own]), b"".join(_digests(np.hstack(parts))))


def _digests(rows: NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield the content digest of each row."""
    data, width = rows.tobytes(), rows.shape[1]
    begun = hashlib.blake2b(digest_size=CONTENT_BYTES, person=CONTENT_PERSON).copy
    for start in range(0, len(data), width):
        hasher = begun()
        hasher.update(data[start : start + width])
        yield hasher.digest()


@dataclass(frozen=True, slots=True, eq=False)
class OwnRows(Mapping[Id, Sample]):
    """The samples of one client: the rows of a table from ``start`` to before ``stop``."""

    table: Table
    start: int
    stop: int

    @property
    def ids(self) -> NDArray[np.int64]:
        return self.table.ids[self.start : self.stop]

    def __getitem__(self, identifier: Id) -> Sample:
        row = int(np.searchsorted(self.ids, identifier)) if isinstance(identifier, int) else len(self)
        if row == len(self) or self.ids[row] != identifier:
            raise KeyError(identifier)
        place = int(self.table.places[self.start + row])
        return self.table.x[place], self.table.y[place]

    def __iter__(self) -> Iterator[Id]:
        return iter(self.ids.tolist())

    def __len__(self) -> int:
        return self.stop - self.start


def _whole(values: Any) -> NDArray[np.int64] | None:
    """Return ids as an array if all of them are integers from 0, else None."""
    if isinstance(values, np.ndarray):
        whole = values.dtype.kind in "iu" and values.ndim == 1
    else:
        whole = all(type(value) is int for value in values)
    try:
        made = np.asarray(values, np.int64) if whole else None
    except OverflowError:
        return None
    return None if made is None or (len(made) and (made.min() < 0 or _wraps(values))) else made


def _wraps(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype == np.uint64 and bool((values >= 2**63).any())
