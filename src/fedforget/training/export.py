"""Export of a model: as a plain PyTorch state_dict or a safetensors file."""

from __future__ import annotations

import io

import torch
from safetensors.torch import save

from fedforget.training.weights import Weights


def exported(weights: Weights, as_safetensors: bool) -> bytes:
    """Return the bytes of a file with the weights, under the module's names."""
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    if as_safetensors:
        return save(tensors)
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()
