"""One client's samples as the user gives them, read as arrays, with a digest of each content."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.contents import CONTENT_BYTES
from fedforget.algorithm.ids import Id, IdSet, canonical_id
from fedforget.data.tables import CONTENT_PERSON, TYPES, OwnRows
from fedforget.errors import DataChanged, InvalidInput, shown

Array = NDArray[Any]
_NUMBERS = (int, float, complex, range, bytearray, memoryview, array.array)
_DEEPEST = 64  # dimensions that an array can have


class ClientSamples(Protocol):
    """One client's samples under stable ids, wherever they are kept."""

    @property
    def ids(self) -> IdSet: ...

    def sample(self, identifier: Id) -> tuple[Array, Array]:
        """Return the x and y of one sample as arrays. Raise DataChanged if it is missing."""
        ...

    def content(self, identifier: Id) -> bytes:
        """Return the content digest of a sample."""
        ...


def named(client: Id, sample: Id) -> str:
    """Return how messages name a sample."""
    return f"sample {shown(sample)} of client {shown(client)}"


class ClientData:
    """One client's samples as given: a mapping of stable id → (x, y), or a torch ``Dataset`` whose index is the id."""

    def __init__(self, client: Id, samples: Any) -> None:
        self._client = client
        if isinstance(samples, OwnRows):
            self.ids = IdSet.of_integers(samples.ids)
            self._keys = {identifier: identifier for identifier in self.ids}
        elif isinstance(samples, Mapping):
            self._keys = {canonical_id(key): key for key in samples}
            self.ids = IdSet(samples, what=f"sample id of client {shown(client)}:")
        elif hasattr(samples, "__getitem__") and hasattr(samples, "__len__"):
            self.ids = IdSet(range(_count_of(samples, client)))
            self._keys = {identifier: identifier for identifier in self.ids}
        else:
            raise InvalidInput(
                f"the samples of client {shown(client)} are a {type(samples).__name__}",
                hint="give a mapping of id → (x, y) or a torch Dataset",
            )
        self._samples = samples

    def named(self, identifier: Id) -> str:
        return named(self._client, identifier)

    def sample(self, identifier: Id) -> tuple[Array, Array]:
        """Return the x and y of one sample as arrays."""
        if identifier not in self.ids:
            raise DataChanged(
                f"{self.named(identifier)} is missing from the data",
                hint="restore it, or forget it",
            )
        try:
            pair = self._samples[self._keys[identifier]]
        except MemoryError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"{self.named(identifier)} cannot be read: {type(error).__name__}: {error}",
                hint="fix the data and give the same command again",
            ) from error
        try:
            x, y = pair
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"{self.named(identifier)} is not a pair (x, y)",
                hint="give two values",
            ) from error
        return arrays_of(x, y, lambda: self.named(identifier))

    def content(self, identifier: Id) -> bytes:
        """Return a digest of a sample's x and y: type, shape and bytes."""
        parts = [header_of(part.dtype, part.shape) + part.tobytes() for part in self.sample(identifier)]
        return hashlib.blake2b(b"".join(parts), digest_size=CONTENT_BYTES, person=CONTENT_PERSON).digest()


def _count_of(samples: Any, client: Id) -> int:
    try:
        return len(samples)
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"the samples of client {shown(client)} cannot be counted: {type(error).__name__}: {error}",
            hint="give a mapping of id → (x, y) or a torch Dataset",
        ) from error


@lru_cache(maxsize=1024)  # ragged data have many shapes
def header_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return what a content digest covers before the bytes of an array."""
    return f"{dtype.str}{shape};".encode()


def arrays_of(x: Any, y: Any, of: Callable[[], str]) -> tuple[Array, Array]:
    """Convert x and y to arrays. ``of`` names their sample in an error message."""
    return _array(x, "features", of), _array(y, "targets", of)


def _array(value: Any, part: str, of: Callable[[], str]) -> Array:
    try:
        return _array_of_numbers(value)
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"the {part} of {of()} cannot be made an array of numbers: {error}",
            hint="give numbers, lists of numbers, arrays or tensors, of types that both numpy and PyTorch have",
        ) from error


def _array_of_numbers(value: Any) -> Array:
    if not isinstance(value, np.ndarray | np.generic) and (unsupported := _unsupported_type(value)):
        raise TypeError(f"a {unsupported} is neither a number nor an array")
    made: Array = np.asarray(value.detach() if hasattr(value, "detach") else value)  # a tensor that requires gradients
    if made.dtype not in TYPES:
        raise TypeError(f"their type is {made.dtype}")
    return made


def _unsupported_type(value: Any, depth: int = 0) -> str:
    """Return the type of the first part that is neither a number nor an array. numpy could iterate it forever."""
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return next((found for each in value if (found := _unsupported_type(each, depth + 1))), "")
    known = isinstance(value, _NUMBERS) or hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    return "" if known else type(value).__name__
