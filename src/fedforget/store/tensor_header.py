"""Validate the header of a safetensors file before its tensors are read.

The tensors must cover the file exactly, so that neither the file nor a tensor can be larger than it claims. What a
stored state holds follows from the plan (``state_layouts``): every other tensor is refused as well.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedforget.disk.parsing import parse_object
from fedforget.errors import RunDamaged

OPTIMIZER = "server-optimizer/"  # the prefix of the server optimizer's tensors
Layout = Mapping[str, tuple[str, tuple[int, ...]]]  # tensor → type and shape

_MOST = 2**40  # bytes of a file
_LENGTH = 8  # bytes that hold the length of the header
_LONGEST = 2**22
_MOST_DIMENSIONS = 32
_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    "BOOL": 1,
}  # fmt: skip


_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_DESCRIBED = re.compile(r"(parameter|frozen|buffer) ([a-z0-9]+) (scalar|[0-9]{1,18}(?:x[0-9]{1,18})*)", re.ASCII)
_MOMENTS = ("m/", "v/")  # of FedAdam, for each tensor that is not a buffer


def state_layouts(tensors: Mapping[str, str], *, moments: bool) -> tuple[Layout, ...]:
    """Return the layouts that a stored state may have; raise ValueError if a description is not one of a plan.

    ``tensors``: the descriptions in the plan, such as ``parameter float32 64x10``. ``moments``: the server optimizer
    keeps moments, and only the initial state has none.
    """
    model: dict[str, tuple[str, tuple[int, ...]]] = {}
    optimizer: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, text in tensors.items():
        found = _DESCRIBED.fullmatch(text)
        if found is None or found[2] not in _TYPES:
            raise ValueError(f"a tensor cannot be {text[:60]!r}")
        shape = () if found[3] == "scalar" else tuple(map(int, found[3].split("x")))
        model[name] = _TYPES[found[2]], shape
        if found[1] != "buffer":
            optimizer |= {f"{OPTIMIZER}{moment}{name}": ("F64", shape) for moment in _MOMENTS}
    return (model, {**model, **optimizer}) if moments else (model,)


def require_header(descriptor: int, path: Path, allowed: tuple[Layout, ...] = ()) -> None:
    """Raise RunDamaged if the header of an open file does not fit its size, or describes no ``allowed`` layout."""
    try:
        found = _layout(descriptor)
    except (ValueError, KeyError, TypeError) as error:
        raise RunDamaged(f"{path} is torn or altered: {str(error)[:100]}") from error
    if allowed and found not in allowed:
        raise RunDamaged(f"{path} is torn or altered: its tensors are not those of the plan")


def _layout(descriptor: int) -> Layout:
    """Return the layout in the header of an open file; raise ValueError, KeyError or TypeError if it is not sound."""
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, _LENGTH, 0)
    if size > _MOST or len(head) < _LENGTH:
        raise ValueError(f"it cannot have {size} bytes")
    length = struct.unpack("<Q", head)[0]
    if not 0 < length <= min(_LONGEST, size - _LENGTH):
        raise ValueError(f"its header cannot have {length} bytes")
    tensors = parse_object(os.pread(descriptor, length, _LENGTH))
    end = _end_of([_stretch(tensor) for tensor in tensors.values()])
    if end != size - _LENGTH - length:
        raise ValueError("its tensors do not fill it")
    return {name: (tensor["dtype"], tuple(tensor["shape"])) for name, tensor in tensors.items()}


def _stretch(tensor: Any) -> tuple[int, int]:
    """Return the offsets of a tensor's begin and end; raise ValueError unless its type and shape need exactly that."""
    if not isinstance(tensor, dict) or tensor.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("a tensor needs exactly dtype, shape and data_offsets")
    shape, (begin, end) = tensor["shape"], tensor["data_offsets"]
    if tensor["dtype"] not in _BYTES:
        raise ValueError("a tensor has an unknown type")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or not all(map(_is_count, [*shape, begin, end])):
        raise ValueError("a tensor has an impossible shape or offset")
    if math.prod(shape) * _BYTES[tensor["dtype"]] != end - begin:
        raise ValueError("the size of a tensor does not match its shape")
    return begin, end


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _end_of(stretches: list[tuple[int, int]]) -> int:
    """Return the end of the last tensor; raise ValueError unless they are contiguous."""
    place = 0
    for begin, end in sorted(stretches):
        if begin != place:
            raise ValueError("its tensors are not contiguous")
        place = end
    return place
