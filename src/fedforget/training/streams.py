"""Torch's random streams, each from the key of its address. No other module of the package seeds torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def start_stream(key: bytes) -> None:
    """Seed torch's default generator with the key of an address (for dropout and the like)."""
    torch.default_generator.manual_seed(int.from_bytes(key[:8], "big"))


def stream_was_used() -> bool:
    """Return whether torch's default generator has drawn anything since it was seeded."""
    fresh = torch.Generator().manual_seed(torch.default_generator.initial_seed())
    return not torch.equal(fresh.get_state(), torch.default_generator.get_state())


def stream_sample() -> bytes:
    """Return what random layers draw from a fixed stream: versions of torch and processors may differ in it."""
    start_stream(bytes(8))
    normal = torch.randn(1000).mul(8).round()  # its last bits depend on the arithmetic
    return torch.cat([normal, torch.dropout(torch.ones(1000), 0.5, train=True)]).numpy().tobytes()


@contextlib.contextmanager
def own_streams() -> Iterator[None]:
    """Restore the caller's random state afterwards."""
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)
