"""Forgetting end to end, against the fraction of the steps that it recomputes.

Random requests of each level, one after another, on a run with the paper's plan for MNIST: 300 clients with 200
samples, K=5, E=10, b=10, R=30. The time of each is divided by that of making the run and training it; what is above its
own recomputed fraction is overhead. The small MLP is trained in this process, the CNN in the pool.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.federations import SEED, SMALL, cnn, images, mlp, noise
from benchmarks.harness import Figure, give, median_figure, options, scratch
from fedforget import LocalOptimizer, Plan, Request, Run
from fedforget.algorithm.streams import numpy_stream
from fedforget.data.federated import FederatedData

CLIENTS, SAMPLES = 300, 200
PLAN = Plan(5, 10, 10, 30, LocalOptimizer(lr=0.01))
REQUESTS, FEW, LONG = 100, 5, 100


def random_requests(level: str, count: int) -> list[Request]:
    """Different clients, or a random sample of each of them."""
    stream = numpy_stream(bytes(15) + level[:1].encode())
    clients = stream.permutation(CLIENTS)[:count]
    if level == "client":
        return [Request(int(client)) for client in clients]
    return [Request(int(client), int(stream.integers(SAMPLES))) for client in clients]


def measure(
    label: str, make: Callable[[], nn.Module], data: FederatedData, limit: float, count: int, **how: Any
) -> list[Figure]:
    figures = []
    for level in ("sample", "client"):
        with scratch() as directory:
            whole, run = made_and_trained(directory / "run", make, data, **how)
            overheads, fractions = [], []
            for request in random_requests(level, count):
                start = time.perf_counter()
                receipt = run.forget([request], basis="exogenous")[0]
                took = (time.perf_counter() - start) / whole
                fractions.append(receipt.recomputed_steps / PLAN.steps)
                overheads.append(took - fractions[-1])
        note = f"{len(overheads)} requests; recomputed {statistics.mean(fractions):.2f}, mean overhead "
        note += f"{statistics.mean(overheads):.3f}; make and train {whole:.1f} s"
        name = f"{label}, {level}: forgetting ÷ (make + train), above the recomputed fraction"
        figures.append(median_figure(name, overheads, "", at_most=limit, note=note))
    return figures


def made_and_trained(path: Path, make: Callable[[], nn.Module], data: FederatedData, **how: Any) -> tuple[float, Run]:
    start = time.perf_counter()
    run = Run(path, PLAN, model=make(), data=data, seed=SEED, **how)
    run.train()
    return time.perf_counter() - start, run


def main() -> None:
    chosen = options(__doc__)
    count = FEW if chosen.quick else REQUESTS
    figures = measure("MLP 64-64-10", lambda: mlp(SMALL), noise(CLIENTS, SAMPLES), 0.10, count)
    if not chosen.quick:
        count = LONG if chosen.long else FEW
        figures += measure("CNN", cnn, images(CLIENTS, SAMPLES), 0.02, count, federation="pool")
    give("Forgetting, against the recomputed fraction", __doc__, figures)


if __name__ == "__main__":
    main()
