"""Datasets of the Hugging Face hub, by the library ``datasets`` (the extra ``data``): downloaded, or parquet files."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from fedforget.data.leaf_json import text_of_windows
from fedforget.data.rows import Array
from fedforget.errors import DataDamaged, DataMissing

Writers = dict[str, tuple[Array, Array]]
_TEST_EVERY = 10  # of a writer's images, where the hub has no split: 90 and 10 per cent, as LEAF


def is_installed() -> bool:
    return importlib.util.find_spec("datasets") is not None


def _is_reachable() -> bool:
    """Return whether the hub's address resolves here. A proxy would resolve it itself."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def find_parquet(folder: Path) -> list[Path]:
    """Return the parquet files of a folder and of the folders in it."""
    return sorted(path for pattern in ("*.parquet", "*/*.parquet") for path in folder.glob(pattern))


def load(hub_id: str, folder: Path | None = None) -> Any:
    """Return the splits of a dataset by name: from the hub (or its cache), or from a folder's parquet files."""
    if folder is None and not _is_reachable():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # avoids half a minute of retries; its cache still works
    import datasets  # noqa: PLC0415 (an extra, and slow to import)

    datasets.disable_progress_bars()
    try:
        if folder is None:
            return datasets.load_dataset(hub_id)
        return {
            split: datasets.Dataset.from_parquet([str(path) for path in paths])
            for split, paths in _by_split(find_parquet(folder)).items()
        }
    except MemoryError:
        raise
    except Exception as error:
        what = f"{hub_id} from the Hugging Face hub" if folder is None else f"the parquet files in {folder}"
        raise (DataMissing if folder is None else DataDamaged)(
            f"cannot read {what}: {type(error).__name__}: {str(error)[:300]}",
            hint="check the network, or name a directory that has the files: --data-dir",
        ) from error


def _by_split(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Sort files into splits by their names (``test-00000-of-00001.parquet``) or that of their folder."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        is_test = path.name.startswith("test") or path.parent.name == "test"
        found.setdefault("test" if is_test else "train", []).append(path)
    return found


def images_of(split: Any, image: str, label: str) -> tuple[Array, Array]:
    """Return the images of a split as bytes, and the labels."""
    _require_columns(split, (image, label))
    images = [np.asarray(picture, np.uint8) for picture in split[image]]
    return np.stack(images), np.asarray(split[label], np.uint8)


def writers_of(split: Any) -> tuple[Writers, Writers]:
    """Return each writer's training and test images: every tenth of a writer's images is for testing."""
    _require_columns(split, ("image", "character", "writer_id"))
    images, labels = images_of(split, "image", "character")
    rows: dict[str, list[int]] = {}
    for row, writer in enumerate(split["writer_id"]):
        rows.setdefault(str(writer), []).append(row)
    train: Writers = {}
    test: Writers = {}
    for writer, its in rows.items():
        places = np.asarray(its)
        held_out = np.arange(len(its)) % _TEST_EVERY == _TEST_EVERY - 1
        train[writer] = images[places[~held_out]], labels[places[~held_out]]
        test[writer] = images[places[held_out]], labels[places[held_out]]
    return train, test


def roles_of(split: Any) -> dict[str, str]:
    """Return each role's text, put together from its windows."""
    _require_columns(split, ("character_id", "x", "y"))
    found: dict[str, str] = {}
    rows = zip(split["character_id"], split["x"], split["y"], strict=True)
    for role, own in groupby(rows, key=lambda row: row[0]):
        _, x, y = zip(*own, strict=True)
        found[str(role)] = text_of_windows(list(x), list(y), str(role))
    return found


def _require_columns(split: Any, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in split.column_names]
    if missing:
        raise DataDamaged(
            f"the dataset has the columns {', '.join(split.column_names)}, and lacks {', '.join(missing)}",
            hint="use the dataset that `fedforget data list` names",
        )
