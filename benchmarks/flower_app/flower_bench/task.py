"""The model and the data, as a Flower app has them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedforget.training.models import cnn, mlp


def build(model: str) -> nn.Module:
    """The networks that FedForget trains beside it."""
    return cnn(side=28, channels=1, hidden=2048, classes=10) if model == "cnn" else mlp(64, 64, 10)


@cache
def _arrays(directory: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y, starts = (np.load(f"{directory}/{name}.npy", mmap_mode="r") for name in ("x", "y", "starts"))
    return x, y, starts


def load_data(directory: str, partition: int) -> TensorDataset:
    """One client's samples; the files are mapped once for each process."""
    x, y, starts = _arrays(directory)
    here = slice(int(starts[partition]), int(starts[partition + 1]))
    return TensorDataset(torch.from_numpy(x[here].copy()), torch.from_numpy(y[here].copy()))
