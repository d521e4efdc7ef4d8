"""``inbox/``: where requests are left for a process that is at work on the run. One file each, whole or not there.

The process at work takes them into the record, and only then away; a file that was taken in already is known by its
ids, so that a crash in between loses nothing and doubles nothing.

Each file's name begins with a number: one more than the largest that its submitter found in the directory. So a
submission that begins after another has ended has the larger number, as long as the other is there, and no clock is
asked. Two that overlap may get the same number; their ids decide then, and either order is an order of receipt.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from fedforget.disk.door import Door
from fedforget.disk.files import TEMPORARY, digest, storage_errors, sync_directory, write_durably
from fedforget.errors import InvalidInput, RunDamaged, StorageFailed
from fedforget.requests.lifecycle import Submission

NAME = "inbox"
_SUFFIX = ".json"
_NUMBERED = re.compile(r"([0-9]{12,18})-.*", re.ASCII)
_ATTEMPTS = 20
_LARGEST, _MOST = 2**24, 10_000  # bytes, of one file or of all together; and files
_DELETE = "delete this file, then hand the request in again"


class Inbox:
    """The submissions that are still to be taken in."""

    def __init__(self, run: Path) -> None:
        self._directory = run / NAME
        self._door = Door(run, NAME)

    def leave(self, submission: Submission) -> None:
        """Durable when it returns."""
        for attempt in range(_ATTEMPTS):
            try:
                self._require_room(data := _sealed(submission.encode()))
                with storage_errors(self._directory):
                    self._directory.mkdir(mode=0o700, exist_ok=True)
                    sync_directory(self._directory.parent)
                name = f"{self._last() + 1:012}-{submission.ids[0]}{_SUFFIX}"
                write_durably(self._directory / name, data, mode=0o600)
            except StorageFailed as error:
                if attempt + 1 == _ATTEMPTS or not isinstance(error.__cause__, FileNotFoundError):
                    raise
                # the process at work has just tidied up, and removed the directory or the temporary file
            else:
                return

    def _require_room(self, data: bytes) -> None:
        names = self.names()
        if len(data) + sum(self._door.size(name) or 0 for name in names) > _LARGEST or len(names) >= _MOST:
            raise InvalidInput(
                f"{self._directory} has no room for these requests: it takes {_MOST} files, {_LARGEST} bytes in all",
                hint="wait until the process at work has taken in what is there, or hand in fewer at once",
            )

    def __bool__(self) -> bool:
        return bool(self.names())

    def submissions(self) -> list[tuple[Path, Submission]]:
        """In the order in which they were received."""
        found = []
        for name in self._in_order():
            with contextlib.suppress(FileNotFoundError):  # taken in meanwhile by the process at work
                found.append((self._directory / name, self.read(name)))
        return found

    def _in_order(self) -> list[str]:
        """By number, up to the largest that a first listing shows.

        A listing that runs while files are added may show a later one and miss an earlier one; a second listing has
        all that came before anything in the first.
        """
        last = self._last()
        return sorted((name for name in self.names() if _number(name) <= last), key=lambda name: (_number(name), name))

    def _last(self) -> int:
        return max(map(_number, self._names()), default=0)

    def take_away(self, path: Path) -> None:
        with storage_errors(path):
            path.unlink(missing_ok=True)
            sync_directory(self._directory)

    def clean(self) -> None:
        """Take away what a crash left half written, and the directory if nothing is in it."""
        if not self._door.is_there():
            return
        with storage_errors(self._directory):
            for leftover in self._directory.glob("*" + TEMPORARY):
                leftover.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a submitter is just leaving something
            self._directory.rmdir()

    def names(self) -> list[str]:
        """The files, by name; refused if there are more than a run would accept."""
        found = self._names()
        size = sum(self._door.size(name) or 0 for name in found) if len(found) <= _MOST else 0
        if len(found) > _MOST or size > _LARGEST:
            what = f"{size} bytes; at most {_LARGEST}" if size else f"{len(found)} files; at most {_MOST}"
            raise RunDamaged(f"{self._directory} holds {what} are expected", hint="hand in what is in it again")
        return found

    def _names(self) -> list[str]:
        return self._door.names(_SUFFIX)

    def read(self, name: str) -> Submission:
        """One submission. Raises FileNotFoundError if a process has taken it in meanwhile."""
        try:
            return Submission.decode(_unsealed(self._door.read(name, _LARGEST)))
        except (ValueError, KeyError, TypeError, InvalidInput) as error:
            raise RunDamaged(f"{self._directory / name} is damaged: it is no submission", hint=_DELETE) from error


def _number(name: str) -> int:
    """0 for a name that is not one of ours; reading the file tells whether it is a submission."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else 0


def _sealed(data: bytes) -> bytes:
    """With its digest on a line before it: a request must stay the request it was."""
    return digest(data).encode() + b"\n" + data


def _unsealed(sealed: bytes) -> bytes:
    known, _, data = sealed.partition(b"\n")
    if digest(data).encode() != known:
        raise ValueError("its digest is another")
    return data
