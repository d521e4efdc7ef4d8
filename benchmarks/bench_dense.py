"""What a local step costs through autograd, and without a tape: the dense layers, in blocks, and the convolutions too.

One local step of processor time in one thread, the ways in turns in one process; each adds to the one before it. All
end in the same bits. The first figure of each network is plain PyTorch: its loss, `backward` and `torch.optim.SGD`.
Decision 14 keeps the ways because of these figures.
"""

# ruff: noqa: SLF001 (it times the parts of a step)
from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.federations import cnn
from benchmarks.harness import Figure, give, median_figure, options
from fedforget.algorithm.plan import LocalOptimizer
from fedforget.training.local_sgd import TorchLearner

BATCH, RATE = 10, 0.01
STREAM = bytes(32)
Step = Callable[[], object]
WAYS = ("through autograd", "with dense layers without a tape", "and in blocks", "and convolutions without a tape")


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


CASES: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...], int], ...] = (
    ("MLP 64-64-10", small, (64,), 600),
    ("MLP 784-1024-1024-10", wide, (1, 28, 28), 30),
    ("CNN of the paper", cnn, (1, 28, 28), 5),
)


def ways(make: Callable[[], nn.Module], x: Tensor, y: Tensor) -> dict[str, Step]:
    """Return plain PyTorch's step, and our learner's with more and more of it done without a tape."""
    learners = {way: TorchLearner(make(), None, LocalOptimizer(lr=RATE)) for way in WAYS}  # type: ignore[arg-type]
    autograd, no_tape, blocks, convolutions = learners.values()
    has_convolutions = convolutions._convolutions is not None
    for learner in (autograd, no_tape, blocks):
        learner._convolutions = None
    autograd._tail = None
    if no_tape._tail is not None:
        no_tape._tail._large = [False] * len(no_tape._tail._large)
    kept = list(learners.items())[: None if has_convolutions else -1]
    return {"plain PyTorch": in_pytorch(make(), x, y), **{way: partial(ours, each, x, y) for way, each in kept}}


def in_pytorch(module: nn.Module, x: Tensor, y: Tensor) -> Step:
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


@torch.no_grad()
def ours(learner: TorchLearner, x: Tensor, y: Tensor) -> None:
    _, gradients = learner._loss_and_gradients(x, y, STREAM)
    learner._step(gradients, [], [])


def measure(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], steps: int, turns: int) -> list[Figure]:
    x = torch.arange(BATCH * math.prod(shape), dtype=torch.float32).sin_().view(BATCH, *shape)
    y = torch.arange(BATCH) % 10
    made = ways(make, x, y)
    times: dict[str, list[float]] = {way: [] for way in made}
    for _ in range(turns):
        for way, step in made.items():
            start = time.process_time()
            for _ in range(steps):
                step()
            times[way].append((time.process_time() - start) / steps)
    plain, *own = made
    lowest = min(times[plain])
    return [
        Figure(f"{name}: a step of {plain}", 1e3 * lowest, "ms", note="the fastest turn"),
        *(
            median_figure(
                f"{name}: a step {way}",
                [time_ / beside for time_, beside in zip(times[way], times[plain], strict=True)],
                "× plain PyTorch",
                note=f"fastest turns: {min(times[way]) / lowest:.2f} ×",
            )
            for way in own
        ),
    ]


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    turns = 3 if chosen.quick else 21
    give("A local step without a tape", __doc__, [figure for case in CASES for figure in measure(*case, turns)])


if __name__ == "__main__":
    main()
