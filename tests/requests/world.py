"""A small federation for tests of requests: five clients and real training, which takes a second or less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedforget import LocalOptimizer, Plan, Run

FEATURES, CLASSES = 4, 3
PLAN = Plan(3, 3, 2, 6, LocalOptimizer(lr=0.1, momentum=0.5))


def samples(count: int, seed: int) -> dict[int, tuple[np.ndarray, int]]:
    rng = np.random.default_rng(seed)
    return {row: (rng.normal(size=FEATURES).astype(np.float32), int(rng.integers(CLASSES))) for row in range(count)}


DATA: dict[int, dict[int, Any]] = {client: samples(3 + 2 * client, client) for client in range(5)}


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def opened(path: Path, plan: Plan | None = PLAN, **changes: Any) -> Run:
    given: dict[str, Any] = {"data": DATA, "seed": 1, **changes}
    return Run(path, plan, model=model(), **given)
