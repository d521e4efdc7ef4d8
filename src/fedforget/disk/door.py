"""Safe access to the files of a run directory that may be hostile: an auditor opens runs made by others.

A file in a subdirectory is opened relative to a descriptor of that directory. ``Door`` follows no links in a run, reads
only regular files (a pipe would block, a device could be endless), refuses large files that are mostly holes, and reads
at most the number of bytes that the caller allows. ``read_named`` reads a file outside a run, whose path the caller
gives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedforget.disk.files import storage_failure
from fedforget.errors import FedForgetError, InvalidInput, RunDamaged

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 2**20
_LARGE = 2**24  # bytes from which a file may not consist mostly of holes
_BLOCK = 512  # bytes, the unit of ``st_blocks``
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_HINT = "restore it from a backup; don't rely on a directory that another party has altered"
_CHECK = "check the path"
_KINDS = (
    (stat.S_ISLNK, "a link"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a directory"), (stat.S_ISREG, "a file"),
    (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Door:
    """Access to the files of ``run``, or of its subdirectory ``inner``. Keeps no descriptor open."""

    run: Path
    inner: str = ""

    @property
    def path(self) -> Path:
        return self.run / self.inner

    def size(self, name: str) -> int | None:
        """Return the size of a regular file in bytes, or None if it does not exist."""
        found = self.status(name)
        return None if found is None else found.st_size

    def status(self, name: str) -> os.stat_result | None:
        """Return the stat result of a regular file, or None if it does not exist."""
        try:
            with self._way_to(name) as (where, directory):
                found = os.stat(where, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise self._not_a("regular file", self.path / name, found.st_mode)
        return found

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open a regular file for the block and yield its descriptor. Raises OSError, for example FileNotFoundError.

        Refuses a large file that is mostly holes: reading it takes far longer than its space on disk explains.
        """
        descriptor = self.open(name, flags)
        try:
            self._require_dense(name, descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """Open a regular file and return its descriptor, which the caller closes."""
        self.status(name)  # merely opening a device can have side effects
        with self._way_to(name) as (where, directory), _shortage_as_storage_failed(self.path / name):
            descriptor = os.open(where, flags | _FILE, mode, dir_fd=directory)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise self._not_a("regular file", self.path / name, found.st_mode)
        return descriptor

    def _require_dense(self, name: str, descriptor: int) -> None:
        found = os.fstat(descriptor)
        on_disk = found.st_blocks * _BLOCK
        if found.st_size >= _LARGE and on_disk < found.st_size // 2 and _has_hole(descriptor, found.st_size):
            raise RunDamaged(
                f"{self.path / name} is mostly holes: it has {found.st_size} bytes, and {on_disk} of them on disk",
                hint="restore it from a backup; if the backup tool made the holes, copy it with `cp --sparse=never`",
            )

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file; raise RunDamaged if it has more than ``most`` bytes."""
        with self.opened(name) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > most:
                raise RunDamaged(f"{self.path / name} has {size} bytes; at most {most} are expected", hint=_HINT)
            return b"".join(chunks(descriptor))

    def names(self, suffix: str) -> list[str]:
        """Return the sorted names in the directory that end with ``suffix``; empty if the directory is missing."""
        try:
            with self.directory() as directory:
                return sorted(name for name in os.listdir(directory) if name.endswith(suffix))  # noqa: PTH208 (by descriptor)
        except FileNotFoundError:
            return []

    def is_there(self) -> bool:
        """Return whether the directory exists. Raises RunDamaged if ``inner`` is a link or a file."""
        try:
            with self.directory():
                return True
        except FileNotFoundError:
            return False

    def require_own(self, name: str) -> None:
        """Refuse to write a file with a second hard link: writing would change that one too."""
        found = self.status(name)
        if found is not None and found.st_nlink > 1:
            raise RunDamaged(
                f"{self.path / name} has {found.st_nlink} names (hard links): writing it would change the others too",
                hint="make a real copy of the run directory (`cp -r`, without links) and work on that",
            )

    @contextlib.contextmanager
    def directory(self) -> Iterator[int]:
        """Open the directory for the block and yield its descriptor."""
        with _shortage_as_storage_failed(self.run):
            descriptor = os.open(self.run, _DIRECTORY)
        try:
            if self.inner:
                outer, descriptor = descriptor, self._inside(descriptor)
                os.close(outer)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _way_to(self, name: str) -> Iterator[tuple[str, int | None]]:
        """Yield a name, and the descriptor of the directory that it is relative to.

        A file directly in the run needs none: the run itself may be a link, and the file's name is the only one behind.
        """
        if self.inner:
            with self.directory() as directory:
                yield name, directory
        else:
            yield os.path.join(self.run, name), None  # noqa: PTH118 (faster than a Path, and called for each file)

    def _inside(self, run: int) -> int:
        found = os.stat(self.inner, dir_fd=run, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            raise self._not_a("directory", self.path, found.st_mode)
        with _shortage_as_storage_failed(self.path):
            return os.open(self.inner, _DIRECTORY | os.O_NOFOLLOW, dir_fd=run)

    @staticmethod
    def _not_a(wanted: str, path: Path, mode: int) -> RunDamaged:
        return RunDamaged(f"{path} is {_kind(mode)}, not a {wanted}", hint=_HINT)


def read_named(path: Path, most: int, hint: str = _CHECK) -> bytes:
    """Return the content of a regular file whose path the caller gives. Follows links.

    Raises InvalidInput with ``hint`` if it cannot be read or is a pipe, a device or a directory, and ValueError for
    more than ``most`` bytes.
    """
    with unreadable_as(InvalidInput, path, hint):
        mode = path.stat().st_mode  # merely opening a device can have side effects
        if not stat.S_ISREG(mode):
            raise InvalidInput(f"{path} is {_kind(mode)}, not a regular file", hint="give the path of a regular file")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes")
    return data


@contextlib.contextmanager
def unreadable_as(kind: type[FedForgetError], path: Path, hint: str = _CHECK) -> Iterator[None]:
    """Turn an OSError of the block, which reads a file, into an error of ``kind`` with path, reason and hint."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror or error}", hint=hint) from error


def _kind(mode: int) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")


def _has_hole(descriptor: int, size: int) -> bool:
    """Return whether a file has a hole before its end, as far as the file system tells.

    A small ``st_blocks`` alone proves nothing: a compressing file system reports few blocks for a file without holes,
    and some report too few right after writing.
    """
    try:
        return os.lseek(descriptor, 0, os.SEEK_HOLE) < size
    except OSError:
        return False


@contextlib.contextmanager
def _shortage_as_storage_failed(path: Path) -> Iterator[None]:
    """Raise StorageFailed when descriptors or memory run out: that says nothing about the file itself."""
    try:
        yield
    except OSError as error:
        if error.errno in _SHORT:
            raise storage_failure(path, error) from error
        raise


def chunks(descriptor: int) -> Iterator[bytes]:
    """Yield the content of a regular file, up to the size it has at the start, even if it grows meanwhile."""
    left, place = os.fstat(descriptor).st_size, 0
    while left > 0:
        chunk = os.pread(descriptor, min(left, _CHUNK), place)
        if not chunk:
            return
        place, left = place + len(chunk), left - len(chunk)
        yield chunk
