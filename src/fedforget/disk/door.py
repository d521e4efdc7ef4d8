"""The one door to the files of a run, which trusts nothing in the directory: an auditor opens runs made by others.

A file is opened below the run's own directory by descriptor, component by component. Links are never followed, nothing
but a regular file is read (a pipe would hang, a device would never end), and never more of it than its kind may have.
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
from fedforget.errors import RunDamaged

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 2**20
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_HINT = "restore it from a backup; don't rely on a directory that someone else has altered"
_KINDS = (
    (stat.S_ISLNK, "a link"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a directory"), (stat.S_ISREG, "a file"),
    (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Door:
    """The way to the files of ``run``, or of one directory in it. Holds nothing open."""

    run: Path
    inner: str = ""

    @property
    def path(self) -> Path:
        return self.run / self.inner

    def size(self, name: str) -> int | None:
        """Bytes of a regular file; None if there is nothing of that name."""
        found = self.status(name)
        return None if found is None else found.st_size

    def status(self, name: str) -> os.stat_result | None:
        """What the system knows of a regular file; None if there is nothing of that name."""
        try:
            with self.directory() as directory:
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise self._not_a("regular file", self.path / name, found.st_mode)
        return found

    @contextlib.contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """A descriptor of a regular file, closed afterwards. Raises FileNotFoundError, among others."""
        descriptor = self.open(name, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """A descriptor of a regular file, which the caller closes."""
        self.status(name)  # opening a device can have effects of its own
        with self.directory() as directory, _shortage_is_told(self.path / name):
            descriptor = os.open(name, flags | _FILE, mode, dir_fd=directory)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise self._not_a("regular file", self.path / name, found.st_mode)
        return descriptor

    def read(self, name: str, most: int) -> bytes:
        """All of a file that has at most so many bytes."""
        with self.opened(name) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > most:
                raise RunDamaged(f"{self.path / name} has {size} bytes; at most {most} are expected", hint=_HINT)
            return b"".join(chunks(descriptor))

    def names(self, suffix: str) -> list[str]:
        """The names in the directory that end so, sorted; none if there is no directory."""
        try:
            with self.directory() as directory:
                return sorted(name for name in os.listdir(directory) if name.endswith(suffix))  # noqa: PTH208 (by descriptor)
        except FileNotFoundError:
            return []

    def is_there(self) -> bool:
        """Whether the directory itself exists. A link, or a file, in its place is refused."""
        try:
            with self.directory():
                return True
        except FileNotFoundError:
            return False

    def require_own(self, name: str) -> None:
        """Refuse to write into a file that has a second name: that would change the other one as well."""
        found = self.status(name)
        if found is not None and found.st_nlink > 1:
            raise RunDamaged(
                f"{self.path / name} has {found.st_nlink} names (hard links): writing it would change the others too",
                hint="make a real copy of the run directory (`cp -r`, without links) and work on that",
            )

    @contextlib.contextmanager
    def directory(self) -> Iterator[int]:
        """A descriptor of the directory, closed afterwards."""
        with _shortage_is_told(self.run):
            descriptor = os.open(self.run, _DIRECTORY)
        try:
            if self.inner:
                outer, descriptor = descriptor, self._inside(descriptor)
                os.close(outer)
            yield descriptor
        finally:
            os.close(descriptor)

    def _inside(self, run: int) -> int:
        found = os.stat(self.inner, dir_fd=run, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            raise self._not_a("directory", self.path, found.st_mode)
        with _shortage_is_told(self.path):
            return os.open(self.inner, _DIRECTORY | os.O_NOFOLLOW, dir_fd=run)

    @staticmethod
    def _not_a(wanted: str, path: Path, mode: int) -> RunDamaged:
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        return RunDamaged(f"{path} is {kind}, not a {wanted}", hint=_HINT)


@contextlib.contextmanager
def _shortage_is_told(path: Path) -> Iterator[None]:
    """That the system has no room for another open file says nothing about this one."""
    try:
        yield
    except OSError as error:
        if error.errno in _SHORT:
            raise storage_failure(path, error) from error
        raise


def chunks(descriptor: int) -> Iterator[bytes]:
    """What a regular file held when this began, from its start: never more, however it grows meanwhile."""
    left, place = os.fstat(descriptor).st_size, 0
    while left > 0:
        chunk = os.pread(descriptor, min(left, _CHUNK), place)
        if not chunk:
            return
        place, left = place + len(chunk), left - len(chunk)
        yield chunk
