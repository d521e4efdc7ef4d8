"""Readers of the formats: one function per format, which returns a dataset, or None if the folder lacks the format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedforget.data import cifar_batches, hub, idx, leaf_json, npz
from fedforget.data.rows import WINDOW, Array, ImageRows, TextWindows, codes_of
from fedforget.data.source import SUBSET, WHOLE, Group, Source, grouped
from fedforget.errors import DataDamaged

Splits = Mapping[str, tuple[Array, Array]]  # train and test: images and labels
_LEAST_WINDOWS = 100  # of a role; LEAF's rule with the paper's minimum
_CUT = WINDOW - 1  # windows between training and test that share characters with both
_PER_CLASS = 500  # training images of a class of CIFAR-100


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a dataset that do not depend on its format."""

    name: str
    classes: int
    whole: tuple[int, int]  # training and test samples, or writers and 0
    mean: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()

    def rows(self, images: Array, labels: Array, place: str) -> ImageRows:
        if len(labels) and int(labels.max()) >= self.classes:
            raise DataDamaged(
                f"{place} has the label {int(labels.max())}, but {self.name} has {self.classes} classes",
                hint="get the file again",
            )
        return ImageRows(images, labels, self.mean, self.spread)


def simulated(shape: Shape, splits: Splits, place: str, ids: Array | None = None) -> Source:
    """Images without natural clients."""
    train, test = (shape.rows(*splits[split], place) for split in ("train", "test"))
    which = WHOLE if (len(train), len(test)) == shape.whole else SUBSET
    if ids is not None and len(np.unique(ids)) != len(train):
        raise DataDamaged(f"{place} has the same image twice", hint="get the file again")
    plain = ids is None or np.array_equal(ids, np.arange(len(train)))
    return Source(shape.name, which, train, test, place, None if plain or ids is None else ids.astype(np.int64))


def from_idx(shape: Shape, folder: Path) -> Source | None:
    if not idx.holds_idx(folder):
        return None
    return simulated(shape, {split: idx.read_split(folder, split) for split in idx.NAMES}, str(folder))


def from_npz(shape: Shape, folder: Path) -> Source | None:
    """Ids are positions in the whole dataset (``index_train``), or 500 x class + position in the class."""
    if (path := npz.find_npz(folder)) is None:
        return None
    found = npz.read_npz(path, "index_train", "rank_train")
    ids = found.get("index_train")
    if "rank_train" in found:
        ids = _PER_CLASS * found["y_train"].astype(np.int64) + found["rank_train"]
    splits = {split: (found[f"x_{split}"], found[f"y_{split}"]) for split in ("train", "test")}
    return simulated(shape, splits, str(path), ids)


def from_batches(train: Sequence[str], test: Sequence[str], label: str, shape: Shape, folder: Path) -> Source | None:
    if not any((folder / name).is_file() for name in (*train, *test)):
        return None
    splits = {"train": train, "test": test}
    read = {split: cifar_batches.read_batches(folder, names, label) for split, names in splits.items()}
    return simulated(shape, read, str(folder))


def written(
    shape: Shape, train: Mapping[str, tuple[Array, Array]], test: Mapping[str, tuple[Array, Array]], place: str
) -> Source:
    """Images by writer, from each writer's arrays."""
    writers = list(train)
    rows, ranges = [], []
    for split in (train, test):
        own = [split.get(writer, (train[writer][0][:0], train[writer][1][:0])) for writer in writers]
        edges = np.cumsum([0, *(len(labels) for _, labels in own)]).tolist()
        ranges.append([range(*edge) for edge in pairwise(edges)])
        joined = np.concatenate([images for images, _ in own]), np.concatenate([labels for _, labels in own])
        rows.append(shape.rows(*joined, place))
    which = WHOLE if len(writers) >= shape.whole[0] else SUBSET
    groups = {writer: Group(*both) for writer, *both in zip(writers, *ranges, strict=True)}
    return Source(shape.name, which, rows[0], rows[1], place, groups=groups)


def from_writers_npz(shape: Shape, folder: Path) -> Source | None:
    if (path := npz.find_npz(folder)) is None:
        return None
    found = npz.read_npz(path, "writer_train", "writer_test", "writers")
    if not found.keys() >= {"writer_train", "writer_test", "writers"}:
        raise DataDamaged(f"{path} is truncated or altered: it lacks its writers", hint="get the file again")
    rows, ranges = [], []
    for split in ("train", "test"):
        rows.append(shape.rows(found[f"x_{split}"], found[f"y_{split}"], str(path)))
        ranges.append(grouped(found[f"writer_{split}"], len(found["writers"]), str(path)))
    which = WHOLE if len(found["writers"]) >= shape.whole[0] else SUBSET
    groups = {str(writer): Group(*both) for writer, *both in zip(found["writers"], *ranges, strict=True)}
    return Source(shape.name, which, rows[0], rows[1], str(path), groups=groups)


def from_writers_json(shape: Shape, folder: Path) -> Source | None:
    for base in (folder, folder / "data"):
        if leaf_json.find_json(base / "train") and leaf_json.find_json(base / "test"):
            return written(
                shape, leaf_json.read_writers(base / "train"), leaf_json.read_writers(base / "test"), str(base)
            )
    return None


def spoken(shape: Shape, lines: Mapping[str, str], place: str) -> Source:
    """Windows by role, split by LEAF's rule: the first 90 % for training, then 79 windows unused, the rest for testing.

    Roles with fewer than 100 windows, or without a test window, are left out.
    """
    parts, groups, start = [], {}, 0
    for role, raw in lines.items():
        text = re.sub("  +", " ", raw.replace("\n", " "))
        windows = len(text) - WINDOW
        train = windows * 9 // 10
        if windows < _LEAST_WINDOWS or windows - train - _CUT <= 0:
            continue
        parts.append(codes_of(text))
        groups[role] = Group(range(start, start + train), range(start + train + _CUT, start + windows))
        start += len(text)
    rows = TextWindows(np.concatenate([np.zeros(0, np.uint8), *parts]))
    return Source(shape.name, WHOLE if len(lines) == shape.whole[0] else SUBSET, rows, rows, place, groups=groups)


def from_roles_json(shape: Shape, folder: Path) -> Source | None:
    for base in (folder, folder / "data" / "all_data", folder / "all_data"):
        if leaf_json.find_json(base):
            return spoken(shape, leaf_json.read_roles(base), str(base))
    return None


def hub_images(image: str, label: str, shape: Shape, hub_id: str, folder: Path | None) -> Source:
    splits = hub.load(hub_id, folder)
    read = {split: hub.images_of(splits[split], image, label) for split in ("train", "test") if split in splits}
    if len(read) < 2:  # noqa: PLR2004 (train and test)
        raise DataDamaged(f"{folder or hub_id} has no {'test' if 'train' in read else 'train'} split", hint="add it")
    return simulated(shape, read, str(folder or hub_id))


def hub_writers(shape: Shape, hub_id: str, folder: Path | None) -> Source:
    return written(shape, *hub.writers_of(hub.load(hub_id, folder)["train"]), str(folder or hub_id))


def hub_roles(shape: Shape, hub_id: str, folder: Path | None) -> Source:
    return spoken(shape, hub.roles_of(hub.load(hub_id, folder)["train"]), str(folder or hub_id))


HubReader = Callable[[Shape, str, Path | None], Source]
Reader = Callable[[Shape, Path], Source | None]
CIFAR_10 = partial(from_batches, [f"data_batch_{number}" for number in range(1, 6)], ["test_batch"], "labels")
CIFAR_100 = partial(from_batches, ["train"], ["test"], "fine_labels")
