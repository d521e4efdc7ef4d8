"""Lack of memory: how it shows, and what to do about it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from fedforget.errors import OutOfMemory

REMEDY = "use fewer workers (--workers), smaller batches or a smaller model, or free some memory,"


def is_lack_of_memory(error: BaseException) -> bool:
    """Python, the operating system and torch each have their own way to say it."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("can't allocate memory", "not enough memory", "Cannot allocate memory")
    )


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Raise lack of memory as an error of ours."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        raise OutOfMemory(
            f"there is not enough memory: {error}", hint=f"{REMEDY} and give the same command again"
        ) from error
