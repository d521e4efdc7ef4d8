"""The built-in datasets, one entry each: formats, folders, hub id, clients, model, checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from fedforget.data.formats import (
    CIFAR_10,
    CIFAR_100,
    HubReader,
    Reader,
    Shape,
    from_idx,
    from_npz,
    from_roles_json,
    from_writers_json,
    from_writers_npz,
    hub_images,
    hub_roles,
    hub_writers,
)
from fedforget.data.rows import LETTERS
from fedforget.errors import InvalidInput, quoted

DIGITS = "digits"  # comes with scikit-learn, and needs no files
DIRICHLET, EQUAL, NATURAL, VIRTUAL = "dirichlet", "equal", "natural", "virtual"
BETA = 0.5  # the paper's

Settings = Mapping[str, str | int | float]
Counts = tuple[int, int]
_BY_LABEL = (DIRICHLET, EQUAL)
_IMAGENET: tuple[tuple[float, ...], ...] = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of a pre-trained VGG16
_IDX = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, or .gz"


@dataclass(frozen=True, slots=True)
class Dataset:
    """Where a dataset is found, how it is read, and what its clients are."""

    shape: Shape
    title: str
    folders: tuple[str, ...]  # inside the data directory; the first is where the docs put it
    files: str  # a description of the folder's files
    readers: tuple[Reader, ...]
    hub_id: str
    hub_reader: HubReader
    partitions: tuple[str, ...]  # allowed ones; the first is the default
    models: tuple[Settings, ...]  # those that fit its samples; the first is the default
    clients: int | None  # M of the default partition; None: all natural clients
    checksums: Mapping[Counts, str] = field(default_factory=dict)  # known ones, by training and test samples
    least_samples: int = 1  # of a natural client
    test_each: int | None = None  # test samples per natural client that are measured; None: all

    @property
    def name(self) -> str:
        return self.shape.name


def _cnn(classes: int) -> tuple[Settings, ...]:
    cnn: Settings = {"name": "cnn", "side": 28, "channels": 1, "hidden": 2048, "classes": classes}
    return cnn, {"name": "flat_mlp", "inputs": 28 * 28, "hidden": 64, "classes": classes}


def _vgg16(classes: int) -> tuple[Settings, ...]:
    vgg16: Settings = {"name": "vgg16", "hidden": 512, "classes": classes}
    return vgg16, {"name": "flat_mlp", "inputs": 3 * 32 * 32, "hidden": 64, "classes": classes}


_ALL = (
    Dataset(
        Shape("mnist", 10, (60_000, 10_000)), "handwritten digits", ("mnist", "MNIST/raw", "MNIST"), _IDX,
        (from_idx,), "ylecun/mnist", partial(hub_images, "image", "label"), _BY_LABEL, _cnn(10), 300,
        {(60_000, 10_000): "9dbb803b90dd327501b595355866c87a"},
    ),
    Dataset(
        Shape("fashion-mnist", 10, (60_000, 10_000)), "pictures of clothes",
        ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"), _IDX,
        (from_idx,), "zalando-datasets/fashion_mnist", partial(hub_images, "image", "label"), _BY_LABEL, _cnn(10), 300,
        {(60_000, 10_000): "0cb20de8e90cfa654eb9281927392a4d"},
    ),
    Dataset(
        Shape("cifar-10", 10, (50_000, 10_000), *_IMAGENET), "small photographs in 10 classes",
        ("cifar-10", "cifar-10-batches-py", "cifar-10/cifar-10-batches-py"),
        "data_batch_1 to data_batch_5 and test_batch (the python version), or an .npz",
        (CIFAR_10, from_npz), "uoft-cs/cifar10", partial(hub_images, "img", "label"), _BY_LABEL, _vgg16(10), 600,
        {(50_000, 10_000): "ff60ee05e004964096dbbb4ff762a8ba", (13_000, 3_000): "e00ecd03cc7f131d5540148e2c873003"},
    ),
    Dataset(
        Shape("cifar-100", 100, (50_000, 10_000), *_IMAGENET), "small photographs in 100 classes",
        ("cifar-100", "cifar-100-python", "cifar-100/cifar-100-python"),
        "train and test (the python version), or an .npz",
        (CIFAR_100, from_npz), "uoft-cs/cifar100", partial(hub_images, "img", "fine_label"), _BY_LABEL, _vgg16(100),
        600, {(13_000, 3_000): "1b377946a91e61eb5b14d8cbaca34cce"},
    ),
    Dataset(
        Shape("femnist", 62, (3_500, 0)), "handwritten characters by writer", ("femnist",),
        "LEAF's train/*.json and test/*.json, or an .npz",
        (from_writers_npz, from_writers_json), "flwrlabs/femnist", hub_writers, (NATURAL, VIRTUAL), _cnn(62), None,
        {(42_614, 4_808): "f793ada9c95b928ffdae2ced511e084f"}, least_samples=100,
    ),
    Dataset(
        Shape("shakespeare", len(LETTERS), (1_129, 0)), "lines by speaking role, as windows of 80 characters",
        ("shakespeare",), "LEAF's JSON of all roles, with or without gzip",
        (from_roles_json,), "flwrlabs/shakespeare", hub_roles, (NATURAL,),
        ({"name": "lstm", "letters": len(LETTERS), "embedding": 8, "hidden": 256},), None,
        {(3_678_451, 356_921): "88305f88347106963bbe64876ed7f083"}, test_each=8,
    ),
)  # fmt: skip

DATASETS: Mapping[str, Dataset] = {dataset.name: dataset for dataset in _ALL}
NAMES = (DIGITS, *DATASETS)


def dataset_of(name: str) -> Dataset:
    """Return the entry of a dataset that is read from files."""
    require_known(name)
    return DATASETS[name]


def require_known(name: str) -> None:
    if name not in NAMES:
        raise InvalidInput(
            f"unknown dataset {quoted(name)}",
            hint=f"use one of: {', '.join(NAMES)}; or bring your own with fedforget.Run",
        )
