"""A client's samples as rows of one tensor: the learner reads them once and gathers each mini-batch from the rows.

A mini-batch depends on its samples alone: its bytes equal those of stacking the samples one by one. If a client's
samples differ in type or shape it has no rows, and the learner stacks each mini-batch. An erased sample is in no row,
and is never read again.
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
from fedforget.algorithm.ports import BatchSource, LocalRound, SampleSource
from fedforget.errors import InvalidInput, shown

Pair = tuple[Tensor, Tensor]
_ALIGNMENT = 64  # bytes: the alignment of PyTorch's allocator
_AT_ONCE = 2**22  # bytes gathered by one call, at most


class _SampleReader:
    """Reads samples from their source, as tensors."""

    def __init__(self, source: SampleSource, floats: torch.dtype) -> None:
        self._source = source
        self._floats = floats
        self._single: dict[tuple[Id, Id], Pair] = {}  # samples of clients without rows

    def rows(self, work: LocalRound) -> Pair | None:
        """Read all samples of a client as rows. Return None if they differ in type or shape."""
        pairs = [self._source.sample(work.client, sample) for sample in work.samples]
        if len({(x.dtype, x.shape, y.dtype, y.shape) for x, y in pairs}) != 1:
            return None
        return as_tensor(np.stack([x for x, _ in pairs]), self._floats), as_tensor(np.stack([y for _, y in pairs]))

    def sample(self, client: Id, sample: Id) -> Pair:
        if (client, sample) not in self._single:
            x, y = self._source.sample(client, sample)
            self._single[client, sample] = as_tensor(x, self._floats), as_tensor(y)
        return self._single[client, sample]

    def batches(self, work: LocalRound, rows: Pair | None) -> Iterator[Pair]:
        """Yield the mini-batch of each step of a local round, gathered from the client's rows if it has them."""
        if rows is None:
            for batch in work.batches:
                yield _stacked(work.client, [self.sample(work.client, sample) for sample in batch])
            return
        yield from zip(*(_picked(column, torch.from_numpy(work.rows)) for column in rows), strict=True)


class SampleCache:
    """The rows of the clients that this process trains."""

    def __init__(self, source: SampleSource, floats: torch.dtype) -> None:
        self._reader = _SampleReader(source, floats)
        self._known: dict[Id, tuple[tuple[Id, ...], Pair | None]] = {}  # a client's samples, and their rows

    def batches(self, work: LocalRound) -> Iterator[Pair]:
        """Yield the mini-batch of each step of a local round."""
        return self._reader.batches(work, self._rows(work))

    def _rows(self, work: LocalRound) -> Pair | None:
        present, rows = self._known.get(work.client, (None, None))
        if present is not work.samples and present != work.samples:
            rows = self._reader.rows(work)
            self._known[work.client] = work.samples, rows
        return rows


class StoredBatches:
    """A cache without rows: the source reads each mini-batch from storage. No process keeps a copy."""

    def __init__(self, source: BatchSource, floats: torch.dtype) -> None:
        self._source, self._floats = source, floats

    def batches(self, work: LocalRound) -> Iterator[Pair]:
        """Yield the mini-batch of each step of a local round."""
        for batch in work.batches:
            x, y = self._source.batch(work.client, batch)
            yield _own(x, self._floats), _own(y)


def _own(array: NDArray[Any], floats: torch.dtype | None = None) -> Tensor:
    """Return a copy in memory that PyTorch allocates, with its alignment."""
    tensor = torch.from_numpy(array)
    return tensor.to(floats if floats is not None and tensor.is_floating_point() else tensor.dtype, copy=True)


def _stacked(client: Id, pairs: Sequence[Pair]) -> Pair:
    try:
        return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
    except RuntimeError as error:
        raise InvalidInput(
            f"the samples of client {shown(client)} differ in shape",
            hint="pad or crop them to one shape, in a new run",
        ) from error


def _picked(column: Tensor, rows: Tensor) -> Iterator[Tensor]:
    """Gather all steps at once if that keeps mini-batches aligned; otherwise copy step by step.

    The alignment of its operands can change the order in which a matrix product adds.
    """
    batch_bytes = rows.shape[1] * column[0].nbytes
    if batch_bytes % _ALIGNMENT == 0 and batch_bytes * len(rows) <= _AT_ONCE:
        return iter(column.index_select(0, rows.reshape(-1)).view(*rows.shape, *column.shape[1:]).unbind())
    return (column.index_select(0, each) for each in rows)


_EMPTY, _FULL, _RAGGED = 0, 1, 2


class SharedSampleCache:
    """The rows of all clients in one memory map, created before the workers fork.

    The first process that trains a client fills its rows for all processes. One process at a time trains a client, so
    no lock is needed. Untouched pages cost no memory. The rows have the types and shapes of ``example``; a client whose
    samples differ from it has no rows.
    """

    def __init__(self, source: SampleSource, floats: torch.dtype, sizes: Mapping[Id, int], example: LocalRound) -> None:
        self._reader = _SampleReader(source, floats)
        self._place = {client: place for place, client in enumerate(sizes)}
        self._start = [0, *accumulate(sizes.values())]
        x, y = self._reader.sample(example.client, example.batches[0][0])
        self._all_rows = _shared(self._start[-1], x), _shared(self._start[-1], y)
        self._state = np.frombuffer(_shared_bytes(len(sizes)), np.uint8)

    def batches(self, work: LocalRound) -> Iterator[Pair]:
        """Yield the mini-batch of each step of a local round."""
        return self._reader.batches(work, self._rows(work))

    def _rows(self, work: LocalRound) -> Pair | None:
        place = self._place[work.client]
        rows = self._rows_at(place)
        if self._state[place] == _EMPTY:
            self._state[place] = _FULL if _filled(rows, self._reader.rows(work)) else _RAGGED
        return rows if self._state[place] == _FULL else None

    def _rows_at(self, place: int) -> Pair:
        here = slice(self._start[place], self._start[place + 1])
        return self._all_rows[0][here], self._all_rows[1][here]


def _filled(room: Pair, rows: Pair | None) -> bool:
    """Copy rows into ``room``. Return whether they fit."""
    if rows is None or any(
        new.dtype != old.dtype or new.shape != old.shape for new, old in zip(rows, room, strict=True)
    ):
        return False
    for old, new in zip(room, rows, strict=True):
        old.copy_(new)
    return True


def _shared_bytes(size: int) -> mmap.mmap:
    """Return anonymous memory, shared with the processes that this one forks."""
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, max(size, 1), flags=flags)


def _shared(rows: int, like: Tensor) -> Tensor:
    count = rows * like.numel()
    if not count:
        return torch.empty((rows, *like.shape), dtype=like.dtype)
    block = _shared_bytes(count * like.element_size())
    return torch.frombuffer(block, dtype=like.dtype, count=count).view(rows, *like.shape)


def as_tensor(array: NDArray[Any], floats: torch.dtype | None = None) -> Tensor:
    """Copy an array to a tensor; floats are converted to the given type."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.to(floats) if floats is not None and tensor.is_floating_point() else tensor
