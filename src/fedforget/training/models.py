"""The models that come with FedForget, by name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fedforget.errors import PlanRefused
from fedforget.training.streams import own_streams, start_stream


def mlp(inputs: int, hidden: int, classes: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def build_model(settings: Mapping[str, object], seed: bytes) -> nn.Module:
    """The model that a plan names, its initial weights a function of the seed."""
    if settings.get("name") != "mlp":
        raise PlanRefused(f"unknown model {settings.get('name')!r}", hint="the models are: mlp")
    sizes = (int(str(settings[key])) for key in ("inputs", "hidden", "classes"))
    with own_streams():
        start_stream(seed)
        return mlp(*sizes)
