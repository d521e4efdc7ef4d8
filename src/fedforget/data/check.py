"""Check a dataset: whether it is found, its size, and whether its checksum is the known one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedforget.data.digits import Digits
from fedforget.data.places import find
from fedforget.data.registry import DATASETS, DIGITS, NATURAL, dataset_of
from fedforget.errors import DataMissing


@dataclass(frozen=True, slots=True)
class DataCheck:
    """The result of checking a dataset. ``checksum_ok`` is None if no checksum is known for the data found.

    ``clients``: natural clients. ``clients_used``: those that the partition ``natural`` takes.
    """

    name: str
    found: bool
    train: int | None = None
    test: int | None = None
    clients: int | None = None
    clients_used: int | None = None
    which: str | None = None
    checksum: str | None = None
    checksum_ok: bool | None = None
    place: str | None = None


def check(name: str, data_dir: Path | None = None) -> DataCheck:
    """Find and read a dataset. Raises DataMissing or DataDamaged."""
    if name == DIGITS:
        train, test = Digits().counts
        return DataCheck(name, found=True, train=train, test=test, which="whole", place="scikit-learn")
    dataset = dataset_of(name)
    source = find(dataset, data_dir)
    natural = NATURAL in dataset.partitions
    groups = (source.groups or {}).values()
    known, checksum = dataset.checksums.get((source.train_count, source.test_count)), source.checksum()
    return DataCheck(
        name,
        found=True,
        train=source.train_count,
        test=source.test_count,
        clients=len(groups) if natural else None,
        clients_used=sum(len(group.train) >= dataset.least_samples for group in groups) if natural else None,
        which=source.which,
        checksum=checksum,
        checksum_ok=None if known is None else known == checksum,
        place=source.place,
    )


def doubt_about(name: str, checksum: str | None, which: str | None, place: str) -> str | None:
    """Why data may not be the published ones, in one line; None if their checksum is a known one.

    The checksum is of the content: it also tells files of one dataset under another's name, and swapped splits.
    """
    if name == DIGITS or checksum in dataset_of(name).checksums.values():
        return None
    other = next((title for title, each in DATASETS.items() if checksum in each.checksums.values()), None)
    if other is not None:
        return f"the data of {name} in {place} are those of {other}"
    return f"the {which} of {name} in {place} has no checksum that is known: it is altered, or not the published data"


def is_found(name: str, data_dir: Path | None = None) -> str | None:
    """Return the place of a dataset without downloading it; None if it is not found."""
    if name == DIGITS:
        return "scikit-learn"
    try:
        return find(dataset_of(name), data_dir, online=False).place
    except DataMissing:
        return None
