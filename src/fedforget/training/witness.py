"""A cheap checksum of a local model: the bytes of small tensors, and the sums of large ones as 64-bit numbers.

It runs at memory speed and changes with any single bit. It need not resist forgery: a client keys it with its own seed
and compares it with its own note.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

_WORD = 8  # bytes
_SMALL = 1024  # bytes; a smaller tensor is copied, because summing costs a call

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]


class LocalModelChecksum:
    """Checksum of a module's trainable parameters and stored buffers."""

    def __init__(self, module: nn.Module, learning: Sequence[Tensor]) -> None:
        self._module = module
        self._learning = learning
        stored = module.state_dict().keys()
        self._buffers = [name for name, _ in module.named_buffers() if name in stored]

    def after(self, loss: float) -> bytes:
        """Return the checksum of the present values and of the last step's loss."""
        buffers = (self._module.get_buffer(name) for name in self._buffers)  # `forward` may replace them
        sums, whole = _split((*self._learning, *buffers))
        found = struct.pack(f"<d{len(sums)}Q", loss, *[np.add.reduce(words) for words in sums])
        return found + b"".join([part.tobytes() for part in whole])


def _split(tensors: Iterable[Tensor]) -> tuple[list[Words], list[Bytes]]:
    """Split tensors into the parts to sum and the parts to copy, as views (of a copy if a tensor is not contiguous)."""
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
