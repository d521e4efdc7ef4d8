"""Torch's random streams, each from the key of its address. No other module of the package seeds torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def start_stream(key: bytes) -> None:
    """Seed torch's default generator with the key of an address (for dropout and the like)."""
    torch.default_generator.manual_seed(int.from_bytes(key[:8], "big"))


@contextlib.contextmanager
def own_streams() -> Iterator[None]:
    """Restore the caller's random state afterwards."""
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)
