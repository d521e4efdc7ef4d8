"""A cheap checksum of a local model: the bits of small tensors, and the sum of large ones' as 64-bit numbers.

It runs at the speed of memory and changes with any single bit. It is no protection against a forger, and need not be:
a client keys it with its own seed and compares it with its own note.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

_WORD = 8  # bytes
_SMALL = 1024  # bytes up to which a tensor is taken whole: summing costs a call

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]


class LocalModelChecksum:
    """Of what local steps change in a module: its learning parameters, and its stored buffers."""

    def __init__(self, module: nn.Module, learning: Sequence[Tensor]) -> None:
        self._module = module
        self._learning = learning
        stored = module.state_dict().keys()
        self._buffers = [name for name, _ in module.named_buffers() if name in stored]

    def after(self, loss: float) -> bytes:
        """The checksum of the present values, and of the loss of the step before."""
        buffers = (self._module.get_buffer(name) for name in self._buffers)  # which `forward` may replace
        sums, whole = _split((*self._learning, *buffers))
        found = struct.pack(f"<d{len(sums)}Q", loss, *[np.add.reduce(words) for words in sums])
        return found + b"".join([part.tobytes() for part in whole])


def _split(tensors: Iterable[Tensor]) -> tuple[list[Words], list[Bytes]]:
    """Views of memory (of a copy, where a tensor lies in pieces): what is summed, and what is taken whole."""
    sums: list[Words] = []
    whole: list[Bytes] = []
    for tensor in tensors:
        flat = np.ravel(tensor.detach().numpy()).view(np.uint8)
        edge = 0 if flat.size <= _SMALL else flat.size - flat.size % _WORD
        if edge:
            sums.append(flat[:edge].view(np.uint64))
        if edge < flat.size:
            whole.append(flat[edge:])
    return sums, whole
