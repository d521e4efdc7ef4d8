"""CIFAR's python batches: pickles of a dict with bytes and labels, read without running any code from them."""

from __future__ import annotations

import codecs
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedforget.data.rows import Array
from fedforget.errors import DataDamaged

_SIDE, _CHANNELS = 32, 3


class _ArraysOnly(pickle.Unpickler):
    """Builds lists, dicts, bytes and NumPy arrays, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.ndarray(0).__reduce__()[0]
        known = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype, ("_codecs", "encode"): codecs.encode}
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no CIFAR batch does")
        return known[module, name]


def read_batches(folder: Path, names: Sequence[str], label: str) -> tuple[Array, Array]:
    """Return the images (n, 32, 32, 3) and labels of these files, one after the other."""
    batches = [_read(folder / name, label) for name in names]
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


def _read(path: Path, label: str) -> tuple[Array, Array]:
    try:
        with path.open("rb") as file:
            batch = _loaded(file)
        images, labels = np.asarray(batch[b"data"]), np.asarray(batch[label.encode()], np.uint8)
        planes = images.astype(np.uint8, casting="no").reshape(len(labels), _CHANNELS, _SIDE, _SIDE)
    except FileNotFoundError as error:
        raise DataDamaged(f"{path} is missing", hint="get the file again") from error
    except Exception as error:
        raise DataDamaged(
            f"{path} is truncated or altered: {type(error).__name__}: {str(error)[:200]}", hint="get the file again"
        ) from error
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _loaded(file: BinaryIO) -> dict[bytes, Any]:
    found = _ArraysOnly(file, encoding="bytes").load()
    if not isinstance(found, dict):
        raise TypeError(f"it holds a {type(found).__name__}, not a dict")
    return {key.encode() if isinstance(key, str) else key: value for key, value in found.items()}
