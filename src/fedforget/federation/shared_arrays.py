"""Arrays in anonymous memory that a process shares with the processes it forks."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class SharedArrays:
    """A block with the shapes and types of ``example``; every process that inherits it sees the same bytes."""

    def __init__(self, example: Any) -> None:
        self._places: dict[str, _Place] = {}
        size = 0
        for name, array in example.items() if _are_arrays(example) else ():
            self._places[name] = _Place(size, array.shape, array.dtype)
            size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._block = mmap.mmap(-1, max(size, 1))  # untouched pages cost no memory

    def fits(self, arrays: Any) -> bool:
        """Return whether ``arrays`` has the names, shapes and types of the example. It may be any value."""
        return (
            _are_arrays(arrays)
            and arrays.keys() == self._places.keys()
            and all(
                (arrays[name].shape, arrays[name].dtype) == (place.shape, place.dtype)
                for name, place in self._places.items()
            )
        )

    def views(self) -> dict[str, NDArray[Any]]:
        """Return the arrays without copying."""
        return {
            name: np.ndarray(place.shape, place.dtype, buffer=self._block, offset=place.offset)
            for name, place in self._places.items()
        }

    def write(self, arrays: Arrays) -> None:
        for name, view in self.views().items():
            np.copyto(view, arrays[name], casting="no")


def _are_arrays(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(array, np.ndarray) for array in value.values())
