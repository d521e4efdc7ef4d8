"""The data of a federation: each client's samples under stable ids, with content digests to detect changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedforget.algorithm.contents import Contents, ContentsOf, one_by_one
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet, canonical_id
from fedforget.data.client_data import Array, ClientData, ClientSamples, arrays_of, header_of, named
from fedforget.data.tables import OwnRows
from fedforget.errors import DataChanged, InvalidInput, UnknownTarget, shown

_PAIR = 2


class _ClientsOnUse(dict[Id, ClientSamples]):
    """The data of each client, prepared when they are first asked for."""

    def __init__(self, given: Mapping[Id, Any]) -> None:
        super().__init__()
        self._given = given

    def __missing__(self, client: Id) -> ClientSamples:
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
        self._clients: Mapping[Id, ClientSamples] = _ClientsOnUse(self._given)
        for client in self.roster:
            if not isinstance(self._given[client], OwnRows):
                self._clients[client]  # raises if these are not samples
        self.test = None if test is None else _test_arrays(test)

    def __getitem__(self, client: Id) -> ClientSamples:
        if client not in self.roster:
            raise DataChanged(
                f"client {shown(client)} is missing from the data",
                hint="restore it, or forget it",
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
            return rows[0].table.contents(rows, header_of)

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
            found = rows[0].table.contents(rows, header_of)
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
                    f"the content of {named(client, identifier)} is not what the run began with",
                    hint="restore it, or forget the sample: other content is another sample",
                )


def _test_arrays(test: Any) -> tuple[Array, Array]:
    if not isinstance(test, (tuple, list)) or len(test) != _PAIR:
        raise InvalidInput(
            f"the test set is a {type(test).__name__}, not a pair (x, y) of arrays",
            hint="stack its features and its labels: test=(x, y)",
        )
    x, y = arrays_of(test[0], test[1], lambda: "the test set")
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
