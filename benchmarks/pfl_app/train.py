"""Federated averaging in pfl's simulator, timed round by round. torchrun starts one such process for each worker.

It runs in an environment of its own, which has pfl and lacks FedForget, so the networks are written down here again.
The report holds their shapes, and the benchmark compares them with FedForget's.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

SEED = 7


class Network(nn.Sequential):
    """A chain of layers with the two methods that pfl calls."""

    def loss(self, x: Tensor, y: Tensor, *, is_eval: bool = False) -> Tensor:
        self.eval() if is_eval else self.train()
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        with torch.no_grad():
            return {"loss": Weighted(self.loss(x, y, is_eval=True).item() * len(y), len(y))}


def cnn() -> Network:
    return Network(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 2048), nn.ReLU(), nn.Linear(2048, 10),
    )  # fmt: skip


def mlp() -> Network:
    return Network(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Clock(TrainingProcessCallback):
    """Notes when each round was done, and how much processor time this process has used."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.marks.append((time.perf_counter(), time.process_time()))
        return False, Metrics()


def federation(directory: Path, rows: int) -> FederatedDataset:
    """Clients in memory; each has the given number of rows in a new order whenever it is drawn."""
    x, y, starts = (np.load(directory / f"{name}.npy", mmap_mode="r") for name in ("x", "y", "starts"))
    stream = np.random.default_rng(SEED)

    @cache
    def samples(user: int) -> tuple[Tensor, Tensor]:
        here = slice(int(starts[user]), int(starts[user + 1]))
        return torch.from_numpy(x[here].copy()), torch.from_numpy(y[here].copy())

    def dataset(user: int) -> Dataset:
        found_x, found_y = samples(user)
        order = torch.from_numpy(np.resize(stream.permutation(len(found_y)), rows))
        return Dataset((found_x[order], found_y[order]), user_id=user)

    return FederatedDataset(dataset, get_user_sampler("random", list(range(len(starts) - 1))))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "data", "report"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("rounds", "cohort", "steps", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    np.random.seed(SEED)  # noqa: NPY002 (pfl draws from it, on every worker the same)
    torch.manual_seed(SEED)
    network = {"cnn": cnn, "mlp": mlp}[chosen.model]()
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    data, clock = federation(Path(chosen.data), chosen.steps * chosen.batch), Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=chosen.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=chosen.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=None,
            local_learning_rate=chosen.lr,
            local_batch_size=chosen.batch,
            local_num_steps=chosen.steps,
        ),
        callbacks=[clock],
    )
    rank = pytorch_ops.distributed.global_rank
    shapes = {name: list(weights.shape) for name, weights in network.state_dict().items()}
    said = {"marks": clock.marks, "shapes": shapes, "workers": pytorch_ops.distributed.world_size}
    Path(f"{chosen.report}.{rank}").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
