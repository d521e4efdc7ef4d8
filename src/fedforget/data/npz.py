"""NumPy archives of images: a dataset, or a subset of it, in one ``.npz`` file. No pickles are read."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedforget.data.rows import Array
from fedforget.errors import DataDamaged

_IMAGES = (3, 4)  # dimensions of a stack of images


def find_npz(folder: Path) -> Path | None:
    """Return the largest archive of a folder: the whole dataset rather than a subset."""
    found = [path for path in sorted(folder.glob("*.npz")) if path.is_file()]
    return max(found, key=lambda path: path.stat().st_size, default=None)


def read_npz(path: Path, *others: str) -> dict[str, Array]:
    """Return ``x_train``, ``y_train``, ``x_test``, ``y_test``, and those of the ``others`` that exist."""
    try:
        with path.open("rb") as file, np.load(file) as archive:
            names = ["x_train", "y_train", "x_test", "y_test", *(name for name in others if name in archive)]
            arrays = {name: archive[name] for name in names}
    except KeyError as error:
        raise _damaged(path, f"it lacks {error}") from error
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
        raise _damaged(path, str(error)) from error
    for split in ("train", "test"):
        _require_rows(path, split, arrays)
    return arrays


def _require_rows(path: Path, split: str, arrays: Mapping[str, Array]) -> None:
    images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
    if images.dtype != np.uint8 or images.ndim not in _IMAGES or labels.dtype.kind not in "iu":
        raise _damaged(path, f"x_{split} has shape {images.shape} of {images.dtype}, not images of bytes")
    for name, array in arrays.items():
        if name.endswith(f"_{split}") and array.shape[:1] != images.shape[:1]:
            raise _damaged(path, f"x_{split} has {len(images)} rows, and {name} has shape {array.shape}")


def _damaged(path: Path, why: str) -> DataDamaged:
    return DataDamaged(f"{path} is truncated or altered: {why}", hint="get the file again")
