"""What a witness holds of a client's first steps: a checksum of the local model, and some numbers of the first step.

The checksum takes the bytes of small tensors, and of large ones weighted sums of rows of 64-bit words. It runs at
memory speed and changes with any single bit, and with the order of the words. It need not resist forgery: a client keys
it with its own seed and compares it with its own note. The numbers can be compared where bits differ.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedforget.algorithm.ports import FirstStep
from fedforget.training.weights import Weights

_WORD = 8  # bytes
_SMALL = 1024  # bytes; a smaller tensor is copied, because summing costs a call
_HALF = 2  # bytes of a half-precision number, whose squares do not fit
_ROW = 1024  # words
_FACTORS = np.frombuffer(hashlib.shake_128(b"checksum").digest(_ROW * _WORD), np.uint64) | np.uint64(1)

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]


class LocalModelChecksum:
    """Checksum of a module's trainable parameters and stored buffers, and the size of a step."""

    def __init__(self, module: nn.Module, learning: Sequence[Tensor]) -> None:
        self._module = module
        self._learning = learning
        stored = module.state_dict().keys()
        self._names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        buffers = {name: buffer for name, buffer in module.named_buffers() if name in stored}
        self._buffers = list(buffers)
        self._float_buffers = [name for name, buffer in buffers.items() if buffer.is_floating_point()]

    def after(self, loss: float) -> bytes:
        """Return the checksum of the present values and of the last step's loss."""
        buffers = (self._module.get_buffer(name) for name in self._buffers)  # `forward` may replace them
        sums, whole = _split((*self._learning, *buffers))
        parts = [struct.pack("<d", loss), *map(_weighted_sums, sums), *(part.tobytes() for part in whole)]
        return b"".join(parts)

    def first_step(self, loss: float, before: Weights) -> FirstStep:
        """Return the loss of a first step, and how far it moved the parameters and the buffers from ``before``."""
        parameters = zip(self._names, self._learning, strict=True)
        buffers = ((name, self._module.get_buffer(name)) for name in self._float_buffers)
        return loss, _moved(parameters, before), _moved(buffers, before)


def _weighted_sums(words: Words) -> bytes:
    """Multiply the words of each row by odd factors, and add up each row: equal words in another order are noticed."""
    edge = len(words) // _ROW * _ROW
    rows: Words = np.einsum("ij,j->i", words[:edge].reshape(-1, _ROW), _FACTORS)
    rest: Words = np.einsum("ij,j->i", words[None, edge:], _FACTORS[: len(words) - edge])
    return rows.tobytes() + rest.tobytes()


def _moved(tensors: Iterable[tuple[str, Tensor]], before: Weights) -> float:
    """Return how far these float tensors moved. Their layout in memory does not affect the order of the sum."""
    total = 0.0
    for name, tensor in tensors:
        change = np.ravel(tensor.detach().numpy()) - np.ravel(before[name])
        wide = change if change.itemsize > _HALF else change.astype(np.float32)
        total += float(np.einsum("i,i->", wide, wide))
    return math.sqrt(total)


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
