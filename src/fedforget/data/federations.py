"""Federations on the built-in datasets: chosen by a caller, or restored from a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedforget.algorithm.ids import Id
from fedforget.data.digits import Digits
from fedforget.data.federated import FederatedData
from fedforget.data.ownership import Owners, Partition, federated
from fedforget.data.partition import equal_label_partition
from fedforget.data.places import find
from fedforget.data.registry import BETA, DIGITS, DIRICHLET, EQUAL, Dataset, Settings, dataset_of, require_known
from fedforget.data.source import Source
from fedforget.data.stored import Samples
from fedforget.errors import DataChanged, InvalidInput, PlanRefused, quoted

_DIGITS_MODEL: Settings = {"name": "mlp", "inputs": 64, "hidden": 64, "classes": 10}
_DIGITS_CLIENTS = 60


@dataclass(frozen=True, slots=True)
class DataChoice:
    """A dataset, its partition and its directory; None selects the dataset's default."""

    name: str = DIGITS
    clients: int | None = None
    partition: str | None = None
    beta: float | None = None
    data_dir: Path | None = None


class Federation(Protocol):
    """A dataset that is partitioned over clients, before any data are left out."""

    @property
    def models(self) -> tuple[Settings, ...]:
        """The models that fit the data; the first is the default."""
        ...

    def settings(self) -> dict[str, str | int | float]:
        """Return what the plan records: enough to find the data and to partition them again, and no path."""
        ...

    def owners(self) -> Mapping[Any, Any]:
        """Return each client's sample ids."""
        ...

    def sizes(self) -> list[int]:
        """Return the number of samples of each client."""
        ...

    def data(self, owners: Mapping[Any, Any]) -> FederatedData:
        """Return the data of clients with these sample ids, or with functions that look them up."""
        ...


@dataclass(frozen=True, slots=True)
class DigitsFederation:
    """scikit-learn's digits, which need no files."""

    dataset: Digits
    clients: int
    beta: float
    partition_seed: bytes
    partition: str = DIRICHLET

    @property
    def models(self) -> tuple[Settings, ...]:
        return (_DIGITS_MODEL,)

    def settings(self) -> dict[str, str | int | float]:
        plain: dict[str, str | int | float] = {
            "name": DIGITS, "clients": self.clients, "beta": self.beta, "partition_seed": self.partition_seed.hex(),
        }  # fmt: skip
        return plain if self.partition == DIRICHLET else {**plain, "partition": self.partition}

    def owners(self) -> dict[int, list[int]]:
        if self.partition == DIRICHLET:
            return self.dataset.partition(clients=self.clients, beta=self.beta, seed=self.partition_seed)
        rows, labels = self.dataset.training_rows, self.dataset.training_labels
        return equal_label_partition(labels, rows, clients=self.clients, beta=self.beta, seed=self.partition_seed)

    def sizes(self) -> list[int]:
        return [len(rows) for rows in self.owners().values()]

    def data(self, owners: Mapping[Id, Any]) -> FederatedData:
        return self.dataset.federated({client: own() if callable(own) else own for client, own in owners.items()})


@dataclass(frozen=True, slots=True)
class StoredFederation:
    """A dataset that was read from files or from the hub."""

    dataset: Dataset
    source: Source
    partition: Partition

    @property
    def models(self) -> tuple[Settings, ...]:
        return self.dataset.models

    def settings(self) -> dict[str, str | int | float]:
        found = {"which": self.source.which, "checksum": self.source.checksum()}
        return {"name": self.dataset.name, **self.partition.settings(), **found}

    def owners(self) -> Owners:
        return self.partition.owners(self.dataset, self.source)

    def sizes(self) -> list[int]:
        return [len(own) for own in self.owners().values()]

    def data(self, owners: Mapping[Any, Samples]) -> FederatedData:
        return federated(self.dataset, self.source, self.partition.kind, owners)


def chosen(choice: DataChoice, seed: bytes, *, online: bool = True) -> Federation:
    """Read the chosen dataset and partition it by a seed. ``online``: download it if it is in no directory."""
    require_known(choice.name)
    if choice.name == DIGITS:
        kind = choice.partition or DIRICHLET
        if kind not in (DIRICHLET, EQUAL):
            raise PlanRefused(
                f"digits cannot be partitioned by {quoted(kind)}", hint=f"use one of: {DIRICHLET}, {EQUAL}"
            )
        clients = _DIGITS_CLIENTS if choice.clients is None else choice.clients
        return DigitsFederation(Digits(), clients, BETA if choice.beta is None else choice.beta, seed, kind)
    dataset = dataset_of(choice.name)
    partition = Partition.of(dataset, choice.partition, choice.clients, choice.beta, seed)
    return StoredFederation(dataset, find(dataset, choice.data_dir, online=online), partition)


def recorded(settings: Settings, data_dir: Path | None, run: Path) -> Federation:
    """Find the dataset that a plan records, and refuse a subset for the whole or the other way round."""
    name = str(settings["name"])
    if name == DIGITS:
        seed, kind = bytes.fromhex(str(settings["partition_seed"])), str(settings.get("partition", DIRICHLET))
        return DigitsFederation(Digits(), int(settings["clients"]), float(settings["beta"]), seed, kind)
    dataset, partition = dataset_of(name), Partition.recorded(settings)
    if partition.kind not in dataset.partitions:
        raise ValueError(f"the partition {quoted(partition.kind)}")
    source = find(dataset, data_dir)
    if source.which != settings["which"]:
        raise DataChanged(
            f"{run} was made with the {settings['which']} of {name}, but {source.place} holds the {source.which}",
            hint="give --data-dir with the data that the run began with",
        )
    return StoredFederation(dataset, source, partition)


def model_settings(models: tuple[Settings, ...], name: str | None) -> Settings:
    """Return the settings of one of the models that fit the data: the default, or the one that is named."""
    by_name = {str(model["name"]).removeprefix("flat_"): model for model in models}
    wanted = next(iter(by_name)) if name is None else name
    if wanted not in by_name:
        raise InvalidInput(
            f"the model {quoted(wanted)} does not fit this dataset", hint=f"use one of: {', '.join(by_name)}"
        )
    return by_name[wanted]
