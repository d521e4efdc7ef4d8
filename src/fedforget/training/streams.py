"""The one file of the package that seeds torch: each stream from the key of its address."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def start_stream(key: bytes) -> None:
    """Let torch's default generator start at an address (for dropout and the like)."""
    torch.default_generator.manual_seed(int.from_bytes(key[:8], "big"))


@contextlib.contextmanager
def own_streams() -> Iterator[None]:
    """Give the caller its random state back afterwards."""
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)
