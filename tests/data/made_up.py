"""Small datasets with made-up content, written in the formats of the real ones."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Splits = dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]
IDX_NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
LINES = "Now is the winter of our discontent\n   Made glorious summer by this sun of York; And all the clouds! "


def images(shape: tuple[int, ...], classes: int, train: int = 60, test: int = 20, seed: int = 0) -> Splits:
    """Each class has its own bright corner, so that a small network learns something."""
    rng = np.random.default_rng(seed)
    made = {}
    for split, count in (("train", train), ("test", test)):
        labels = rng.integers(0, classes, count).astype(np.uint8)
        pictures = rng.integers(0, 120, (count, *shape)).astype(np.uint8)
        for picture, label in zip(pictures, labels, strict=True):
            picture[label % 5 * 5 : label % 5 * 5 + 5, label // 5 % 5 * 5 : label // 5 % 5 * 5 + 5] = 255
        made[split] = pictures, labels
    return made


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, splits: Splits, *, zipped: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, names in IDX_NAMES.items():
        for name, array in zip(names, splits[split], strict=True):
            data = idx_bytes(array)
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1, mtime=0))
            else:
                (folder / name).write_bytes(data)


def write_npz(path: Path, splits: Splits, **others: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        f"{letter}_{split}": array for split in splits for letter, array in zip("xy", splits[split], strict=True)
    }
    np.savez_compressed(path, **{**arrays, **others})


def write_batches(folder: Path, splits: Splits, *, label: str = "labels") -> None:
    """As the authors' pickles: planes of one colour after the other, keys that are bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    batches = {"test_batch" if label == "labels" else "test": splits["test"]}
    if label == "labels":
        cut = np.array_split(np.arange(len(splits["train"][1])), 5)
        batches |= {f"data_batch_{n}": tuple(part[own] for part in splits["train"]) for n, own in enumerate(cut, 1)}  # type: ignore[misc]
    else:
        batches["train"] = splits["train"]
    for name, (pictures, labels) in batches.items():
        planes = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)).reshape(len(labels), -1)
        content = {b"data": planes, label.encode(): labels.tolist(), b"batch_label": b"made up"}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def writers(counts: Mapping[str, int], seed: int = 0) -> dict[str, Splits]:
    """Images of 28×28 by writer: nine training images for each test image."""
    return {
        writer: images((28, 28), 62, count, max(1, count // 9), seed + place)
        for place, (writer, count) in enumerate(counts.items())
    }


def write_writers_npz(path: Path, found: Mapping[str, Splits]) -> None:
    splits = {
        split: tuple(np.concatenate([own[split][part] for own in found.values()]) for part in (0, 1))
        for split in ("train", "test")
    }
    places = {
        f"writer_{split}": np.repeat(np.arange(len(found)), [len(own[split][1]) for own in found.values()]).astype("i2")
        for split in ("train", "test")
    }
    write_npz(path, splits, writers=np.array(list(found)), **places)  # type: ignore[arg-type]


def write_writers_json(folder: Path, found: Mapping[str, Splits]) -> None:
    for split in ("train", "test"):
        data = {
            writer: {
                "x": (own[split][0].reshape(len(own[split][1]), -1) / 255).tolist(),
                "y": own[split][1].tolist(),
            }
            for writer, own in found.items()
        }
        (folder / split).mkdir(parents=True)
        counts = [len(each["y"]) for each in data.values()]
        content = {"users": list(data), "num_samples": counts, "user_data": data}
        (folder / split / "all_data_0.json").write_text(json.dumps(content))


def roles(sizes: Mapping[str, int]) -> dict[str, str]:
    """Lines of so many characters each."""
    return {
        role: (LINES * (size // len(LINES) + 2))[place : place + size]
        for place, (role, size) in enumerate(sizes.items())
    }


def write_roles(path: Path, lines: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"users": list(lines), "user_data": {role: {"raw": text} for role, text in lines.items()}}
    data = json.dumps(content).encode()
    path.write_bytes(gzip.compress(data, 1, mtime=0) if path.suffix == ".gz" else data)
