"""A federation whose samples stay in the rows of a dataset: clients hold ids, and mini-batches are read on use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.contents import CONTENT_BYTES
from fedforget.algorithm.ids import Id, IdSet
from fedforget.data.client_data import Array, named
from fedforget.data.federated import FederatedData
from fedforget.data.rows import Places, Rows
from fedforget.errors import DataChanged, shown

Samples = NDArray[np.int64] | Callable[[], IdSet]  # a client's ids, or how to look them up
PlacesOf = Callable[[Any, NDArray[np.int64]], Places]  # of a client's ids; raises KeyError or IndexError


class StoredClient:
    """One client's samples by reference. The set of ids is built on first use."""

    def __init__(self, client: Id, rows: Rows, samples: Samples, places: PlacesOf) -> None:
        self._client, self._rows, self._of, self._places_of = client, rows, samples, places
        self._made: IdSet | None = None

    @property
    def ids(self) -> IdSet:
        if self._made is None:
            self._made = self._of() if callable(self._of) else IdSet.of_integers(self._of)
        return self._made

    @property
    def size(self) -> int:
        return len(self.ids) if callable(self._of) else len(self._of)

    def sample(self, identifier: Id) -> tuple[Array, Array]:
        x, y = self.batch([identifier])
        return x[0], np.asarray(y[0])

    def batch(self, identifiers: Sequence[Id]) -> tuple[Array, Array]:
        """Return the features and targets of some samples, stacked."""
        return self._rows.batch(self._places(identifiers))

    def content(self, identifier: Id) -> bytes:
        return next(self.contents([identifier]))

    def contents(self, identifiers: Sequence[Id]) -> Iterator[bytes]:
        """Return a digest of each sample as it is stored: conversion, features and target."""
        blank = hashlib.blake2b(f"{self._rows.kind};".encode(), digest_size=CONTENT_BYTES, person=b"fedforget/stored")
        for stored in self._rows.stored(self._places(identifiers)):
            hasher = blank.copy()
            hasher.update(stored)
            yield hasher.digest()

    def _places(self, identifiers: Sequence[Id]) -> Places:
        try:
            return self._places_of(self._client, np.asarray(identifiers, np.int64))
        except (KeyError, IndexError, ValueError, OverflowError) as error:
            raise DataChanged(
                f"{self._missing(identifiers)} is missing from the data", hint="restore it, or forget it"
            ) from error

    def _missing(self, identifiers: Sequence[Id]) -> str:
        for identifier in identifiers:
            try:
                self._places_of(self._client, np.asarray([identifier], np.int64))
            except (KeyError, IndexError, ValueError, OverflowError):
                return named(self._client, identifier)
        return f"a sample of client {shown(self._client)}"


class StoredData(FederatedData):
    """Clients whose samples are rows of a dataset.

    ``test`` is the server's test set as rows and places. Where every client has its own, ``test_owners`` names the
    client of each test sample, and only clients of the federation are in it.
    """

    def __init__(
        self,
        rows: Rows,
        samples: Mapping[Any, Samples],
        places: PlacesOf,
        test: tuple[Rows, Places],
        test_owners: tuple[Id, ...] | None = None,
    ) -> None:
        self.roster = IdSet(samples, what="client id")
        self._given = {}
        self._stored = {client: StoredClient(client, rows, samples[client], places) for client in self.roster}
        self._clients = self._stored
        self._test_rows, self._test_places = test
        self._test: tuple[Array, Array] | None = None
        self.test_owners = test_owners

    @property
    def test(self) -> tuple[Array, Array]:  # type: ignore[override]
        """The test samples, read on first use."""
        if self._test is None:
            self._test = self._test_rows.batch(self._test_places)
        return self._test

    def batch(self, client: Id, samples: Sequence[Id]) -> tuple[Array, Array]:
        return self._own(client).batch(samples)

    def _size(self, client: Id) -> int:
        return self._stored[client].size

    def contents(self, client: Id, ids: Iterable[Id]) -> Iterator[tuple[Id, bytes]]:
        wanted = list(ids)
        return zip(wanted, self._own(client).contents(wanted), strict=True)

    def _own(self, client: Id) -> StoredClient:
        """Return the samples of a client. Raise DataChanged if it is missing."""
        self[client]
        return self._stored[client]
