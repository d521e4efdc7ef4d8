"""The data of a federation: each client's samples under stable ids, with content digests to detect changes."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.contents import CONTENT_BYTES, Contents, ContentsOf, one_by_one
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet, canonical_id
from fedforget.data.tables import CONTENT_PERSON, TYPES, OwnRows
from fedforget.errors import DataChanged, InvalidInput, UnknownTarget, shown

Array = NDArray[Any]
_PAIR = 2
_NUMBERS = (int, float, complex, range, bytearray, memoryview, array.array)
_DEEPEST = 64  # dimensions that an array can have


class ClientData:
    """One client's samples: a mapping of stable id → (x, y), or a torch ``Dataset`` whose index is the id."""

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
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    return f"{dtype.str}{shape};".encode()


class _ClientsOnUse(dict[Id, ClientData]):
    """The data of each client, prepared when they are first asked for."""

    def __init__(self, given: Mapping[Id, Any]) -> None:
        super().__init__()
        self._given = given

    def __missing__(self, client: Id) -> ClientData:
        made = self[client] = ClientData(client, self._given[client])
        return made


class Members(Mapping[Id, IdSet]):
    """The sample ids of clients that have some. Those of a client are made when they are asked for."""

    def __init__(self, data: FederatedData, changed: Mapping[Id, IdSet], clients: Sequence[Id]) -> None:
        self._data, self.changed, self._clients = data, changed, dict.fromkeys(clients)

    def __getitem__(self, client: Id) -> IdSet:
        if client not in self._clients:
            raise KeyError(client)
        return self.changed[client] if client in self.changed else self._data[client].ids

    def __iter__(self) -> Iterator[Id]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


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
        self._given: dict[Id, Any] = {canonical_id(client): samples for client, samples in clients.items()}
        self._clients: dict[Id, ClientData] = _ClientsOnUse(self._given)
        for client in self.roster:
            if not isinstance(self._given[client], OwnRows):
                self._clients[client]  # raises if these are not samples
        self.test = None if test is None else _test_arrays(test)

    def __getitem__(self, client: Id) -> ClientData:
        if client not in self.roster:
            raise DataChanged(
                f"client {shown(client)} is missing from the data",
                hint="bring it back, or forget it",
            )
        return self._clients[client]

    def sample(self, client: Id, sample: Id) -> tuple[Array, Array]:
        return self[client].sample(sample)

    def members(self, without: Iterable[Request] = ()) -> Mapping[Id, IdSet]:
        """Return each client's sample ids without the targets of ``without``. Clients left empty are dropped."""
        left = {client: self._size(client) for client in self.roster}
        changed = dict[Id, IdSet]()
        for request in without:
            if request.client not in self.roster:
                raise UnknownTarget(f"client {request.client} is not in the data", hint="correct the --without file")
            own = self[request.client].ids
            if request.sample is not None and request.sample not in own:
                raise UnknownTarget(f"there is no {request} in the data", hint="correct the --without file")
            gone = own if request.sample is None else (request.sample,)
            changed[request.client] = changed.get(request.client, own).without(gone)
            left[request.client] = len(changed[request.client])
        return Members(self, changed, [client for client, size in left.items() if size])

    def _size(self, client: Id) -> int:
        found = self._given.get(client)
        return len(found) if isinstance(found, OwnRows) else len(self[client].ids)

    def sizes(self) -> list[int]:
        return [self._size(client) for client in self.roster]

    def contents(self, client: Id, ids: Iterable[Id]) -> Iterator[tuple[Id, bytes]]:
        return ((identifier, self[client].content(identifier)) for identifier in ids)

    def contents_of(self, members: Mapping[Id, IdSet]) -> ContentsOf:
        """Return how to get the samples of many clients, with their content digests."""
        each = one_by_one(
            lambda client: (members[client], b"".join(found for _, found in self.contents(client, members[client])))
        )

        def of(clients: Sequence[Id]) -> Contents:
            own = [self._whole_rows(client, members) for client in clients]
            rows = [found for found in own if found is not None]
            if not rows or len(rows) < len(own) or any(found.table is not rows[0].table for found in rows):
                return each(clients)
            return rows[0].table.contents(rows, _header)

        return of

    @property
    def is_in_memory(self) -> bool:
        """Whether all samples are rows of arrays in memory, which a forked process can read."""
        return bool(self._given) and all(
            isinstance(found, OwnRows) and found.table.is_of_arrays for found in self._given.values()
        )

    def require_all_unchanged(self, clients: Sequence[Id], known: Contents) -> None:
        """Raise DataChanged if a content of these clients' samples differs from its recorded digest."""
        own = [self._whole_rows(client) for client in clients]
        rows = [found for found in own if found is not None]
        if len(rows) == len(own) and rows and all(found.table is rows[0].table for found in rows):
            found = rows[0].table.contents(rows, _header)
            if found.digests == known.digests and np.array_equal(found.blocks, known.blocks):
                return
        for client, contents in zip(clients, known.of_each(), strict=True):
            self.require_unchanged(client, contents)

    def _whole_rows(self, client: Id, members: Mapping[Id, IdSet] | None = None) -> OwnRows | None:
        """Return a client's samples if they are rows of arrays and all of them are members."""
        found = self._given.get(client)
        partly = isinstance(members, Members) and client in members.changed
        return found if isinstance(found, OwnRows) and found.table.is_of_arrays and not partly else None

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
    if made.dtype not in TYPES:
        raise TypeError(f"their type is {made.dtype}")
    return made


def _unsupported_type(value: Any, depth: int = 0) -> str:
    """Return the type of the first part that is neither a number nor an array. numpy could iterate it forever."""
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return next((found for each in value if (found := _unsupported_type(each, depth + 1))), "")
    known = isinstance(value, _NUMBERS) or hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    return "" if known else type(value).__name__
