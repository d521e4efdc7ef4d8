"""A digest of a file by its pages, which is brought up to date from the pages that a log changes.

It is the sum of one hash per page, modulo 2^256. A hash covers the number of the page and its bytes, so any changed,
moved, lost or added page changes the sum. Like every seal it finds damage, not a forger.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from fedforget.disk import wal
from fedforget.disk.door import Door
from fedforget.disk.pages import PAGE, header_problem
from fedforget.disk.read_only import require

_MODULUS = 2**256
_PERSON = b"fedforget/page/1"
_AT_ONCE = 256  # pages


def page_sum(directory: Path, name: str) -> int:
    """Return the sum over all pages of a database; raise RunDamaged if its size contradicts its header."""
    total = 0
    with Door(directory).opened(name) as file:
        size = os.fstat(file).st_size
        require(directory / name, header_problem(os.pread(file, PAGE, 0), size))
        for first in range(0, size // PAGE, _AT_ONCE):
            chunk = os.pread(file, _AT_ONCE * PAGE, first * PAGE)
            for place in range(0, len(chunk), PAGE):
                total += page_hash(first + place // PAGE + 1, chunk[place : place + PAGE])
    return total % _MODULUS


def after_log(before: int, database: Path) -> int:
    """Return what the sum of a database will be once its log is folded into it."""
    door = Door(database.parent)
    if not door.size(database.name + wal.SUFFIX):
        return before
    with door.opened(database.name + wal.SUFFIX) as log_file, door.opened(database.name) as file:
        log = wal.read(log_file, database, own=True)
        pages = os.fstat(file).st_size // PAGE
        return _changed(before, log.places, (log_file, file), pages, log.pages)


def _changed(total: int, places: Mapping[int, int], files: tuple[int, int], before: int, after: int) -> int:
    log_file, file = files
    for number, place in places.items():
        if number <= before:
            total -= page_hash(number, os.pread(file, PAGE, (number - 1) * PAGE))
        if number <= after:
            total += page_hash(number, os.pread(log_file, PAGE, place))
    for number in range(before + 1, after + 1):  # SQLite never writes the page with the lock bytes, at 1 GB
        if number not in places:
            total += page_hash(number, bytes(PAGE))
    for number in range((after or before) + 1, before + 1):  # SQLite may cut free pages off the end
        if number not in places:
            total -= page_hash(number, os.pread(file, PAGE, (number - 1) * PAGE))
    return total % _MODULUS


def page_hash(number: int, page: bytes) -> int:
    """Return what one page contributes to the sum."""
    made = hashlib.blake2b(page, digest_size=32, salt=number.to_bytes(16, "big"), person=_PERSON)
    return int.from_bytes(made.digest(), "big")
