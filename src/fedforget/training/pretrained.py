"""Initial weights from a file: safetensors, or a PyTorch state_dict. No code of the file is executed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from fedforget.errors import InvalidInput

_DIGEST_BYTES = 16
_HEADS = ("classifier.",)  # layers that another number of classes replaces; they keep their initial weights
_MOST_NAMED = 3


def load_pretrained(module: nn.Module, path: Path) -> str:
    """Copy the weights of a file into a module, by name, and return the file's digest for the plan.

    The file must have every tensor of the module, in its shape, except those of the head (``classifier.``).
    """
    found, tensors = _read(path), module.state_dict()
    fitting = {name for name, tensor in tensors.items() if name in found and found[name].shape == tensor.shape}
    missing = [name for name in tensors if name not in fitting and not name.startswith(_HEADS)]
    if missing or not fitting:
        named = ", ".join(missing[:_MOST_NAMED]) + (" and others" if len(missing) > _MOST_NAMED else "")
        raise InvalidInput(
            f"{path} does not fit the model: it lacks {named or 'every tensor'}, or has them in another shape",
            hint="give the weights of the same network: for vgg16, torchvision's without BatchNorm",
        )
    with torch.no_grad():
        for name in fitting:
            tensors[name].copy_(found[name])
    return digest_of(path)


def digest_of(path: Path) -> str:
    """Return the digest of a file of weights."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(path: Path) -> Mapping[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    if not isinstance(found, Mapping) or not all(isinstance(each, Tensor) for each in found.values()):
        raise InvalidInput(
            f"{path} is not a state_dict, a mapping of names to tensors", hint="save it with model.state_dict()"
        )
    return found


def _unreadable(path: Path, error: Exception) -> InvalidInput:
    why = (str(error) or type(error).__name__).partition("\n")[0][:200]
    return InvalidInput(f"cannot read the weights in {path}: {why}", hint="give a .safetensors or .pt state_dict")
