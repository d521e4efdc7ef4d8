"""Conversion between a torch module and the arrays that are sent and stored."""

from __future__ import annotations

import hashlib
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
    """Copy every parameter and buffer of the module."""
    return copied(views_of(module), None)


def views_of(module: nn.Module) -> Weights:
    """Return views of every parameter and buffer: they change when the module does."""
    weights = {}
    for name, tensor in tensors_of(module).items():
        if tensor.dtype not in _STORABLE:
            raise InvalidInput(
                f"the tensor {name!r} of the model is {tensor.dtype}", hint="use float16, float32 or float64"
            )
        weights[name] = tensor.detach().cpu().numpy()
    if not weights:
        raise InvalidInput("the model has no parameters", hint="give an nn.Module that can be trained")
    return weights


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return every tensor of the module's state_dict, by name."""
    tensors = module.state_dict()
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidInput(
                f"the model stores a {type(tensor).__name__} as {name!r}",
                hint="keep extra state out of `get_extra_state`, or make it tensors: register_buffer(...)",
            )
        require_shape(name, tensor)
    return tensors


def require_shape(name: str, tensor: torch.Tensor) -> None:
    if nn.parameter.is_lazy(tensor):
        raise InvalidInput(
            f"the tensor {name!r} of the model has no shape yet",
            hint="call the model once on a batch of features before giving it to a run",
        )


def load_weights(module: nn.Module, weights: Mapping[str, NDArray[np.generic]]) -> None:
    """Copy arrays into the module's tensors."""
    tensors = tensors_of(module)
    if tensors.keys() != weights.keys() or any(tensors[n].shape != w.shape for n, w in weights.items()):
        raise InvalidInput(
            "the model is not the one this run was made with (its tensors have other names or shapes)",
            hint="open the run with the nn.Module it began with",
        )
    with torch.no_grad():
        for name, array in weights.items():
            tensors[name].copy_(torch.from_numpy(np.asarray(array)))


def copied(weights: Weights, into: Weights | None) -> Weights:
    """Copy, into ``into`` if given."""
    if into is None:
        return {name: array.copy() for name, array in weights.items()}
    for name, array in weights.items():
        np.copyto(into[name], array, casting="no")
    return into


class PristineBuffers:
    """The initial values of buffers that the state_dict does not hold.

    Without a reset, these buffers would carry information from client to client and from run to run.
    """

    def __init__(self, module: nn.Module) -> None:
        stored = module.state_dict().keys()
        self._module = module
        self._values = {
            name: buffer.detach().clone() for name, buffer in sorted(module.named_buffers()) if name not in stored
        }

    def __len__(self) -> int:
        return len(self._values)

    def restore(self) -> None:
        for name, value in self._values.items():
            owner, _, attribute = name.rpartition(".")
            setattr(self._module.get_submodule(owner), attribute, value.clone())

    def digest(self) -> str:
        """Return a digest of their values; an empty string if there are none."""
        if not self._values:
            return ""
        hasher = hashlib.blake2b(digest_size=16)
        for value in self._values.values():
            hasher.update(f"{value.dtype}{tuple(value.shape)};".encode())
            hasher.update(value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        return hasher.hexdigest()


def float_type(module: nn.Module) -> torch.dtype:
    """Return the dtype that a module computes in; float features are converted to it."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def parameter_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the module's parameters; all other tensors are buffers."""
    return frozenset(name for name, _ in module.named_parameters(remove_duplicate=False))
