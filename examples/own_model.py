"""Your own model and your own data: eight schools learn to read digits together, and a pupil withdraws.

    python examples/own_model.py

What a school needs is a mapping of stable id → (x, y), or a torch ``Dataset``. What FedForget needs is that a record
keeps its id and its content for as long as the run lives.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedforget import LocalOptimizer, Plan, Run

SCHOOLS = ("Aachen", "Bern", "Cork", "Dijon", "Evora", "Faro", "Gent", "Hull")


def schools() -> tuple[dict[str, dict[str, tuple[np.ndarray, int]]], tuple[np.ndarray, np.ndarray]]:
    """Each school's pupils, and a test set that belongs to no school."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)  # not by a mean: it would depend on erased pupils
    is_test = np.arange(len(labels)) % 5 == 0
    pupils: dict[str, dict[str, tuple[np.ndarray, int]]] = {name: {} for name in SCHOOLS}
    for place, row in enumerate(np.flatnonzero(~is_test)):
        pupils[SCHOOLS[place % len(SCHOOLS)]][f"pupil-{row}"] = (images[row], int(labels[row]))
    return pupils, (images[is_test], labels[is_test])


class Network(nn.Module):
    """Any ``nn.Module``: dropout is drawn from addressed streams, so it is repeatable too."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.decide = nn.Sequential(nn.Dropout(0.1), nn.Linear(12 * 16, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decide(self.see(x))


def main() -> None:
    torch.manual_seed(0)
    pupils, test = schools()
    plan = Plan(
        3, 8, local_steps=5, rounds=40, local=LocalOptimizer(lr=0.1, momentum=0.5)
    )  # K = 3 schools, b = 8 pupils
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        run = Run(here / "run", plan, model=Network(), data=pupils, test=test, federation="pool")
        print(f"trained: accuracy {run.train().accuracy:.3f}")

        # A pupil asks for erasure without knowing the model: the basis is 'exogenous'.
        (receipt,) = run.forget(client="Bern", sample="pupil-2", basis="exogenous")
        redone = receipt.recomputed_steps
        print(f"forgot pupil-2 of Bern: recomputed {redone} of {plan.steps} steps, guarantee {receipt.guarantee}")
        assert run.verify().ok  # replays all rounds on the remaining data, and compares every byte

        # A whole school leaves.
        run.forget(client="Dijon", basis="exogenous")
        print(f"forgot Dijon: accuracy {run.status().accuracy:.3f} with {run.status().clients} schools")

        model = Network()
        model.load_state_dict(torch.load(run.export(here / "model.pt"), weights_only=True))
        print(f"exported {sum(p.numel() for p in model.parameters())} weights")


if __name__ == "__main__":
    main()
