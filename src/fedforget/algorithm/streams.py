"""NumPy random streams, each from a key. No other module of the package creates one."""

from __future__ import annotations

import numpy as np


def numpy_stream(key: bytes) -> np.random.Generator:
    """Return a generator that depends on its key alone."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "big")))
