"""A dataset with its partition: the samples of each client, the plan's record of it, and the clients' data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.ids import Id
from fedforget.data.natural import VIRTUAL_SAMPLES, natural_partition, virtual_partition, writer_of
from fedforget.data.partition import dirichlet_label_partition, equal_label_partition
from fedforget.data.registry import BETA, DIRICHLET, EQUAL, NATURAL, VIRTUAL, Dataset, Settings
from fedforget.data.rows import Places
from fedforget.data.source import Source
from fedforget.data.stored import Samples, StoredData
from fedforget.errors import PlanRefused, quoted

Owners = dict[Any, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Partition:
    """How a dataset is divided over clients: the kind, M (None: all natural clients), β and the seed."""

    kind: str
    clients: int | None
    beta: float
    seed: bytes

    @classmethod
    def of(cls, dataset: Dataset, kind: str | None, clients: int | None, beta: float | None, seed: bytes) -> Partition:
        """Return the partition with the dataset's defaults filled in."""
        chosen = dataset.partitions[0] if kind is None else kind
        if chosen not in dataset.partitions:
            raise PlanRefused(
                f"{dataset.name} cannot be partitioned by {quoted(chosen)}",
                hint=f"use one of: {', '.join(dataset.partitions)}",
            )
        if beta is not None and chosen not in (DIRICHLET, EQUAL):
            raise PlanRefused(f"beta means nothing to the partition {chosen}", hint="leave out --beta")
        if clients is None:
            clients = _VIRTUAL_CLIENTS if chosen == VIRTUAL else dataset.clients
        return cls(chosen, clients, BETA if beta is None else beta, seed)

    @classmethod
    def recorded(cls, settings: Settings) -> Partition:
        """Return the partition that a plan records."""
        clients = settings.get("clients")
        return cls(
            str(settings["partition"]), None if clients is None else int(clients), float(settings.get("beta", BETA)),
            bytes.fromhex(str(settings["partition_seed"])),
        )  # fmt: skip

    def settings(self) -> dict[str, str | int | float]:
        """Return what the plan records. No derived fact except M, which the seed and the data determine too."""
        found: dict[str, str | int | float] = {"partition": self.kind}
        if self.clients is not None:
            found["clients"] = self.clients
        if self.kind in (DIRICHLET, EQUAL):
            found["beta"] = self.beta
        return {**found, "partition_seed": self.seed.hex()}

    def owners(self, dataset: Dataset, source: Source) -> Owners:
        """Return each client's sample ids, ascending."""
        if self.kind in (DIRICHLET, EQUAL):
            split = dirichlet_label_partition if self.kind == DIRICHLET else equal_label_partition
            ids, clients = source.row_ids(), 1 if self.clients is None else self.clients
            found = split(source.labels, ids, clients=clients, beta=self.beta, seed=self.seed)
            return {client: np.asarray(own, np.int64) for client, own in found.items()}
        groups = source.groups or {}
        if self.kind == NATURAL:
            return dict(natural_partition(groups, clients=self.clients, minimum=dataset.least_samples, seed=self.seed))
        return dict(
            virtual_partition(
                groups, clients=self.clients or 0, minimum=dataset.least_samples, samples=VIRTUAL_SAMPLES,
                seed=self.seed,
            )
        )  # fmt: skip


_VIRTUAL_CLIENTS = 3_556


def federated(dataset: Dataset, source: Source, kind: str, owners: Mapping[Any, Samples]) -> StoredData:
    """Return the data of these clients, by reference to the dataset's rows, with the test samples."""
    if kind != NATURAL:
        return StoredData(source.train, owners, places_by(source, kind), (source.test, np.arange(len(source.test))))
    groups, each = source.groups or {}, dataset.test_each
    present = [client for client in groups if client in owners]
    own = [_spread(groups[client].test, each) for client in present]
    owner = tuple(client for client, places in zip(present, own, strict=True) for _ in places)
    places = np.concatenate([np.zeros(0, np.intp), *own]).astype(np.intp)
    return StoredData(source.train, owners, places_by(source, kind), (source.test, places), owner)


def _spread(test: range, most: int | None) -> Places:
    """Return all test samples of a client, or ``most`` of them at equal distances. Depends on this client alone."""
    if most is None or len(test) <= most:
        return np.asarray(test, np.intp)
    return np.asarray([test[place * len(test) // most] for place in range(most)], np.intp)


def places_by(source: Source, kind: str) -> Callable[[Id, NDArray[np.int64]], Places]:
    """Return the function from a client's sample ids to rows. It raises IndexError or KeyError for an unknown id."""
    groups = source.groups
    if groups is not None:

        def in_group(client: Id, ids: NDArray[np.int64]) -> Places:
            rows = groups[writer_of(str(client)) if kind == VIRTUAL else str(client)].train
            _require_below(ids, len(rows))
            return ids.astype(np.intp) + rows.start

        return in_group
    known = source.row_ids()
    order = np.argsort(known, kind="stable") if source.ids is not None else None

    def by_id(_: Id, ids: NDArray[np.int64]) -> Places:
        if order is None:
            _require_below(ids, len(known))
            return ids.astype(np.intp)
        found = np.searchsorted(known, ids, sorter=order)
        _require_below(found, len(known))
        places = order[found]
        if not np.array_equal(known[places], ids):
            raise KeyError("an id is not in the dataset")
        return places

    return by_id


def _require_below(ids: NDArray[np.integer], count: int) -> None:
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= count):
        raise IndexError("an id is not in the dataset")
