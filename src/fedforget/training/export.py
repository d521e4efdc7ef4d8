"""Handing a model out: a plain PyTorch state_dict, or safetensors."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from safetensors.torch import save

from fedforget.store.files import storage_errors, write_durably
from fedforget.training.weights import Weights


def export_model(weights: Weights, file: Path) -> Path:
    """Write the weights in the format that the file's name asks for."""
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    if file.suffix == ".safetensors":
        data = save(tensors)
    else:
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        data = buffer.getvalue()
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(file, data)
    return file
