"""IDX files: MNIST and Fashion-MNIST as their authors publish them, with or without gzip."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from fedforget.data.rows import Array
from fedforget.errors import DataDamaged

_BYTES = 0x08  # the type code of unsigned bytes
_HEADER = 4  # bytes before the dimensions
NAMES = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
         "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}  # fmt: skip


def holds_idx(folder: Path) -> bool:
    """Return whether a folder has any of the four files."""
    return any(_file(folder, name) is not None for names in NAMES.values() for name in names)


def read_split(folder: Path, split: str) -> tuple[Array, Array]:
    """Return the images and the labels of ``train`` or ``test``."""
    images, labels = (_read(folder, name) for name in NAMES[split])
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):  # noqa: PLR2004 (n, height, width)
        raise DataDamaged(
            f"the {split} files in {folder} have images of shape {images.shape} and labels of shape {labels.shape}",
            hint="get the files again",
        )
    return images, labels


def _file(folder: Path, name: str) -> Path | None:
    spellings = (name, name.replace("-idx", ".idx"))
    found = [folder / f"{spelling}{end}" for spelling in spellings for end in ("", ".gz")]
    return next((path for path in found if path.is_file()), None)


def _read(folder: Path, name: str) -> Array:
    path = _file(folder, name)
    if path is None:
        raise DataDamaged(f"{folder / name} is missing, also with .gz", hint="get the file again")
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return _unzipped(path) if zipped else _mapped(path)


def _unzipped(path: Path) -> Array:
    try:
        with gzip.open(path) as file:
            shape = _shape(file.read(_HEADER + 4 * 3), path)
            size = math.prod(shape)
            file.seek(_HEADER + 4 * len(shape))
            data = file.read(size + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise _damaged(path, str(error)) from error
    if len(data) != size:
        raise _damaged(path, f"its header promises {size} bytes")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _mapped(path: Path) -> Array:
    with path.open("rb") as file:
        shape = _shape(file.read(_HEADER + 4 * 3), path)
    start, size = _HEADER + 4 * len(shape), math.prod(shape)
    if path.stat().st_size != start + size:
        raise _damaged(path, f"it has {path.stat().st_size} bytes, and its header promises {start + size}")
    return np.memmap(path, np.uint8, "r", offset=start, shape=shape)


def _shape(header: bytes, path: Path) -> tuple[int, ...]:
    if len(header) < _HEADER or header[:2] != b"\0\0" or header[2] != _BYTES or header[3] not in (1, 3):
        raise _damaged(path, "it is no IDX file of bytes")
    if len(header) < _HEADER + 4 * header[3]:
        raise _damaged(path, "it ends in its header")
    return struct.unpack(f">{header[3]}I", header[_HEADER : _HEADER + 4 * header[3]])


def _damaged(path: Path, why: str) -> DataDamaged:
    return DataDamaged(f"{path} is truncated or altered: {why}", hint="get the file again")
