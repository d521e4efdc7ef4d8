"""Read the enrolment files of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedforget.client_side import enrolment
from fedforget.disk.door import read_named
from fedforget.errors import InvalidInput, shown
from fedforget.store.contacts import EnrolledClient

_MOST = 2**16  # bytes of an enrolment file
_SUFFIX = ".json"


def enrolments_in(directory: Path) -> list[EnrolledClient]:
    """Read all enrolment files in a directory, in the order of their names."""
    if not directory.is_dir():
        raise InvalidInput(f"there is no directory {directory}", hint="name the one with the enrolment files")
    return read_enrolments(sorted(directory.glob(f"*{_SUFFIX}")))


def read_enrolments(files: Sequence[Path]) -> list[EnrolledClient]:
    """Read enrolment files, and verify their signatures. Refuse two of one client."""
    found = [_read(file) for file in files]
    clients = [each.client for each in found]
    twice = next((client for client in clients if clients.count(client) > 1), None)
    if twice is not None:
        raise InvalidInput(f"two files enroll client {shown(twice)}", hint="give one file for each client")
    return found


def _read(file: Path) -> EnrolledClient:
    try:
        data = read_named(file, _MOST)
    except ValueError as error:
        raise InvalidInput(f"{file} is not an enrolment of a client: {error}", hint=enrolment.HINT) from error
    found = enrolment.Enrolment.parsed(data)
    return EnrolledClient(found.client, found.commitment, found.root, found.public_key.public_bytes_raw())
