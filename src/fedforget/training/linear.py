"""A linear model trained at one place: multinomial logistic regression on all samples, by L-BFGS.

The strength of its L2 penalty is chosen on every tenth training sample; then it is fitted on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedforget.training.sample_cache import as_tensor
from fedforget.training.weights import Weights, float_type, load_weights, weights_of

PENALTIES = (0.0, 1e-5, 1e-4, 1e-3)
_HELD_OUT = 10  # every tenth
_ITERATIONS = 100


@dataclass(frozen=True, slots=True)
class LinearFit:
    weights: Weights
    penalty: float
    held_out: float  # accuracy on what was held out


def train_linear(
    module: nn.Module,
    x: NDArray[Any],
    y: NDArray[Any],
    *,
    penalties: Sequence[float] = PENALTIES,
    iterations: int = _ITERATIONS,
) -> LinearFit:
    """Fit the module from zero weights. The result depends on the samples and their order alone."""
    features, labels = as_tensor(x, float_type(module)), as_tensor(y)
    held = torch.arange(len(labels)) % _HELD_OUT == 0
    scores = {}
    for penalty in penalties:
        _fit(module, features[~held], labels[~held], penalty, iterations)
        scores[penalty] = _accuracy(module, features[held], labels[held])
    best = max(penalties, key=lambda penalty: scores[penalty])
    _fit(module, features, labels, best, iterations)
    return LinearFit(weights_of(module), best, scores[best])


def _fit(module: nn.Module, x: Tensor, y: Tensor, penalty: float, iterations: int) -> None:
    """Minimise cross-entropy + penalty·|θ|² over all samples at once."""
    load_weights(module, {name: 0 * value for name, value in weights_of(module).items()})
    parameters = list(module.parameters())
    optimizer = torch.optim.LBFGS(parameters, max_iter=iterations, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = nn.functional.cross_entropy(module(x), y)
        value = value + penalty * torch.stack([parameter.square().sum() for parameter in parameters]).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]


def _accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((module(x).argmax(dim=-1) == y).double().mean())
