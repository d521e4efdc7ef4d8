"""How the presets' ``tuned`` optimisers were chosen: a small grid on held-out training data, with seeds of its own.

    python benchmarks/tune_presets.py mnist --data-dir DIR

Every tenth training sample is held out, the plan is the preset's, and the figure is the accuracy on what is held out
after the last round, as the mean over the seeds. Each method gets the same grid, seeds, data and initial weights. The
test set is not read.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np

from fedforget import FedForgetError, LocalOptimizer, Plan
from fedforget.algorithm.seeds import SeedSource
from fedforget.baselines.fats import Fats
from fedforget.baselines.fedavg import FedAvg
from fedforget.baselines.method import Method, Problem
from fedforget.data.ownership import Partition, places_by
from fedforget.data.places import find
from fedforget.data.registry import VIRTUAL, dataset_of
from fedforget.data.stored import StoredData
from fedforget.experiments.lives import Meter
from fedforget.experiments.presets import PRESETS, Preset
from fedforget.session.workforce import Workforce
from fedforget.training.models import build_model

GRID = [(0.03, 0.0), (0.1, 0.0), (0.3, 0.0), (0.003, 0.9), (0.01, 0.9), (0.03, 0.9)]  # learning rate, momentum
METHODS = (Fats, FedAvg)  # FRS learns as FedAvg does
HELD_OUT = 10  # every tenth
VALIDATION = 4000  # at most


def data_of(preset: Preset, data_dir: Path | None, seed: bytes) -> StoredData:
    """The preset's clients without what is held out, and that as the test set."""
    dataset = dataset_of(preset.data)
    source = find(dataset, data_dir)
    partition = Partition.of(dataset, preset.partition, preset.clients, None, seed)
    owners = partition.owners(dataset, source)
    kept = {client: ids[ids % HELD_OUT != 0] for client, ids in owners.items()}
    places = places_by(source, partition.kind)
    held_out = np.concatenate([places(client, ids[ids % HELD_OUT == 0]) for client, ids in owners.items()])
    held_out = np.unique(held_out)
    held_out = held_out[:: max(1, len(held_out) // VALIDATION)]
    return StoredData(source.train, {client: ids for client, ids in kept.items() if len(ids)}, places,
                      (source.train, held_out))  # fmt: skip


def accuracy(method: type[Method], preset: Preset, local: LocalOptimizer, data_dir: Path | None, seed: int) -> float:
    root = f"tuning {seed}"
    seeds = SeedSource(root)
    plan = Plan(preset.clients_per_round, preset.batch_size, preset.local_steps, preset.rounds, local)
    model = build_model(dataset_of(preset.data).models[0], seeds.initial_model())
    data = data_of(preset, data_dir, seeds.partition())
    problem = Problem.of(plan, model, data, root, Workforce("pool"))
    training = method(problem)
    training.learn(preset.rounds)
    return Meter(problem).whole(training.state.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", choices=[name for name, preset in PRESETS.items() if preset.partition != VIRTUAL])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    preset = PRESETS[given.preset]
    for (lr, momentum), method in itertools.product(GRID, METHODS):
        setting = f"{given.preset} {method.name} lr {lr} momentum {momentum}"
        local = LocalOptimizer(lr=lr, momentum=momentum)
        try:
            found = [accuracy(method, preset, local, given.data_dir, seed) for seed in range(given.seeds)]
        except FedForgetError as error:  # a rate that diverges is a result too
            print(f"{setting}: {error}", flush=True)
            continue
        print(f"{setting}: {np.mean(found):.4f} {found}", flush=True)


if __name__ == "__main__":
    main()
