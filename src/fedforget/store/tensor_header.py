"""Validate the header of a safetensors file before its tensors are read.

The tensors must cover the file exactly, so that neither the file nor a tensor can be larger than it claims.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

from fedforget.disk.parsing import parse_object
from fedforget.errors import RunDamaged

_MOST = 2**40  # bytes of a file
_LARGE = 2**30  # from this size on, sparse files are refused
_BLOCK = 512  # bytes, the unit of ``st_blocks``
_LENGTH = 8  # bytes that hold the length of the header
_LONGEST = 2**22
_MOST_DIMENSIONS = 32
_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    "BOOL": 1,
}  # fmt: skip


def require_header(descriptor: int, path: Path) -> None:
    """Raise RunDamaged if the header of an open file does not fit its size."""
    problem = _header_problem(descriptor)
    if problem is not None:
        raise RunDamaged(f"{path} is torn or altered: {problem}")


def _header_problem(descriptor: int) -> str | None:
    """Return what is wrong with the header of an open file, or None."""
    found = os.fstat(descriptor)
    size = found.st_size
    if size > _MOST or (size > _LARGE and found.st_blocks * _BLOCK < size // 2):
        return f"it has {size} bytes, and {found.st_blocks * _BLOCK} of them on disk"
    head = os.pread(descriptor, _LENGTH, 0)
    if len(head) < _LENGTH:
        return "it is too short"
    length = struct.unpack("<Q", head)[0]
    if not 0 < length <= min(_LONGEST, size - _LENGTH):
        return f"its header cannot have {length} bytes"
    try:
        tensors = parse_object(os.pread(descriptor, length, _LENGTH))
        end = _end_of([_stretch(tensor) for tensor in tensors.values()])
    except (ValueError, KeyError, TypeError) as error:
        return f"its header cannot be read: {str(error)[:100]}"
    if end != size - _LENGTH - length:
        return "its tensors do not fill it"
    return None


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
