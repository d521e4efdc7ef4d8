"""A client's samples as rows of one tensor: read once, when the client first trains, and picked from by batch.

A batch is a function of its samples alone, whatever else the client has or had: rows of a shelf are the bytes that
stacking the samples one by one would give. Where samples differ in type or shape there is no shelf, and they are
stacked batch by batch. An erased sample is on no shelf, and is never read again.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import LocalRound, SampleSource
from fedforget.errors import InvalidInput, shown

Pair = tuple[Tensor, Tensor]
_ALIGNMENT = 64  # bytes: where PyTorch lets tensors begin
_AT_ONCE = 2**22  # bytes


class Shelves:
    """The shelves of the clients that this process trains."""

    def __init__(self, source: SampleSource, floats: torch.dtype) -> None:
        self._source = source
        self._floats = floats
        self._single: dict[tuple[Id, Id], Pair] = {}
        self._filled: dict[Id, tuple[tuple[Id, ...], Pair | None]] = {}  # a client's samples, and their rows

    def batches(self, work: LocalRound) -> Iterator[Pair]:
        """The samples of each step of a local round, stacked."""
        shelf = self._shelf(work)
        if shelf is None:
            for batch in work.batches:
                yield self._stack(work.client, [self._sample(work.client, sample) for sample in batch])
            return
        yield from zip(*(_picked(column, torch.from_numpy(work.rows)) for column in shelf), strict=True)

    def _shelf(self, work: LocalRound) -> Pair | None:
        present, shelf = self._filled.get(work.client, (None, None))
        if present is not work.samples and present != work.samples:
            shelf = self._read_all(work)
            self._filled[work.client] = work.samples, shelf
        return shelf

    def _read_all(self, work: LocalRound) -> Pair | None:
        """All samples of a client as rows, or None if they cannot be."""
        pairs = [self._source.sample(work.client, sample) for sample in work.samples]
        if len({(x.dtype, x.shape, y.dtype, y.shape) for x, y in pairs}) != 1:
            return None
        return as_tensor(np.stack([x for x, _ in pairs]), self._floats), as_tensor(np.stack([y for _, y in pairs]))

    def _sample(self, client: Id, sample: Id) -> Pair:
        if (client, sample) not in self._single:
            x, y = self._source.sample(client, sample)
            self._single[client, sample] = as_tensor(x, self._floats), as_tensor(y)
        return self._single[client, sample]

    @staticmethod
    def _stack(client: Id, pairs: Sequence[Pair]) -> Pair:
        try:
            return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
        except RuntimeError as error:
            raise InvalidInput(
                f"the samples of client {shown(client)} differ in shape",
                hint="pad or crop them to one shape, in a new run",
            ) from error


def _picked(column: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """The given rows for each step: at once where that is the same, namely not much, and aligned as a copy would be.

    A matrix product may add in another order where its operands lie otherwise in memory.
    """
    batch_bytes = rows.shape[1] * column[0].nbytes
    if batch_bytes % _ALIGNMENT == 0 and batch_bytes * len(rows) <= _AT_ONCE:
        return iter(column.index_select(0, rows.reshape(-1)).view(*rows.shape, *column.shape[1:]).unbind())
    return (column.index_select(0, each) for each in rows)


_EMPTY, _FULL, _RAGGED = 0, 1, 2


class SharedShelves(Shelves):
    """One memory map for all clients, made before processes fork; whoever trains a client first fills its shelf.

    A client is trained by one process at a time, so nobody waits. Pages that nobody fills cost nothing. The rows are
    laid out like ``example``; a client whose samples are otherwise goes without a shelf.
    """

    def __init__(self, source: SampleSource, floats: torch.dtype, sizes: Mapping[Id, int], example: LocalRound) -> None:
        super().__init__(source, floats)
        self._place = {client: place for place, client in enumerate(sizes)}
        self._start = [0, *accumulate(sizes.values())]
        x, y = self._sample(example.client, example.batches[0][0])
        self._rows = _shared(self._start[-1], x), _shared(self._start[-1], y)
        self._state = np.frombuffer(_shared_bytes(len(sizes)), np.uint8)

    def _shelf(self, work: LocalRound) -> Pair | None:
        place = self._place[work.client]
        shelf = self._of(place)
        if self._state[place] == _EMPTY:
            self._state[place] = _FULL if self._fill(shelf, self._read_all(work)) else _RAGGED
        return shelf if self._state[place] == _FULL else None

    def _of(self, place: int) -> Pair:
        here = slice(self._start[place], self._start[place + 1])
        return self._rows[0][here], self._rows[1][here]

    @staticmethod
    def _fill(shelf: Pair, rows: Pair | None) -> bool:
        if rows is None or any(
            new.dtype != old.dtype or new.shape != old.shape for new, old in zip(rows, shelf, strict=True)
        ):
            return False
        for old, new in zip(shelf, rows, strict=True):
            old.copy_(new)
        return True


def _shared_bytes(size: int) -> mmap.mmap:
    """Memory without a name or a file, shared with the processes that this one forks."""
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, max(size, 1), flags=flags)


def _shared(rows: int, like: Tensor) -> Tensor:
    count = rows * like.numel()
    if not count:
        return torch.empty((rows, *like.shape), dtype=like.dtype)
    block = _shared_bytes(count * like.element_size())
    return torch.frombuffer(block, dtype=like.dtype, count=count).view(rows, *like.shape)


def as_tensor(array: NDArray[Any], floats: torch.dtype | None = None) -> Tensor:
    """A copy of an array; if it holds floats, in the given type."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.to(floats) if floats is not None and tensor.is_floating_point() else tensor
