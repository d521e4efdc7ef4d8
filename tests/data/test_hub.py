"""The reader of the Hugging Face hub, on local parquet files with the hub's columns: the hub itself is not asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedforget.data.places import read_below
from fedforget.data.registry import DATASETS
from fedforget.data.rows import ImageRows
from fedforget.errors import DataDamaged
from tests.data import made_up

datasets = pytest.importorskip("datasets", reason="the extra 'data' is not installed")
PIL = pytest.importorskip("PIL.Image")


def write_images(folder: Path, splits: made_up.Splits, image: str, label: str) -> None:
    folder.mkdir(parents=True)
    for split, (pictures, labels) in splits.items():
        made = datasets.Dataset.from_dict(
            {image: [PIL.fromarray(picture) for picture in pictures], label: labels.tolist()},
            features=datasets.Features({image: datasets.Image(), label: datasets.Value("int64")}),
        )
        made.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))


@pytest.mark.parametrize(
    ("name", "image", "label", "shape", "classes"),
    [
        ("mnist", "image", "label", (28, 28), 10),
        ("fashion-mnist", "image", "label", (28, 28), 10),
        ("cifar-10", "img", "label", (32, 32, 3), 10),
        ("cifar-100", "img", "fine_label", (32, 32, 3), 100),
    ],
)
def test_images_of_the_hub_are_those_of_the_originals(
    tmp_path: Path, name: str, image: str, label: str, shape: tuple[int, ...], classes: int
) -> None:
    splits = made_up.images(shape, classes)
    write_images(tmp_path / name / "data", splits, image, label)
    source = read_below(DATASETS[name], tmp_path)
    assert source is not None
    assert isinstance(source.train, ImageRows)
    assert isinstance(source.test, ImageRows)
    assert np.array_equal(source.train.images, splits["train"][0])
    assert np.array_equal(source.train.labels, splits["train"][1])
    assert np.array_equal(source.test.images, splits["test"][0])
    if name == "mnist":
        made_up.write_idx(tmp_path / "other" / "mnist", splits)
        other = read_below(DATASETS["mnist"], tmp_path / "other")
        assert other is not None
        assert source.checksum() == other.checksum()


def test_other_columns_are_named(tmp_path: Path) -> None:
    write_images(tmp_path / "mnist", made_up.images((28, 28), 10), "picture", "label")
    with pytest.raises(DataDamaged, match="lacks image"):
        read_below(DATASETS["mnist"], tmp_path)


def test_truncated_parquet_is_named(tmp_path: Path) -> None:
    write_images(tmp_path / "mnist", made_up.images((28, 28), 10), "image", "label")
    path = tmp_path / "mnist" / "train-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataDamaged, match="parquet"):
        read_below(DATASETS["mnist"], tmp_path)


def test_writers_of_the_hub_keep_every_tenth_image_for_testing(tmp_path: Path) -> None:
    pictures, labels = made_up.images((28, 28), 62, 45)["train"]
    writers = ["f0001_00"] * 25 + ["f0002_00"] * 20
    made = datasets.Dataset.from_dict(
        {"image": [PIL.fromarray(picture) for picture in pictures], "writer_id": writers, "hsf_id": [0] * 45,
         "character": labels.tolist()},
        features=datasets.Features(
            {"image": datasets.Image(), "writer_id": datasets.Value("string"), "hsf_id": datasets.Value("int64"),
             "character": datasets.Value("int64")}
        ),
    )  # fmt: skip
    (tmp_path / "femnist").mkdir()
    made.to_parquet(str(tmp_path / "femnist" / "train-0.parquet"))
    source = read_below(DATASETS["femnist"], tmp_path)
    assert source is not None
    assert source.groups is not None
    assert [(len(group.train), len(group.test)) for group in source.groups.values()] == [(23, 2), (18, 2)]
    assert isinstance(source.test, ImageRows)
    assert np.array_equal(source.test.images, pictures[[9, 19, 34, 44]])


def test_roles_of_the_hub_are_put_together_again(tmp_path: Path) -> None:
    lines = {role: text.replace("\n", " ").replace("    ", " ") for role, text in
             made_up.roles({"LEAR": 1500, "FOOL": 1200}).items()}  # fmt: skip
    columns: dict[str, list[str]] = {"character_id": [], "x": [], "y": []}
    for role, text in lines.items():
        for n in range(len(text) - 80):
            for column, value in zip(columns, (role, text[n : n + 80], text[n + 80]), strict=True):
                columns[column].append(value)
    (tmp_path / "hub" / "shakespeare").mkdir(parents=True)
    datasets.Dataset.from_dict(columns).to_parquet(str(tmp_path / "hub" / "shakespeare" / "train.parquet"))
    made_up.write_roles(tmp_path / "leaf" / "shakespeare" / "roles.json", lines)
    hub, leaf = (read_below(DATASETS["shakespeare"], tmp_path / place) for place in ("hub", "leaf"))
    assert hub is not None
    assert leaf is not None
    assert hub.checksum() == leaf.checksum()
