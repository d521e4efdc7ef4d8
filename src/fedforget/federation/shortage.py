"""Lack of memory: detection, and the remedy for the operator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fedforget.errors import OutOfMemory, is_lack_of_memory

__all__ = ["REMEDY", "as_out_of_memory", "is_lack_of_memory"]
REMEDY = "use fewer workers (--workers), smaller batches or a smaller model, or free some memory,"


@contextlib.contextmanager
def as_out_of_memory() -> Iterator[None]:
    """Raise OutOfMemory for any error that reports a lack of memory."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        raise OutOfMemory(
            f"there is not enough memory: {error}", hint=f"{REMEDY} and give the same command again"
        ) from error
