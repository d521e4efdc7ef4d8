"""Read SQLite write-ahead logs without SQLite: check their integrity and collect the committed pages.

SQLite reads a log up to the first wrong checksum and silently drops the rest as a commit that a power cut interrupted.
At most one commit can be interrupted, because the next one starts only after it is on disk. Two or more commits behind
a wrong checksum are therefore damage, which we report and SQLite would not.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedforget.disk.door import Door
from fedforget.disk.pages import PAGE
from fedforget.errors import RunDamaged

SUFFIX = "-wal"
_HEADER, _FRAME_HEADER = 32, 24
_FRAME = _FRAME_HEADER + PAGE
_VERSION = 3007000
_MAGIC = {0x377F0682: "<u4", 0x377F0683: ">u4"}  # the byte order of the checksum's words
LARGEST_IMAGE = 2**30  # bytes of a database in memory, which is all that SQLite takes
_ROOM = 2**27  # a log may have this many bytes,
_TIMES = 4  # plus this many times the size of its database,
_LARGEST_COUNTED = 2**28  # of which no more than this counts

Sums = tuple[int, int]


@dataclass(slots=True)
class Log:
    """The committed content of a log: the offset of the last version of each page, and the number of pages."""

    pages: int = 0
    places: dict[int, int] = field(default_factory=dict)  # page → offset in the log


def has_content(database: Path) -> bool:
    return bool(Door(database.parent).size(database.name + SUFFIX))


def largest_log(size: int) -> int:
    """Return the most bytes that the log of a database of this size may have. Readers refuse a longer one unread.

    No process of ours writes a longer one: see ``largest_after``.
    """
    return _ROOM + _TIMES * min(size, _LARGEST_COUNTED)


def largest_after(log: int, pages: int) -> int:
    """Return the most bytes that a log may have after a commit which leaves this many pages.

    A commit writes each page at most once, because SQLite is told to keep changed pages in memory until then.
    """
    return (log or _HEADER) + pages * _FRAME


def find_problem(database: Path) -> str | None:
    """Return what is wrong with the log of a database; None if it is sound or does not exist."""
    try:
        with Door(database.parent).opened(database.name + SUFFIX) as descriptor:
            read(descriptor, database)
    except FileNotFoundError:
        return None
    except RunDamaged as error:
        return error.message
    return None


def read(descriptor: int, database: Path, *, own: bool = False) -> Log:
    """Return the committed frames of an open log; raise RunDamaged if it was altered.

    ``own``: this process has the database open for writing, so the log may have any length.
    """
    path, size = database.with_name(database.name + SUFFIX), os.fstat(descriptor).st_size
    most = largest_log(Door(database.parent).size(database.name) or 0)
    if size > most and not own:
        raise _damaged(path, f"it has {size} bytes; at most {most} are expected")
    log = Log()
    head = os.pread(descriptor, _HEADER, 0)
    if size <= _HEADER or len(head) < _HEADER:
        return log
    order, sums = _begun(head, path)
    whole, behind, seen = True, 0, dict[int, int]()
    for place, frame in _frames(descriptor, size):
        page, pages = struct.unpack_from(">II", frame)
        ours = frame[8:16] == head[16:24]
        if whole:
            sums = _checksum(frame[:8] + frame[_FRAME_HEADER:], order, sums)
            whole = ours and page > 0 and struct.unpack_from(">II", frame, 16) == sums
        if whole:
            seen[page] = place + _FRAME_HEADER
            if pages:
                log.pages = pages
                log.places |= seen
                seen = {}
        elif ours and pages:
            behind += 1
    if behind > 1:
        raise _damaged(path, f"{behind} commits follow one that is torn or altered")
    return log


def _begun(head: bytes, path: Path) -> tuple[str, Sums]:
    magic, version, page_size = struct.unpack_from(">III", head)
    order = _MAGIC.get(magic, "<u4")
    sums = _checksum(head[: _HEADER - 8], order)
    if magic not in _MAGIC or struct.unpack_from(">II", head, _HEADER - 8) != sums:
        raise _damaged(path, "its header is not what was written")
    if version != _VERSION or page_size != PAGE:
        raise _damaged(path, "its header is not one that FedForget writes")
    return order, sums


def _frames(descriptor: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the bytes of each complete frame."""
    for place in range(_HEADER, size - _FRAME + 1, _FRAME):
        yield place, os.pread(descriptor, _FRAME, place)


def _fibonacci(count: int) -> NDArray[np.uint64]:
    row = [0, 1]
    while len(row) < count:
        row.append((row[-1] + row[-2]) & _WORD)
    return np.array(row, np.uint64)


_WORD = 2**32 - 1
_FIBONACCI = _fibonacci((8 + PAGE) // 4 + 2)


def _checksum(data: bytes, order: str, before: Sums = (0, 0)) -> Sums:
    """Compute SQLite's WAL checksum: for each pair of words, first += even + second, then second += odd + first.

    This is linear in the words, and the weight of each word is a Fibonacci number.
    """
    words = np.frombuffer(data, order).astype(np.uint64)
    pairs = len(words) // 2
    after = 2 * np.arange(pairs - 1, -1, -1)  # how many additions follow a pair
    least, middle, most = (_FIBONACCI[after + more] for more in (0, 1, 2))
    end = [int(_FIBONACCI[2 * pairs + more]) for more in (-1, 0, 1)]

    def total(of_even: NDArray[np.uint64], of_odd: NDArray[np.uint64]) -> int:
        return int(((words[::2] * of_even & _WORD) + (words[1::2] * of_odd & _WORD)).sum())

    return (
        (total(middle, least) + end[0] * before[0] + end[1] * before[1]) & _WORD,
        (total(most, middle) + end[1] * before[0] + end[2] * before[1]) & _WORD,
    )


def _damaged(path: Path, what: str) -> RunDamaged:
    return RunDamaged(
        f"{path} is damaged: {what}", hint="restore the whole run directory from a backup; see `fedforget doctor`"
    )
