"""The built-in models, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from fedforget.errors import PlanRefused
from fedforget.training.identity import structure_of
from fedforget.training.streams import own_streams, start_stream


def mlp(inputs: int, hidden: int, classes: int) -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(side: int, channels: int, hidden: int, classes: int) -> nn.Module:
    """Return LEAF's network for square images: two 5×5 convolutions with pooling, then two dense layers."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * (side // 4) ** 2, hidden), nn.ReLU(), nn.Linear(hidden, classes),
    )  # fmt: skip


MODELS: Mapping[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "mlp": (mlp, ("inputs", "hidden", "classes")),
    "cnn": (cnn, ("side", "channels", "hidden", "classes")),
}


_LARGEST = 2**16  # size of a layer


def build_model(settings: Mapping[str, object], seed: bytes) -> nn.Module:
    """Build the model that a plan names. Its initial weights depend on the seed alone."""
    with own_streams():
        start_stream(seed)
        return _made(settings)


def structure_of_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Describe the tensors that a model would have, without allocating them."""
    with torch.device("meta"):
        return structure_of(_made(settings))


def _made(settings: Mapping[str, object]) -> nn.Module:
    name = settings.get("name")
    if name not in MODELS:
        raise PlanRefused(f"unknown model {name!r}", hint=f"the models are: {', '.join(MODELS)}")
    make, keys = MODELS[str(name)]
    missing = [key for key in keys if key not in settings]
    if missing:
        raise PlanRefused(f"the model {name} lacks its {', '.join(missing)}", hint="give whole numbers from 1")
    sizes = [settings[key] for key in keys]
    if not all(isinstance(size, int) and 1 <= size <= _LARGEST for size in sizes):
        raise PlanRefused(f"the model {name} cannot have these sizes", hint=f"give whole numbers from 1 to {_LARGEST}")
    return make(*sizes)
