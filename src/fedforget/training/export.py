"""Handing a model out: the bytes of a plain PyTorch state_dict, or of a safetensors file."""

from __future__ import annotations

import io

import torch
from safetensors.torch import save

from fedforget.training.weights import Weights


def exported(weights: Weights, as_safetensors: bool) -> bytes:
    """The weights as one file's bytes, under the names that the module gives them."""
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    if as_safetensors:
        return save(tensors)
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()
