"""Lack of memory: detection, and the remedy for the operator."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from fedforget.errors import OutOfMemory

REMEDY = "use fewer workers (--workers), smaller batches or a smaller model, or free some memory,"


def is_lack_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, the operating system or torch reports a lack of memory."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("can't allocate memory", "not enough memory", "Cannot allocate memory")
    )


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
