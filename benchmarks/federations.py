"""The federations that are measured: the digits as ``fedforget train`` splits them, and noise of any size."""

from __future__ import annotations

import numpy as np
from torch import nn

from fedforget.algorithm.seeds import SeedSource
from fedforget.algorithm.streams import numpy_stream
from fedforget.data.digits import Digits
from fedforget.data.federated import FederatedData
from fedforget.data.registry import BETA
from fedforget.training.models import build_model

SEED = 7
FEATURES, CLASSES = 64, 10
SIDE = 28
SMALL, LARGE = 64, 7000  # hidden units: 19 kB and 2.1 MB of weights


def digits(clients: int) -> FederatedData:
    dataset = Digits()
    return dataset.federated(dataset.partition(clients=clients, beta=BETA, seed=SeedSource(SEED).partition()))  # type: ignore[arg-type]


def noise(clients: int, samples: int) -> FederatedData:
    """Shaped like the digits; only sizes matter."""
    stream = numpy_stream(bytes(16))
    x = stream.random((clients, samples, FEATURES), np.float32)
    y = stream.integers(0, CLASSES, (clients, samples))
    return FederatedData(
        {client: {row: (x[client, row], y[client, row]) for row in range(samples)} for client in range(clients)}
    )


def images(clients: int, samples: int, tests: int = 0) -> FederatedData:
    """Noise shaped like handwritten digits of 28 × 28 in one channel, as the paper's CNN takes them."""
    stream = numpy_stream(bytes(16))
    x = stream.random((clients, samples, 1, SIDE, SIDE), np.float32)
    y = stream.integers(0, CLASSES, (clients, samples))
    test = (stream.random((tests, 1, SIDE, SIDE), np.float32), stream.integers(0, CLASSES, tests)) if tests else None
    return FederatedData(
        {client: {row: (x[client, row], y[client, row]) for row in range(samples)} for client in range(clients)}, test
    )


def mlp(hidden: int) -> nn.Module:
    """One hidden layer, in its initial state."""
    settings = {"name": "mlp", "inputs": FEATURES, "hidden": hidden, "classes": CLASSES}
    return build_model(settings, SeedSource(SEED).initial_model())


def cnn() -> nn.Module:
    """The paper's network for images of 28 × 28: 26 MB of weights."""
    settings = {"name": "cnn", "side": SIDE, "channels": 1, "hidden": 2048, "classes": CLASSES}
    return build_model(settings, SeedSource(SEED).initial_model())
