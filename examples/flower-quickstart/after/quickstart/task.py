"""The model and the data."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedforget import LocalOptimizer, Plan

CLIENTS = 10


class Net(nn.Module):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


PLAN = Plan(clients_per_round=5, batch_size=16, local_steps=9, rounds=10, local=LocalOptimizer(lr=0.1))


def samples_of(client: int) -> dict[int, tuple[np.ndarray, int]]:
    """Every tenth image is a client's, under its place in the dataset as a stable id."""
    x, y = load_digits(return_X_y=True)
    own = np.arange(client, len(x), CLIENTS)
    return {int(place): ((x[place] / 16).astype(np.float32), int(y[place])) for place in np.setdiff1d(own, own[::5])}


def test_set() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    tests = np.concatenate([np.arange(client, len(x), CLIENTS)[::5] for client in range(CLIENTS)])
    return (x[tests] / 16).astype(np.float32), y[tests]
