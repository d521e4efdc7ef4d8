"""The user's own data as a federation: arrays, torch Datasets and Hugging Face datasets, by small functions.

Each returns what ``Run(..., data=...)`` takes: client → samples. Ids must stay the same for as long as the run lives.
The row number is only as stable as the order of the rows: give a column of ids where rows are inserted or deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedforget.algorithm.ids import Id, canonical_id
from fedforget.data.tables import Sample, Table
from fedforget.errors import InvalidInput, shown

Clients = dict[Id, Mapping[Id, Sample]]


class Referenced(Mapping[Id, Sample]):
    """The samples of one client by reference: stable id → place, read when it is used."""

    def __init__(self, read: Callable[[int], Sample], places: Mapping[Id, int]) -> None:
        self._read, self._places = read, places

    def __getitem__(self, identifier: Id) -> Sample:
        return self._read(self._places[identifier])

    def __iter__(self) -> Iterator[Id]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def from_arrays(x: Any, y: Any, *, clients: Sequence[Any], ids: Sequence[Any] | None = None) -> Clients:
    """Return a federation on rows of arrays or tensors.

    ``clients``: the client of each row. ``ids``: the id of each row (default: its number).

    >>> data = from_arrays([[0.0], [1.0], [2.0]], [0, 1, 0], clients=["a", "b", "a"], ids=[10, 11, 12])
    >>> {client: dict(samples) for client, samples in data.items()}
    {'a': {10: ([0.0], 0), 12: ([2.0], 0)}, 'b': {11: ([1.0], 1)}}
    """
    if not len(x) == len(y) == len(clients):
        raise InvalidInput(
            f"there are {len(x)} rows of features, {len(y)} of targets and {len(clients)} clients",
            hint="give one target and one client for each row",
        )
    if len(clients) and (table := Table.of(x, y, clients, ids)) is not None:
        return table.clients_of()
    return _federation(lambda place: (x[place], y[place]), clients, ids)


def from_torch(dataset: Any, *, clients: Sequence[Any], ids: Sequence[Any] | None = None) -> Clients:
    """Return a federation on one torch ``Dataset`` of (x, y), with the client, and if given the id, of each index."""
    if len(dataset) != len(clients):
        raise InvalidInput(
            f"the dataset has {len(dataset)} samples, and {len(clients)} clients are given",
            hint="give the client of each sample",
        )
    return _federation(lambda place: dataset[place], clients, ids)


def from_hugging_face(
    dataset: Any,
    *,
    client: str,
    features: str,
    target: str,
    sample_id: str | None = None,
    convert: Callable[[Any], Any] | None = None,
) -> Clients:
    """Return a federation on one split of a Hugging Face dataset, by the names of its columns.

    ``sample_id``: the column with ids (default: the row number). ``convert``: makes an array of the features, such as
    an image; it must be a constant function, with nothing computed from other rows.
    """
    named = [name for name in (client, features, target, sample_id) if name is not None]
    missing = [name for name in named if name not in dataset.column_names]
    if missing:
        raise InvalidInput(
            f"the dataset has no column {', '.join(map(shown, missing))}",
            hint=f"its columns are: {', '.join(map(str, dataset.column_names))}",
        )

    def read(place: int) -> Sample:
        row = dataset[place]
        return row[features] if convert is None else convert(row[features]), row[target]

    return _federation(read, list(dataset[client]), None if sample_id is None else list(dataset[sample_id]))


def _federation(read: Callable[[int], Sample], clients: Sequence[Any], ids: Sequence[Any] | None) -> Clients:
    if ids is not None and len(ids) != len(clients):
        raise InvalidInput(f"there are {len(clients)} samples and {len(ids)} ids", hint="give one id for each sample")
    places: dict[Id, dict[Id, int]] = {}
    for place, owner in enumerate(clients):
        name = canonical_id(_plain(owner))
        identifier = canonical_id(place if ids is None else _plain(ids[place]))
        own = places.setdefault(name, {})
        if identifier in own:
            raise InvalidInput(
                f"client {shown(name)} has the sample id {shown(identifier)} twice", hint="give each sample its own id"
            )
        own[identifier] = place
    return {name: Referenced(read, own) for name, own in places.items()}


def _plain(value: Any) -> Any:
    """Return the number in a tensor of one element, or the value."""
    return value.item() if hasattr(value, "item") else value
