"""The plan, the model and the data: FEMNIST's clients by reference if it is here, else noise of their size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from torch import nn

from fedforget import LocalOptimizer, Plan
from fedforget.algorithm.streams import numpy_stream
from fedforget.data.check import is_found
from fedforget.data.federations import DataChoice, chosen
from fedforget.experiments.presets import PRESETS
from fedforget.training.models import build_model

SLOTS = 10
SAMPLES, IMAGES, SIDE = 228, 20_000, 28  # a client's; of the noise
CLASSES = 62


def plan(rounds: int) -> Plan:
    """K = 10, and E and b of the paper's FEMNIST."""
    preset = PRESETS["femnist"]
    return Plan(SLOTS, preset.batch_size, preset.local_steps, rounds, LocalOptimizer(lr=0.01))


def build() -> nn.Module:
    """The paper's network: 26 MB of weights."""
    settings = {"name": "cnn", "side": SIDE, "channels": 1, "hidden": 2048, "classes": CLASSES}
    return build_model(settings, bytes(32))


def has_femnist() -> bool:
    return is_found("femnist", None) is not None


class Noise(Mapping[int, Any]):
    """A client's samples: rows of a table that all clients share."""

    def __init__(self, client: int) -> None:
        self._client = client

    def __getitem__(self, sample: int) -> tuple[np.ndarray, np.int64]:
        x, y = table()
        place = (self._client * SAMPLES + sample) % IMAGES
        return x[place], y[place]

    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))

    def __len__(self) -> int:
        return SAMPLES


class Writer(Mapping[int, Any]):
    """A client of FEMNIST: its samples are read when they are drawn."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getitem__(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        return femnist().sample(self._client, sample)

    def __iter__(self) -> Iterator[int]:
        return iter(femnist()[self._client].ids)

    def __len__(self) -> int:
        return len(femnist()[self._client].ids)


@cache
def table() -> tuple[np.ndarray, np.ndarray]:
    stream = numpy_stream(bytes(16))
    return stream.random((IMAGES, 1, SIDE, SIDE), np.float32), stream.integers(0, CLASSES, IMAGES)


@cache
def femnist() -> Any:
    preset = PRESETS["femnist"]
    found = chosen(DataChoice(preset.data, preset.clients, preset.partition), bytes(32))
    return found.data(found.owners())


def samples_of(client: int) -> Mapping[int, Any]:
    return Writer(client) if has_femnist() else Noise(client)
