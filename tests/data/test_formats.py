"""Every format of a dataset gives the same samples; what is missing, truncated or altered is named."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedforget.data.places import read_below
from fedforget.data.registry import DATASETS
from fedforget.data.rows import LETTERS, ImageRows, TextWindows, codes_of
from fedforget.data.source import SUBSET, Source
from fedforget.errors import DataDamaged
from tests.data import made_up

MNIST = made_up.images((28, 28), 10)
CIFAR = made_up.images((32, 32, 3), 10)
CIFAR_100 = made_up.images((32, 32, 3), 100)
WRITERS = made_up.writers({"f0001_07": 110, "f0002_11": 45, "f0003_30": 120})


def read(name: str, base: Path) -> Source:
    source = read_below(DATASETS[name], base)
    assert source is not None
    return source


def pictures(source: Source) -> list[np.ndarray]:
    assert isinstance(source.train, ImageRows)
    assert isinstance(source.test, ImageRows)
    return [source.train.images, source.train.labels, source.test.images, source.test.labels]


def same(source: Source, splits: made_up.Splits) -> bool:
    wanted = [*splits["train"], *splits["test"]]
    return all(np.array_equal(here, there) for here, there in zip(pictures(source), wanted, strict=True))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_give_their_images(tmp_path: Path, name: str, zipped: bool) -> None:
    made_up.write_idx(tmp_path / name, MNIST, zipped=zipped)
    source = read(name, tmp_path)
    assert same(source, MNIST)
    assert (source.which, source.train_count, source.test_count) == (SUBSET, 60, 20)


def test_idx_without_gzip_is_mapped_not_read(tmp_path: Path) -> None:
    made_up.write_idx(tmp_path / "mnist", MNIST, zipped=False)
    source = read("mnist", tmp_path)
    assert isinstance(source.train, ImageRows)
    assert isinstance(source.train.images, np.memmap)


def test_folders_of_other_programs_are_known(tmp_path: Path) -> None:
    made_up.write_idx(tmp_path / "MNIST" / "raw", MNIST)
    made_up.write_batches(tmp_path / "cifar-10-batches-py", CIFAR)
    assert same(read("mnist", tmp_path), MNIST)
    assert same(read("cifar-10", tmp_path), CIFAR)


def test_the_folder_itself_is_taken_only_under_its_name(tmp_path: Path) -> None:
    """MNIST's files and Fashion-MNIST's have the same names: one must not pass for the other."""
    made_up.write_idx(tmp_path / "mnist", MNIST)
    assert read_below(DATASETS["mnist"], tmp_path / "mnist") is not None
    assert read_below(DATASETS["fashion-mnist"], tmp_path / "mnist") is None


def test_cifar_10_as_pickles_and_as_npz_are_the_same(tmp_path: Path) -> None:
    made_up.write_batches(tmp_path / "a" / "cifar-10", CIFAR)
    made_up.write_npz(tmp_path / "b" / "cifar-10" / "any.npz", CIFAR, index_train=np.arange(60))
    pickled, zipped = read("cifar-10", tmp_path / "a"), read("cifar-10", tmp_path / "b")
    assert same(pickled, CIFAR)
    assert same(zipped, CIFAR)
    assert pickled.checksum() == zipped.checksum()


def test_cifar_100_takes_the_fine_labels(tmp_path: Path) -> None:
    made_up.write_batches(tmp_path / "cifar-100-python", CIFAR_100, label="fine_labels")
    assert same(read("cifar-100", tmp_path), CIFAR_100)


def test_ids_of_a_subset_are_positions_in_the_whole(tmp_path: Path) -> None:
    places = np.random.default_rng(1).permutation(50_000)[:60].astype(np.int32)
    made_up.write_npz(tmp_path / "cifar-10" / "part.npz", CIFAR, index_train=places)
    assert read("cifar-10", tmp_path).row_ids().tolist() == places.tolist()


def test_ids_of_cifar_100s_subset_are_class_and_rank(tmp_path: Path) -> None:
    ranks = np.arange(60, dtype=np.int16)
    made_up.write_npz(tmp_path / "cifar-100" / "part.npz", CIFAR_100, rank_train=ranks)
    ids = read("cifar-100", tmp_path).row_ids()
    assert ids.tolist() == [500 * int(label) + rank for rank, label in enumerate(CIFAR_100["train"][1])]


def test_of_two_archives_the_larger_is_taken(tmp_path: Path) -> None:
    made_up.write_npz(tmp_path / "cifar-10" / "a.npz", {split: (x[:10], y[:10]) for split, (x, y) in CIFAR.items()})
    made_up.write_npz(tmp_path / "cifar-10" / "b.npz", CIFAR)
    assert read("cifar-10", tmp_path).train_count == 60


def test_femnist_as_npz_and_as_leafs_json_are_the_same(tmp_path: Path) -> None:
    made_up.write_writers_npz(tmp_path / "a" / "femnist" / "some.npz", WRITERS)
    made_up.write_writers_json(tmp_path / "b" / "femnist" / "data", WRITERS)
    zipped, plain = read("femnist", tmp_path / "a"), read("femnist", tmp_path / "b")
    assert zipped.checksum() == plain.checksum()
    assert zipped.groups == plain.groups
    assert zipped.groups is not None
    group = zipped.groups["f0002_11"]
    assert isinstance(zipped.train, ImageRows)
    assert np.array_equal(zipped.train.images[group.train.start : group.train.stop], WRITERS["f0002_11"]["train"][0])


def test_shakespeare_is_split_by_leafs_rule(tmp_path: Path) -> None:
    """First 90 % of the windows, then 79 unused, the rest for testing; no test window: the role is left out."""
    lines = made_up.roles({"LEAR": 2000, "FOOL": 870, "GHOST": 860, "PAGE": 170})
    made_up.write_roles(tmp_path / "shakespeare" / "roles.json.gz", lines)
    source = read("shakespeare", tmp_path)
    text = {role: " ".join(raw.replace("\n", " ").split(" ")) for role, raw in lines.items()}
    assert source.groups is not None
    assert isinstance(source.train, TextWindows)
    assert set(source.groups) <= {"LEAR", "FOOL", "GHOST"}
    role = text["LEAR"].replace("    ", " ")
    windows = len(role) - 80
    group = source.groups["LEAR"]
    assert (len(group.train), group.test.start, group.test.stop) == (windows * 9 // 10, windows * 9 // 10 + 79, windows)
    x, y = source.train.batch(np.array([group.train[5]]))
    assert "".join(LETTERS[code] for code in x[0]) == role[5:85]
    assert LETTERS[y[0]] == role[85]
    for own in source.groups.values():
        assert len(own.test) > 0


def test_windows_of_training_and_test_share_no_character_to_predict(tmp_path: Path) -> None:
    """Windows overlap by 79 characters: without the gap, test text would be in training windows."""
    made_up.write_roles(tmp_path / "shakespeare" / "roles.json", made_up.roles({"LEAR": 3000, "FOOL": 1500}))
    for group in (read("shakespeare", tmp_path).groups or {}).values():
        assert (
            group.test.start >= group.train.stop - 1 + 80
        )  # the last training window's target is not in a test window


def test_windows_put_together_give_the_same_text(tmp_path: Path) -> None:
    lines = {"LEAR": made_up.roles({"LEAR": 1500})["LEAR"].replace("\n", " ").replace("    ", " ")}
    made_up.write_roles(tmp_path / "a" / "shakespeare" / "roles.json", lines)
    text = lines["LEAR"]
    x, y = [text[n : n + 80] for n in range(len(text) - 80)], list(text[80:])
    content: dict[str, Any] = {"users": ["LEAR"], "user_data": {"LEAR": {"x": x, "y": y}}}
    folder = tmp_path / "b" / "shakespeare" / "data" / "all_data"
    folder.mkdir(parents=True)
    (folder / "all_data.json").write_text(json.dumps(content))
    assert read("shakespeare", tmp_path / "a").checksum() == read("shakespeare", tmp_path / "b").checksum()
    content["user_data"]["LEAR"]["x"][7] = "?" * 80
    (folder / "all_data.json").write_text(json.dumps(content))
    with pytest.raises(DataDamaged, match="do not follow"):
        read("shakespeare", tmp_path / "b")


def test_codes_are_positions_in_the_fixed_vocabulary() -> None:
    assert codes_of("\n !é}").tolist() == [0, 1, 2, 0, len(LETTERS) - 1]
    assert len(set(LETTERS)) == len(LETTERS) == 80


# Damage


def cut(path: Path, to: float) -> None:
    os.truncate(path, int(path.stat().st_size * to))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("to", [0.0, 0.02, 0.5, 0.97])
def test_truncated_idx_file_is_named(tmp_path: Path, zipped: bool, name: str, to: float) -> None:
    made_up.write_idx(tmp_path / "mnist", MNIST, zipped=zipped)
    path = tmp_path / "mnist" / f"{name}{'.gz' if zipped else ''}"
    cut(path, to)
    with pytest.raises(DataDamaged, match=name):
        read("mnist", tmp_path)


def test_idx_file_that_is_longer_than_its_header_says_is_refused(tmp_path: Path) -> None:
    made_up.write_idx(tmp_path / "mnist", MNIST, zipped=False)
    with (tmp_path / "mnist" / "train-labels-idx1-ubyte").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(DataDamaged, match="train-labels"):
        read("mnist", tmp_path)


def test_altered_gzip_is_named(tmp_path: Path) -> None:
    made_up.write_idx(tmp_path / "mnist", MNIST)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataDamaged, match="train-images"):
        read("mnist", tmp_path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    made_up.write_idx(tmp_path / "mnist", MNIST)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataDamaged, match="t10k-labels-idx1-ubyte is missing"):
        read("mnist", tmp_path)


def test_images_and_labels_of_other_sets_are_refused(tmp_path: Path) -> None:
    made_up.write_idx(tmp_path / "mnist", {**MNIST, "train": (MNIST["train"][0], MNIST["train"][1][:-1])})
    with pytest.raises(DataDamaged, match="shape"):
        read("mnist", tmp_path)


def test_label_that_the_dataset_does_not_have_is_refused(tmp_path: Path) -> None:
    made_up.write_idx(tmp_path / "mnist", made_up.images((28, 28), 62))
    with pytest.raises(DataDamaged, match="10 classes"):
        read("mnist", tmp_path)


@pytest.mark.parametrize("to", [0.0, 0.5, 0.99])
def test_truncated_npz_is_named(tmp_path: Path, to: float) -> None:
    path = tmp_path / "cifar-10" / "part.npz"
    made_up.write_npz(path, CIFAR)
    cut(path, to)
    with pytest.raises(DataDamaged, match=r"part\.npz"):
        read("cifar-10", tmp_path)


def test_npz_with_pickles_is_refused(tmp_path: Path) -> None:
    made_up.write_npz(tmp_path / "cifar-10" / "part.npz", CIFAR, index_train=np.array([object()] * 60))
    with pytest.raises(DataDamaged, match=r"part\.npz"):
        read("cifar-10", tmp_path)


@pytest.mark.parametrize("to", [0.0, 0.5, 0.99])
def test_truncated_batch_is_named(tmp_path: Path, to: float) -> None:
    made_up.write_batches(tmp_path / "cifar-10", CIFAR)
    cut(tmp_path / "cifar-10" / "data_batch_3", to)
    with pytest.raises(DataDamaged, match="data_batch_3"):
        read("cifar-10", tmp_path)


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_no_code_in_a_batch_is_run(tmp_path: Path) -> None:
    made_up.write_batches(tmp_path / "cifar-10", CIFAR)
    mark = tmp_path / "mark"
    (tmp_path / "cifar-10" / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil(mark)}))
    with pytest.raises(DataDamaged, match="data_batch_1"):
        read("cifar-10", tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"users": ["A"]}', b'{"users": ["A"], "user_data": {"A": 3}}'])
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "shakespeare"
    folder.mkdir()
    (folder / "roles.json.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataDamaged, match=r"roles\.json\.gz"):
        read("shakespeare", tmp_path)
