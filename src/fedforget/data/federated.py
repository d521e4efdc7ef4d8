"""The data of a federation: each client's samples under stable ids, with content digests to detect changes."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet, canonical_id
from fedforget.algorithm.tree import CONTENT_BYTES
from fedforget.errors import DataChanged, InvalidInput, UnknownTarget, shown

Array = NDArray[Any]
_PAIR = 2
_NUMBERS = (int, float, complex, range, bytearray, memoryview, array.array)
_DEEPEST = 64  # dimensions that an array can have
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}  # types that PyTorch has
_TYPES = {np.dtype(f"{kind}{size}") for kind, sizes in _SIZES.items() for size in sizes}


class ClientData:
    """One client's samples: a mapping of stable id → (x, y), or a torch ``Dataset`` whose index is the id."""

    def __init__(self, client: Id, samples: Any) -> None:
        self._client = client
        if isinstance(samples, Mapping):
            self._keys = {canonical_id(key): key for key in samples}
            self.ids = IdSet(samples, what=f"sample id of client {shown(client)}:")
        elif hasattr(samples, "__getitem__") and hasattr(samples, "__len__"):
            self.ids = IdSet(range(len(samples)))
            self._keys = {identifier: identifier for identifier in self.ids}
        else:
            raise InvalidInput(
                f"the samples of client {shown(client)} are a {type(samples).__name__}",
                hint="give a mapping of id → (x, y) or a torch Dataset",
            )
        self._samples = samples

    def named(self, identifier: Id) -> str:
        return f"sample {shown(identifier)} of client {shown(self._client)}"

    def sample(self, identifier: Id) -> tuple[Array, Array]:
        """Return the x and y of one sample as arrays."""
        if identifier not in self.ids:
            raise DataChanged(
                f"{self.named(identifier)} is missing from the data",
                hint="bring it back, or forget it",
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
        return _arrays(x, y, lambda: self.named(identifier))

    def content(self, identifier: Id) -> bytes:
        """Return a digest of a sample's x and y: type, shape and bytes."""
        parts = [_header(part.dtype, part.shape) + part.tobytes() for part in self.sample(identifier)]
        return hashlib.blake2b(b"".join(parts), digest_size=CONTENT_BYTES, person=b"fedforget/sample").digest()


@lru_cache(maxsize=1024)  # ragged data have many shapes
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    return f"{dtype.str}{shape};".encode()


class FederatedData:
    """The clients of a federation and, optionally, the server's test set (x, y).

    ``test_owners``: the client that each test sample belongs to, where clients have test samples of their own.
    """

    test_owners: tuple[Id, ...] | None = None

    def __init__(self, clients: Mapping[Any, Any], test: tuple[Any, Any] | None = None) -> None:
        if not isinstance(clients, Mapping):
            raise InvalidInput(
                f"the data are a {type(clients).__name__}, not a mapping of clients",
                hint="give {client id: {sample id: (x, y)}}, or {client id: a torch Dataset}",
            )
        self.roster = IdSet(clients, what="client id")
        made = {canonical_id(client): samples for client, samples in clients.items()}
        self._clients = {client: ClientData(client, made[client]) for client in self.roster}
        self.test = None if test is None else _test_arrays(test)

    def __getitem__(self, client: Id) -> ClientData:
        if client not in self._clients:
            raise DataChanged(
                f"client {shown(client)} is missing from the data",
                hint="bring it back, or forget it",
            )
        return self._clients[client]

    def sample(self, client: Id, sample: Id) -> tuple[Array, Array]:
        return self[client].sample(sample)

    def members(self, without: Iterable[Request] = ()) -> dict[Id, IdSet]:
        """Return each client's sample ids without the targets of ``without``. Clients left empty are dropped."""
        members = {client: self._clients[client].ids for client in self.roster}
        for request in without:
            if request.client not in self.roster:
                raise UnknownTarget(f"client {request.client} is not in the data", hint="correct the --without file")
            if request.sample is not None and request.sample not in self._clients[request.client].ids:
                raise UnknownTarget(f"there is no {request} in the data", hint="correct the --without file")
            gone = members[request.client] if request.sample is None else (request.sample,)
            members[request.client] = members[request.client].without(gone)
        return {client: ids for client, ids in members.items() if len(ids)}

    def sizes(self) -> list[int]:
        return [len(self._clients[client].ids) for client in self.roster]

    def contents(self, client: Id, ids: Iterable[Id]) -> Iterator[tuple[Id, bytes]]:
        return ((identifier, self[client].content(identifier)) for identifier in ids)

    def digests(self, client: Id, ids: IdSet) -> bytes:
        """Return the content digests of some samples of a client, one after the other."""
        return b"".join(content for _, content in self.contents(client, ids))

    def require_unchanged(self, client: Id, known: Mapping[Id, bytes]) -> None:
        """Raise DataChanged if a sample's content differs from its recorded digest."""
        for identifier, content in self.contents(client, known):
            if content != known[identifier]:
                raise DataChanged(
                    f"the content of {self[client].named(identifier)} is not what the run began with",
                    hint="restore it, or forget the sample: other content is another sample",
                )


def _test_arrays(test: Any) -> tuple[Array, Array]:
    if not isinstance(test, (tuple, list)) or len(test) != _PAIR:
        raise InvalidInput(
            f"the test set is a {type(test).__name__}, not a pair (x, y) of arrays",
            hint="stack its features and its labels: test=(x, y)",
        )
    x, y = _arrays(test[0], test[1], lambda: "the test set")
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise InvalidInput(
            f"the test set has features of shape {x.shape} and labels of shape {y.shape}",
            hint="give as many labels as features",
        )
    if not np.array_equal(y, np.round(y)):
        raise InvalidInput(
            f"the labels of the test set are not class numbers: type {y.dtype}, shape {y.shape}",
            hint="give one whole number per image, or leave the test set out: only accuracy is measured",
        )
    return x, y


def _arrays(x: Any, y: Any, of: Callable[[], str]) -> tuple[Array, Array]:
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
    if made.dtype not in _TYPES:
        raise TypeError(f"their type is {made.dtype}")
    return made


def _unsupported_type(value: Any, depth: int = 0) -> str:
    """Return the type of the first part that is neither a number nor an array. numpy could iterate it forever."""
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return next((found for each in value if (found := _unsupported_type(each, depth + 1))), "")
    known = isinstance(value, _NUMBERS) or hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    return "" if known else type(value).__name__
