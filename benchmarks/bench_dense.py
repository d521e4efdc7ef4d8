"""What the dense layers at the end of a network cost: through autograd, without a tape, and in blocks.

One local step in one thread, the three ways in turns in one process. All three end in the same bits. Decision 14 keeps
the second and the third way because of these figures.
"""

# ruff: noqa: SLF001 (it times the parts of a step)
from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.federations import cnn
from benchmarks.harness import Figure, give, options
from fedforget.algorithm.plan import LocalOptimizer
from fedforget.training.local_sgd import TorchLearner

BATCH = 10
STREAM = bytes(32)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


CASES: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...], int], ...] = (
    ("MLP 64-64-10", small, (64,), 600),
    ("MLP 784-1024-1024-10", wide, (1, 28, 28), 30),
    ("CNN of the paper", cnn, (1, 28, 28), 10),
)


def learners(make: Callable[[], nn.Module]) -> dict[str, TorchLearner]:
    made = {way: TorchLearner(make(), None, LocalOptimizer(lr=0.01)) for way in ("autograd", "no tape", "blocks")}  # type: ignore[arg-type]
    made["autograd"]._tail = None
    if (tail := made["no tape"]._tail) is not None:
        tail._large = [False] * len(tail._large)
    return made


def measure(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], steps: int, turns: int) -> list[Figure]:
    x = torch.arange(BATCH * math.prod(shape), dtype=torch.float32).sin_().view(BATCH, *shape)
    y = torch.arange(BATCH) % 10
    made = learners(make)
    times: dict[str, list[float]] = {way: [] for way in made}
    for _ in range(turns):
        for way, learner in made.items():
            with torch.no_grad():
                start = time.process_time()
                for _ in range(steps):
                    _, gradients = learner._loss_and_gradients(x, y, STREAM)
                    learner._step(gradients, [], [])
                times[way].append((time.process_time() - start) / steps)
    plain = statistics.median(times["autograd"])
    return [
        Figure(f"{name}, a step {way}", statistics.median(times[way]) / plain, "× autograd")
        for way in ("no tape", "blocks")
    ]


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    turns = 3 if chosen.quick else 15
    give("Dense layers without a tape", __doc__, [figure for case in CASES for figure in measure(*case, turns)])


if __name__ == "__main__":
    main()
