"""A client's samples as rows of one tensor: read once, when the client first trains, and picked from by batch.

A batch is a function of its samples alone, whatever else the client has or had: rows of a shelf are the bytes that
stacking the samples one by one would give. Where samples differ in type or shape there is no shelf, and they are
stacked batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import SampleSource
from fedforget.errors import InvalidInput

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Shelf:
    """The samples that a client has now, one row each; without ``rows`` if they cannot be rows of one tensor."""

    ids: tuple[Id, ...]
    rows: Pair | None
    place: dict[Id, int]


class Shelves:
    """The shelves of all clients. An erased sample is on none of them and is never read again."""

    def __init__(self, source: SampleSource, floats: torch.dtype) -> None:
        self._source = source
        self._floats = floats
        self._shelves: dict[Id, Shelf] = {}
        self._single: dict[tuple[Id, Id], Pair] = {}

    def batch(self, client: Id, present: tuple[Id, ...], batch: Sequence[Id]) -> Pair:
        """The samples of a batch, stacked. ``present`` are all that the client has."""
        shelf = self._shelves.get(client)
        if shelf is None or (shelf.ids is not present and shelf.ids != present):
            shelf = self._shelves[client] = self._fill(client, present)
        if shelf.rows is None:
            return self._stack(client, [self._sample(client, sample) for sample in batch])
        places = torch.tensor([shelf.place[sample] for sample in batch])
        return shelf.rows[0].index_select(0, places), shelf.rows[1].index_select(0, places)

    def _fill(self, client: Id, present: tuple[Id, ...]) -> Shelf:
        pairs = [self._source.sample(client, sample) for sample in present]
        if len({(x.dtype, x.shape, y.dtype, y.shape) for x, y in pairs}) != 1:
            return Shelf(present, None, {})
        rows = as_tensor(np.stack([x for x, _ in pairs]), self._floats), as_tensor(np.stack([y for _, y in pairs]))
        return Shelf(present, rows, {sample: place for place, sample in enumerate(present)})

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
                f"the samples of client {client} differ in shape", hint="pad or crop them to one shape, in a new run"
            ) from error


def as_tensor(array: NDArray[Any], floats: torch.dtype | None = None) -> Tensor:
    """A copy of an array; if it holds floats, in the given type."""
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.to(floats) if floats is not None and tensor.is_floating_point() else tensor
