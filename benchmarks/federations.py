"""The federations that are measured: the digits as ``fedforget train`` splits them, and noise of any size."""

from __future__ import annotations

import numpy as np
from torch import nn

from fedforget.algorithm.seeds import SeedSource
from fedforget.algorithm.streams import numpy_stream
from fedforget.data.digits import BETA, Digits
from fedforget.data.federated import FederatedData
from fedforget.training.models import build_model

SEED = 7
FEATURES, CLASSES = 64, 10
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


def mlp(hidden: int) -> nn.Module:
    """One hidden layer, in its initial state."""
    settings = {"name": "mlp", "inputs": FEATURES, "hidden": hidden, "classes": CLASSES}
    return build_model(settings, SeedSource(SEED).initial_model())
