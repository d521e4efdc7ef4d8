"""The model and the data."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLIENTS = 10


class Net(nn.Module):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def load_data(partition_id: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Every tenth image is a client's; a fifth of them are for testing."""
    x, y = load_digits(return_X_y=True)
    own = np.arange(partition_id, len(x), CLIENTS)
    tests = own[::5]
    train = np.setdiff1d(own, tests)
    return (
        DataLoader(TensorDataset(_features(x[train]), torch.from_numpy(y[train])), batch_size, shuffle=True),
        DataLoader(TensorDataset(_features(x[tests]), torch.from_numpy(y[tests])), batch_size),
    )


def _features(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((x / 16).astype(np.float32))


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train the network, and return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    total, count = 0.0, 0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total, count = total + loss.item(), count + 1
    return total / count


@torch.no_grad()
def accuracy(net: nn.Module, loader: DataLoader) -> float:
    net.eval()
    right = sum(int((net(x).argmax(1) == y).sum()) for x, y in loader)
    return right / len(loader.dataset)
