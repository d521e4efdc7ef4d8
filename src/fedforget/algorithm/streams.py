"""The one file of the package that makes NumPy random streams: each from a key, none from global state."""

from __future__ import annotations

import numpy as np


def numpy_stream(key: bytes) -> np.random.Generator:
    """A generator that is a function of its key alone."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "big")))
