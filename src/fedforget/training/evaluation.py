"""Accuracy of a model on the server's test set."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedforget.errors import InvalidInput
from fedforget.training.sample_cache import as_tensor
from fedforget.training.weights import Weights, float_type, load_weights

_PIECE = 500  # samples at a time: fixed, so that results are reproducible and memory is bounded


class TestSet:
    """The server's test samples (x, y) in the type that a module computes in."""

    __test__ = False  # not a pytest class, despite its name

    def __init__(self, module: nn.Module, samples: tuple[NDArray[Any], NDArray[Any]]) -> None:
        self._module = module
        self._x: Tensor = as_tensor(samples[0], float_type(module))
        self._y: Tensor = as_tensor(samples[1])

    def count_correct(self, weights: Weights) -> tuple[int, int]:
        """Return how many test samples a classifier with these weights gets right, and of how many."""
        load_weights(self._module, weights)
        self._module.eval()
        correct = 0
        try:
            with torch.no_grad():
                for start in range(0, len(self._y), _PIECE):
                    x, y = self._x[start : start + _PIECE], self._y[start : start + _PIECE]
                    correct += int((self._module(x).argmax(dim=-1) == y).sum())
        except Exception as error:
            raise InvalidInput(
                f"the model cannot be measured on the test set: {type(error).__name__}: {error}",
                hint="give a test set (x, y) that the model can classify, or none",
            ) from error
        return correct, int(self._y.numel())
