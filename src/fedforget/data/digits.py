"""scikit-learn's bundled handwritten digits: 1,797 images of 8×8. The id of a sample is its row in ``load_digits``."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.ids import Id
from fedforget.data.federated import FederatedData
from fedforget.data.partition import dirichlet_label_partition
from fedforget.errors import DataMissing

_FILE = ("datasets", "data", "digits.csv.gz")
_TEST_EVERY = 5  # rows ≡ 0 mod 5 are test data
_LARGEST = np.float32(16)  # a constant of the format: a statistic of the data would leak erased samples


def _bundled_rows() -> NDArray[np.uint8]:
    """Read the file that scikit-learn bundles: 64 pixels and a label a line. Importing scikit-learn takes a second."""
    package = importlib.util.find_spec("sklearn")
    folders = (package.submodule_search_locations if package else None) or []
    for folder in folders:
        file = Path(folder, *_FILE)
        if file.is_file():
            with gzip.open(file, "rt") as lines:
                return np.array([line.split(",") for line in lines], np.float64).astype(np.uint8)
    raise DataMissing(
        "the digits are not here: they come with scikit-learn", hint="install it: pip install scikit-learn"
    )


class Digits:
    """The images as float32 in [0, 1], and their labels."""

    def __init__(self) -> None:
        rows = _bundled_rows()
        self._x = (rows[:, :-1].astype(np.float32) / _LARGEST).astype(np.float32)
        self._y = rows[:, -1].astype(np.int64)

    @property
    def training_rows(self) -> list[int]:
        return [row for row in range(len(self._y)) if row % _TEST_EVERY]

    @property
    def counts(self) -> tuple[int, int]:
        """The number of training and test samples."""
        return len(self.training_rows), len(self._y) - len(self.training_rows)

    @property
    def training_labels(self) -> NDArray[np.int64]:
        labels: NDArray[np.int64] = self._y[self.training_rows]
        return labels

    def partition(self, *, clients: int, beta: float, seed: bytes) -> dict[int, list[int]]:
        rows = self.training_rows
        return dirichlet_label_partition(self.training_labels, rows, clients=clients, beta=beta, seed=seed)

    def federated(self, owners: Mapping[Id, Iterable[Id]]) -> FederatedData:
        """Return the data of the clients that own these rows, with the test set."""
        test = slice(0, None, _TEST_EVERY)
        return FederatedData(
            {
                client: {
                    row: (self._x[row], self._y[row]) for row in rows if isinstance(row, int) and row < len(self._y)
                }
                for client, rows in owners.items()
            },
            test=(self._x[test], self._y[test]),
        )
