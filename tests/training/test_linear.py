"""The central linear model: it finds what a linear model can find, reproducibly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.linear import PENALTIES, LinearFit, train_linear


def fitted(samples: int = 400, *, noise: float = 0.0, penalties: Sequence[float] = PENALTIES) -> LinearFit:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(samples, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 3)) + noise * rng.normal(size=(samples, 3))).argmax(1)
    with fixed_arithmetic():
        return train_linear(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), x, y, penalties=penalties)


def test_separable_classes_are_found() -> None:
    assert fitted().held_out > 0.95


def test_the_same_samples_give_the_same_weights_whatever_the_module_began_with() -> None:
    one, two = fitted(), fitted()
    assert all(np.array_equal(one.weights[name], two.weights[name]) for name in one.weights)


def test_the_penalty_is_the_best_on_samples_that_were_not_fitted() -> None:
    penalties = (0.0, 0.1, 10.0)
    alone = {penalty: fitted(200, noise=1.0, penalties=(penalty,)).held_out for penalty in penalties}
    assert len(set(alone.values())) > 1
    assert fitted(200, noise=1.0, penalties=penalties).penalty == max(alone, key=lambda penalty: alone[penalty])
