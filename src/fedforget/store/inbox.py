"""``inbox/``: where requests are left for a process that is at work on the run. One file each, whole or not there.

Whoever works on the run takes them into the record, and only then away; a file that was taken in already is known by
its ids, so that a crash in between loses nothing and doubles nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedforget.errors import FedForgetError, RunDamaged, StorageFailed
from fedforget.store.files import TEMPORARY, digest, storage_errors, sync_directory, write_durably
from fedforget.store.requests import Submission

NAME = "inbox"
_SUFFIX = ".json"
_ATTEMPTS = 3


class Inbox:
    """The submissions that nobody has taken in."""

    def __init__(self, run: Path) -> None:
        self._directory = run / NAME

    def leave(self, submission: Submission) -> None:
        """Durable when it returns."""
        for attempt in range(_ATTEMPTS):
            try:
                with storage_errors(self._directory):
                    self._directory.mkdir(mode=0o700, exist_ok=True)
                    sync_directory(self._directory.parent)
                write_durably(self._directory / (submission.ids[0] + _SUFFIX), _sealed(submission.encode()))
            except StorageFailed:  # whoever works on the run may just have tidied up
                if attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return

    def __bool__(self) -> bool:
        return any(self._files())

    def submissions(self) -> list[tuple[Path, Submission]]:
        """In the order in which they were received."""
        found = []
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):  # somebody has just taken it in
                found.append((path, read(path)))
        return sorted(found, key=lambda each: (each[1].received, each[1].ids))

    def take_away(self, path: Path) -> None:
        with storage_errors(path):
            path.unlink(missing_ok=True)
            sync_directory(self._directory)

    def clean(self) -> None:
        """Take away what a crash left half written, and the directory if nothing is in it."""
        if not self._directory.is_dir():
            return
        with storage_errors(self._directory):
            for leftover in self._directory.glob("*" + TEMPORARY):
                leftover.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody is just leaving something
            self._directory.rmdir()

    def _files(self) -> Iterator[Path]:
        return self._directory.glob("*" + _SUFFIX)


def _sealed(data: bytes) -> bytes:
    """With its digest on a line before it: a request must stay the request it was."""
    return digest(data).encode() + b"\n" + data


def _unsealed(sealed: bytes) -> bytes:
    known, _, data = sealed.partition(b"\n")
    if digest(data).encode() != known:
        raise ValueError("its digest is another")
    return data


def read(path: Path) -> Submission:
    try:
        return Submission.decode(_unsealed(path.read_bytes()))
    except (ValueError, KeyError, TypeError, FedForgetError) as error:
        raise RunDamaged(
            f"{path} is damaged: it is no submission", hint="delete this file, then hand the request in again"
        ) from error
