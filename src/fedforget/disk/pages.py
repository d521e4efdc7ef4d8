"""Checks of a database file before SQLite opens it: the header and the shape of the B-trees.

SQLite accepts B-trees of any shape, and crafted ones keep it busy practically forever: pages that are referenced many
times, or chains of pages without end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

PAGE = 4096
_MAGIC = b"SQLite format 3\0"
_DEEPEST = 20  # levels that a SQLite cursor can descend
_INTERIOR, _LEAVES = (2, 5), (10, 13)
_FIRST_HEADER = 100  # bytes before the tree in page 1
_WAL_FORMAT = b"\2\2"  # bytes 18 and 19: commits go to a write-ahead log
_PLAIN_FORMAT = b"\1\1"
_SCHEMA_FORMAT = struct.pack(">IIII", 4, 0, 0, 1)  # bytes 44 to 59: no automatic vacuum, text is UTF-8


def header_problem(head: bytes, size: int) -> str | None:
    """Return what is wrong with the first page of a file of this size, or None."""
    if size == 0:
        return "it is empty"
    if len(head) < PAGE or head[:16] != _MAGIC:
        return "it is not a database"
    ours = head[16:21] == struct.pack(">H", PAGE) + _WAL_FORMAT + b"\0" and head[44:60] == _SCHEMA_FORMAT
    if not ours:
        return "its header is not one that FedForget writes"
    pages = struct.unpack_from(">I", head, 28)[0]
    if pages * PAGE != size:
        return f"it has {size} bytes, and its header says {pages * PAGE}"
    return None


def version_of(head: bytes) -> int:
    """Return the format version in a database header."""
    return int(struct.unpack_from(">I", head, 60)[0])


def canonical_header(head: bytes) -> bytes:
    """Return the header with its change counters reset: the only bytes that content does not determine."""
    made = bytearray(head)
    made[18:20] = _WAL_FORMAT
    for counter in (24, 40, 92):  # file change counter, schema cookie, version-valid-for
        made[counter : counter + 4] = struct.pack(">I", 1)
    return bytes(made)


def without_log(head: bytes) -> bytes:
    """Return the header of the same database in rollback mode, without a write-ahead log."""
    return head[:18] + _PLAIN_FORMAT + head[20:]


def tree_problem(page: Callable[[int], bytes], pages: int, roots: Iterable[int]) -> str | None:
    """Return why the pages below ``roots`` are not shallow trees, or None. ``page(n)`` returns page n, from 1."""
    seen: set[int] = set()
    level = list(roots)
    for _ in range(_DEEPEST):
        below: list[int] = []
        for number in level:
            if not 1 <= number <= pages or number in seen:
                return f"its pages do not form a tree (page {number})"
            seen.add(number)
            children = _children(page(number), _FIRST_HEADER if number == 1 else 0)
            if children is None:
                return f"page {number} is not part of a tree"
            below += children
        if not below:
            return None
        level = below
    return "its trees are too deep"


def _children(page: bytes, start: int) -> list[int] | None:
    """Return the child pages of a B-tree page, or None if it is not one."""
    kind = page[start]
    if kind in _LEAVES:
        return []
    count = struct.unpack_from(">H", page, start + 3)[0]
    if kind not in _INTERIOR or start + 12 + 2 * count > PAGE:
        return None
    cells = struct.unpack_from(f">{count}H", page, start + 12)
    if any(cell + 4 > PAGE for cell in cells):
        return None
    children = [struct.unpack_from(">I", page, cell)[0] for cell in cells]
    return [*children, struct.unpack_from(">I", page, start + 8)[0]]
