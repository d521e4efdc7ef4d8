"""Whether a write-ahead log that a crash left is whole.

SQLite reads such a log up to the first frame whose checksum is wrong, and takes what follows for a commit that was
under way when the power failed. There can be one of those: the next begins when it is on disk. So two commits or more
behind a wrong checksum are damage, and would be lost without a word.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

SUFFIX = "-wal"
_HEADER, _FRAME_HEADER = 32, 24
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}  # which says how the words of a checksum are read
_WORD = 2**32 - 1


def has_content(database: Path) -> bool:
    log = database.with_name(database.name + SUFFIX)
    return log.is_file() and log.stat().st_size > 0


def problem_of(database: Path) -> str | None:
    """What is wrong with the log beside a database that nobody has open; None if nothing is, or there is no log."""
    path = database.with_name(database.name + SUFFIX)
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # there is none, or whoever had it has just folded it in
        return None
    if len(data) <= _HEADER:
        return None
    magic, _, page_size = struct.unpack_from(">III", data)
    order = _MAGIC.get(magic, "<")
    sums = _checksum(data[: _HEADER - 8], order)
    if magic not in _MAGIC or struct.unpack_from(">II", data, _HEADER - 8) != sums:
        return f"{path} is damaged: its header is not what was written"
    whole, behind = True, 0
    for header, page in _frames(data, page_size):
        if whole:
            sums = _checksum(header[:8] + page, order, sums)
            whole = header[8:16] == data[16:24] and struct.unpack_from(">II", header, 16) == sums
        if not whole and header[8:16] == data[16:24] and header[4:8] != bytes(4):
            behind += 1
    return f"{path} is damaged: {behind} commits stand behind one that is torn or altered" if behind > 1 else None


def _frames(data: bytes, page_size: int) -> Iterator[tuple[bytes, bytes]]:
    """Headers and pages, as far as the log goes."""
    size = _FRAME_HEADER + page_size
    for start in range(_HEADER, len(data) - size + 1, size):
        yield data[start : start + _FRAME_HEADER], data[start + _FRAME_HEADER : start + size]


def _checksum(data: bytes, order: str, before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """SQLite's: two sums that feed each other, over pairs of words."""
    first, second = before
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _WORD
        second = (second + odd + first) & _WORD
    return first, second
