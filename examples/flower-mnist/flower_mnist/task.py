"""The model, the data and the plan: what both apps have in common."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

from fedforget import LocalOptimizer, Plan

CLIENTS = 10
PLAN = Plan(clients_per_round=5, batch_size=10, local_steps=10, rounds=20, local=LocalOptimizer(lr=0.1))

Images = tuple[np.ndarray, np.ndarray]


@cache
def images() -> tuple[Images, Images]:
    """MNIST, if FEDFORGET_DATA has the file mnist.npz; else the small digits that come with scikit-learn."""
    file = Path(os.environ.get("FEDFORGET_DATA", "")) / "mnist.npz"
    if file.is_file():
        with np.load(file) as found:
            return _scaled(found["x_train"], found["y_train"], 255), _scaled(found["x_test"], found["y_test"], 255)
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8)
    return _scaled(x[:1500], y[:1500], 16), _scaled(x[1500:], y[1500:], 16)


def _scaled(x: np.ndarray, y: np.ndarray, largest: int) -> Images:
    return (x[:, None] / largest).astype(np.float32), y.astype(np.int64)  # a constant: never a statistic of the data


def samples_of(client: int) -> dict[int, tuple[np.ndarray, int]]:
    """Every tenth image is a client's. An image's id is its place in the dataset: it stays when others leave."""
    x, y = images()[0]
    return {place: (x[place], int(y[place])) for place in range(client, len(x), CLIENTS)}


def test_set() -> Images:
    return images()[1]


def build() -> nn.Module:
    side = images()[0][0].shape[-1]
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * (side // 2) ** 2, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
