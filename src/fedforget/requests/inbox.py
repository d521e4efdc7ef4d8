"""``inbox/``: submissions for a run that another process has open. One file each, written atomically.

The writer accepts each file into the record before deleting it; ids make acceptance idempotent.

Each file's name begins with a number: one more than the largest that the submitter found in the directory. A submission
that begins after another has ended therefore has the larger number, as long as the other file exists; no clock is used.
Two that overlap may get the same number. Their ids then decide, and either order is a valid order of receipt.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from fedforget.disk.door import Door
from fedforget.disk.files import TEMPORARY, digest, storage_errors, sync_directory, unlink_leftover, write_durably
from fedforget.errors import InvalidInput, RunDamaged, StorageFailed
from fedforget.requests.lifecycle import Receipt, Submission

NAME = "inbox"
_SUFFIX = ".json"
_NUMBERED = re.compile(r"([0-9]{12})-.*", re.ASCII)
_LAST_NUMBER = 10**12 - 1
_ATTEMPTS = 20
_LARGEST, _MOST = 2**24, 10_000  # bytes of all files together; number of files
_DELETE = "delete this file, then submit the request again"


class Inbox:
    """The submissions that are not yet accepted into the record."""

    def __init__(self, run: Path) -> None:
        self._directory = run / NAME
        self._door = Door(run, NAME)

    def leave(self, submission: Submission) -> Path:
        """Write a submission and return its file. It is durable when this returns."""
        attempt = 0
        while True:
            attempt += 1
            try:
                self._require_room(data := _sealed(submission.encode()))
                with storage_errors(self._directory):
                    self._directory.mkdir(mode=0o700, exist_ok=True)
                    sync_directory(self._directory.parent)
                name = f"{self._next():012}-{submission.ids[0]}{_SUFFIX}"
                write_durably(self._directory / name, data, mode=0o600)
            except StorageFailed as error:
                if attempt == _ATTEMPTS or not isinstance(error.__cause__, FileNotFoundError):
                    raise
                # the writer has just cleaned up, and removed the directory or the temporary file
            else:
                return self._directory / name

    def _require_room(self, data: bytes) -> None:
        names = self.names()
        if len(data) + sum(self._door.size(name) or 0 for name in names) > _LARGEST or len(names) >= _MOST:
            raise InvalidInput(
                f"{self._directory} has no room for these requests: at most {_MOST} files and {_LARGEST} bytes",
                hint="wait until the process at work has accepted its files, or submit fewer at once",
            )

    def __bool__(self) -> bool:
        return bool(self.names())

    def submissions(self) -> list[tuple[Path, Submission]]:
        """Return all submissions in the order of receipt."""
        found = []
        for name in self._in_order():
            with contextlib.suppress(FileNotFoundError):  # the writer has accepted and deleted it meanwhile
                found.append((self._directory / name, self.read(name)))
        return found

    def _in_order(self) -> list[str]:
        """Return the names by number, up to the largest number of a first listing.

        A listing that runs while files are added may contain a later file and miss an earlier one. A second listing
        contains every file that is earlier than one of the first listing.
        """
        last = self._last()
        return sorted((name for name in self.names() if _number(name) <= last), key=lambda name: (_number(name), name))

    def _last(self) -> int:
        return max(map(_number, self._names()), default=0)

    def _next(self) -> int:
        """Return the number of the next submission; raise RunDamaged if a file has the last of all numbers."""
        last = self._last()
        if last < _LAST_NUMBER:
            return last + 1
        name = next((name for name in self._names() if _number(name) == last), "")
        raise RunDamaged(
            f"{self._directory / name} has a number that no submission gets: the order of receipt would be lost",
            hint=_DELETE,
        )

    def take_away(self, path: Path) -> None:
        with storage_errors(path):
            path.unlink(missing_ok=True)
            sync_directory(self._directory)

    def clean(self) -> None:
        """Delete temporary files that a crash left, and the directory if it is empty."""
        if not self._door.is_there():
            return
        with storage_errors(self._directory):
            for leftover in self._directory.glob("*" + TEMPORARY):
                unlink_leftover(leftover)
        with contextlib.suppress(OSError):  # a submitter is just writing to it
            self._directory.rmdir()

    def names(self) -> list[str]:
        """Return the names of the files. Refuse more files or bytes than an inbox may hold."""
        found = self._names()
        size = sum(self._door.size(name) or 0 for name in found) if len(found) <= _MOST else 0
        if len(found) > _MOST or size > _LARGEST:
            what = f"{size} bytes; at most {_LARGEST}" if size else f"{len(found)} files; at most {_MOST}"
            hint = "delete its files, then submit their requests again"
            raise RunDamaged(f"{self._directory} holds {what} are expected", hint=hint)
        return found

    def _names(self) -> list[str]:
        return self._door.names(_SUFFIX)

    def read(self, name: str) -> Submission:
        """Read one submission. Raise FileNotFoundError if the writer has accepted and deleted it meanwhile."""
        if not _number(name):
            raise RunDamaged(f"{self._directory / name} is not named as a submission is", hint=_DELETE)
        try:
            return Submission.decode(_unsealed(self._door.read(name, _LARGEST)))
        except (ValueError, KeyError, TypeError, InvalidInput) as error:
            raise RunDamaged(f"{self._directory / name} is damaged: it is not a submission", hint=_DELETE) from error


def _number(name: str) -> int:
    """Return the number that a name begins with; 0 for a name that no submission has."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else 0


def _sealed(data: bytes) -> bytes:
    """Prefix the data with its digest."""
    return digest(data).encode() + b"\n" + data


def _unsealed(sealed: bytes) -> bytes:
    known, _, data = sealed.partition(b"\n")
    if digest(data).encode() != known:
        raise ValueError("its digest does not match")
    return data


def open_requests(receipts: Iterable[Receipt], inbox: Inbox) -> list[Receipt]:
    """Return the requests that are not closed, of those in the book and those that no process has accepted yet."""
    submitted = (receipt for _, submission in inbox.submissions() for receipt in submission.receipts())
    return [receipt for receipt in (*receipts, *submitted) if receipt.is_open]
