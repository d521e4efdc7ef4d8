"""Atomic, durable file writes: temporary name, fsync, rename, fsync of the directory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from fedforget.errors import InvalidInput, StorageFailed, quoted

TEMPORARY = ".tmp"


def new_hasher() -> hashlib.blake2b:
    """Return the hash object behind ``digest``, for content that is read in chunks."""
    return hashlib.blake2b(digest_size=32)


def digest(data: bytes) -> str:
    """Return the BLAKE2b-256 in hexadecimal, as ``b2sum -l 256`` prints it."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


@contextlib.contextmanager
def storage_errors(path: Path, but: type[OSError] | tuple[type[OSError], ...] = ()) -> Iterator[None]:
    """Turn an OSError of the block into StorageFailed with path and remedy. Errors of type ``but`` pass unchanged."""
    try:
        yield
    except but:
        raise
    except OSError as error:
        raise storage_failure(path, error) from error


def storage_failure(path: Path, error: OSError) -> StorageFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageFailed(
            f"no space left to write {path}", hint="free some space and give the same command again; nothing was lost"
        )
    return StorageFailed(
        f"cannot write {path}: {error.strerror or error}", hint="fix the cause and give the same command again"
    )


def write_durably(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Create or replace a file atomically and durably. Its permissions are never wider than ``mode``."""
    temporary = path.with_name(path.name + TEMPORARY)
    with storage_errors(path):
        try:
            unlink_leftover(temporary)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def unlink_leftover(path: Path) -> None:
    """Delete a temporary file, if there is one; raise StorageFailed that names it if that is impossible."""
    with storage_errors(path):
        try:
            path.unlink(missing_ok=True)
        except IsADirectoryError as error:
            raise StorageFailed(
                f"{path} is a directory, where a temporary file belongs",
                hint="move it away and give the same command again",
            ) from error


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read. SQLite fills it and gives its log the same mode."""
    with storage_errors(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def path_of(given: object, what: str) -> Path:
    """Return the caller's argument as a path; raise InvalidInput if it cannot be one."""
    try:
        path = Path(given)  # type: ignore[arg-type]
        if b"\0" not in os.fsencode(path):
            return path
    except (TypeError, UnicodeEncodeError):
        pass
    raise InvalidInput(
        f"{quoted(given)} cannot be the path of {what}", hint="give a str or a pathlib.Path, without NUL characters"
    )


def require_place(path: Path, *, outside: Path) -> Path:
    """Resolve the path of an output file, following links.

    Refuse a place inside the run ``outside``, and to replace anything but a regular file.
    """
    with storage_errors(path):
        place = path.resolve()
        if place.is_relative_to(outside.resolve()):
            raise InvalidInput(f"{path} is inside the run", hint="write it to a place outside the run directory")
        if place.exists() and not place.is_file():
            raise InvalidInput(f"{path} is not a regular file", hint="give the name of a file, new or to be replaced")
        return place


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make renames and unlinks in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
