"""Accuracy of a model on test samples: the server's own, or those of each client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedforget.algorithm.ids import Id
from fedforget.errors import InvalidInput, OutOfMemory, is_lack_of_memory
from fedforget.training.sample_cache import as_tensor
from fedforget.training.weights import Weights, float_type, load_weights

_PIECE = 500  # samples at a time: fixed, so that results are reproducible and memory is bounded


class TestSet:
    """Test samples (x, y) in the type that a module computes in.

    ``owners``: the client of each sample, where clients have test samples of their own.
    """

    __test__ = False  # not a pytest class, despite its name

    def __init__(
        self,
        module: nn.Module,
        samples: tuple[NDArray[Any], NDArray[Any]],
        owners: Sequence[Id] | None = None,
    ) -> None:
        self._module = module
        self._owners = owners
        self._x: Tensor = as_tensor(samples[0], float_type(module))
        self._y: Tensor = as_tensor(samples[1])

    def count_correct(self, weights: Weights) -> tuple[int, int]:
        """Return how many test samples a classifier with these weights gets right, and of how many."""
        return int(self._hits(weights).sum()), int(self._y.numel())

    def counts(self, weights: Weights) -> dict[Id | None, tuple[int, int]]:
        """Return the same for each client that has test samples; under None for the server's own."""
        if self._owners is None:
            return {None: self.count_correct(weights)}
        found: dict[Id | None, tuple[int, int]] = {}
        for owner, hit in zip(self._owners, self._hits(weights).reshape(len(self._y), -1).tolist(), strict=True):
            correct, count = found.get(owner, (0, 0))
            found[owner] = correct + sum(hit), count + len(hit)
        return found

    def _hits(self, weights: Weights) -> Tensor:
        load_weights(self._module, weights)
        self._module.eval()
        pieces = []
        try:
            with torch.no_grad():
                for start in range(0, len(self._y), _PIECE):
                    x, y = self._x[start : start + _PIECE], self._y[start : start + _PIECE]
                    pieces.append(_matches(self._module(x).argmax(dim=-1), y))
        except Exception as error:
            if is_lack_of_memory(error):
                raise OutOfMemory(
                    f"there is not enough memory to measure the model: {error}",
                    hint="use a smaller model, or free some memory, and give the same command again",
                ) from error
            raise InvalidInput(
                f"the model cannot be measured on the test set: {type(error).__name__}: {error}",
                hint="give a test set (x, y) that the model can classify, or none",
            ) from error
        return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.bool)


def _matches(chosen: Tensor, wanted: Tensor) -> Tensor:
    """Compare classes one by one. Never broadcasts."""
    if chosen.shape != wanted.shape:
        raise ValueError(f"it chooses classes of shape {tuple(chosen.shape)} for labels of shape {tuple(wanted.shape)}")
    return chosen == wanted
