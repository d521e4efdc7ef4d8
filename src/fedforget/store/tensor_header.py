"""The header of a safetensors file, checked before anything behind it is read.

It must say of every byte of the file which tensor it belongs to, so that neither a file nor a tensor can be larger than
it looks.
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
_LARGE = 2**30  # from here on a file must take the room on disk that it says it has
_BLOCK = 512  # bytes, the unit in which the system counts that room
_LENGTH = 8  # bytes that say how long the header is
_LONGEST = 2**22
_MOST_DIMENSIONS = 32
_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
    "BOOL": 1,
}  # fmt: skip


def require_header(descriptor: int, path: Path) -> None:
    """Refuse an open file whose header does not fit its size, before any more of it is read."""
    problem = _problem_of(descriptor)
    if problem is not None:
        raise RunDamaged(f"{path} is torn or altered: {problem}")


def _problem_of(descriptor: int) -> str | None:
    """What is wrong with the header of an open file; None if nothing is."""
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
    """Where a tensor begins and ends; raises ValueError unless its type and shape need exactly that."""
    if not isinstance(tensor, dict) or tensor.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("a tensor has a type, a shape and a place")
    shape, (begin, end) = tensor["shape"], tensor["data_offsets"]
    if tensor["dtype"] not in _BYTES:
        raise ValueError("a tensor has an unknown type")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or not all(map(_is_count, [*shape, begin, end])):
        raise ValueError("a tensor has an impossible shape or place")
    if math.prod(shape) * _BYTES[tensor["dtype"]] != end - begin:
        raise ValueError("a tensor has another size than its shape")
    return begin, end


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _end_of(stretches: list[tuple[int, int]]) -> int:
    """Where the last one ends, if each begins where the one before it does."""
    place = 0
    for begin, end in sorted(stretches):
        if begin != place:
            raise ValueError("its tensors do not lie one behind the other")
        place = end
    return place
