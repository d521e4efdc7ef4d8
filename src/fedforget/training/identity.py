"""The identity of a run's learner: the tensors of its module, the tree of its parts, and its loss.

A run's states depend on its learner. A run does not open with a module of another structure. Names of classes and of
the loss may change when code moves, so a different name is only a hint: the check is whether the first steps of an
earlier round give the same result (``Federation.repeats``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedforget.errors import InvalidInput, quoted
from fedforget.training.weights import require_shape, tensors_of

Structure = Mapping[str, str]  # tensor → "parameter float32 64x10"
_MOST_NAMED = 3
_MOST_VALUES = 1000


def require_module(module: object) -> nn.Module:
    """Return the module. Refuse one that cannot be trained here."""
    if not isinstance(module, nn.Module):
        kind = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        raise InvalidInput(f"the model is {kind}, not an nn.Module", hint="give a module that is built: model=Net()")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise InvalidInput(
            "no parameter of the model learns", hint="give an nn.Module with at least one layer that is not frozen"
        )
    stored = tensors_of(module)
    for name, tensor in {**dict(module.named_buffers()), **stored}.items():
        _require_in_memory(name, tensor)
    for name, tensor in stored.items():
        if tensor.is_inference():
            raise InvalidInput(
                f"the tensor {name!r} of the model was made under torch.inference_mode(), and cannot learn",
                hint="build the model outside of it",
            )
    return module


def _require_in_memory(name: str, tensor: Tensor) -> None:
    """Refuse a tensor whose values are not dense and in CPU memory."""
    require_shape(name, tensor)
    if tensor.layout != torch.strided:
        raise InvalidInput(f"the tensor {name!r} of the model is sparse", hint="make it dense: tensor.to_dense()")
    if tensor.device.type != "cpu":
        raise InvalidInput(
            f"the tensor {name!r} of the model is on {tensor.device.type!r}",
            hint="build it on the CPU, or move it there: model.to('cpu')",
        )


def require_loss(loss: object) -> None:
    if isinstance(loss, type):
        raise InvalidInput(f"the loss is the class {loss.__name__}", hint=f"build it: loss={loss.__name__}()")
    if loss is not None and not callable(loss):
        raise InvalidInput(
            f"{quoted(loss)} is not a loss function",
            hint="give a function of (output, target), as torch.nn.functional has",
        )


def structure_of(module: nn.Module) -> dict[str, str]:
    """Describe every stored tensor of a module: whether it is trainable, its type and its shape."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {name: _described(tensor, parameters.get(name)) for name, tensor in tensors_of(module).items()}


def _described(tensor: Tensor, parameter: Tensor | None) -> str:
    kind = "buffer" if parameter is None else "parameter" if parameter.requires_grad else "frozen"
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{kind} {str(tensor.dtype).removeprefix('torch.')} {shape}"


def parts_of(module: nn.Module, loss: Callable[..., Any] | None) -> dict[str, str]:
    """Return the module's parts with their settings, and the loss, by name."""
    parts = {path or "model": f"{_name_of(type(part))}({part.extra_repr()})" for path, part in module.named_modules()}
    return {**parts, "loss": _described_loss(loss or nn.functional.cross_entropy)}


def _described_loss(loss: Callable[..., Any]) -> str:
    """Describe the loss with its settings, if readable."""
    if isinstance(loss, functools.partial):
        given = [*map(repr, loss.args), *(f"{name}={value!r}" for name, value in sorted(loss.keywords.items()))]
        return f"{_described_loss(loss.func)} with {', '.join(given)}"
    if not isinstance(loss, nn.Module):
        return _name_of(loss)
    plain = {name: value for name, value in sorted(vars(loss).items()) if isinstance(value, str | float | int)}
    tensors = {name: tensor.tolist() for name, tensor in loss.state_dict().items() if tensor.numel() <= _MOST_VALUES}
    settings = {name: value for name, value in plain.items() if name != "training" and not name.startswith("_")}
    return f"{_name_of(loss)}({', '.join(f'{name}={value}' for name, value in (settings | tensors).items())})"


def _name_of(thing: Any) -> str:
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe the first few differences."""
    found = [
        f"{name!r} was {then.get(name, 'not there')} and is {now.get(name, 'not there')}"
        for name in dict.fromkeys((*then, *now))
        if then.get(name) != now.get(name)
    ]
    more = len(found) - _MOST_NAMED
    return found[:_MOST_NAMED] + ([f"and {more} more"] if more > 0 else [])
