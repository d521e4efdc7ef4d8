"""Between a torch module and the arrays that travel and are stored."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedforget.errors import InvalidInput

Weights = dict[str, NDArray[np.generic]]
_STORABLE = (
    torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.bool,
)  # fmt: skip


def weights_of(module: nn.Module) -> Weights:
    """A copy of every parameter and buffer of the module."""
    weights = {}
    for name, tensor in module.state_dict().items():
        if tensor.dtype not in _STORABLE:
            raise InvalidInput(
                f"the tensor {name!r} of the model is {tensor.dtype}", hint="use float16, float32 or float64"
            )
        weights[name] = tensor.detach().cpu().numpy().copy()
    if not weights:
        raise InvalidInput("the model has no parameters", hint="give an nn.Module that can be trained")
    return weights


def load_weights(module: nn.Module, weights: Mapping[str, NDArray[np.generic]]) -> None:
    """Put arrays into the module they came from."""
    tensors = module.state_dict()
    if tensors.keys() != weights.keys() or any(tensors[n].shape != w.shape for n, w in weights.items()):
        raise InvalidInput(
            "the model is not the one this run was made with (its tensors have other names or shapes)",
            hint="open the run with the nn.Module it began with",
        )
    with torch.no_grad():
        for name, array in weights.items():
            tensors[name].copy_(torch.from_numpy(np.asarray(array)))


def parameter_names(module: nn.Module) -> frozenset[str]:
    """The names that an optimiser may step; all others are buffers."""
    return frozenset(name for name, _ in module.named_parameters(remove_duplicate=False))
