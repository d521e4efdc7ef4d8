"""The layout of a file of the clients' books: columns of fixed width, in the order of the id blocks.

Equal content is equal bytes, because the file has no other state: no free space, no counters, no log. A reader finds a
client or a sample by bisection, without reading the rest. ``docs/run-directory.md`` describes it.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.contents import CONTENT_BYTES
from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.ids import BLOCK_BYTES, canonical_id, id_block
from fedforget.algorithm.tree import LABEL_BYTES
from fedforget.disk.read_only import require_version
from fedforget.errors import InvalidId, RunDamaged, StorageFailed

_KIND, FORMAT = b"fedforget book ", 5
MAGIC = _KIND + str(FORMAT).encode()
HEADER = struct.Struct(">16s4Q32s")  # the magic, the number, clients, samples, bytes of the names, the root
NUMBER_BYTES = 8  # bytes of an offset
STRING = 1  # the first byte of the block of an id that is a string
_LARGEST = 2**48  # more clients or samples than any file holds

Column = NDArray[np.uint8]  # a value in each row


@dataclass(frozen=True, slots=True)
class Header:
    """The numbers at the beginning of a file. They determine where each column is."""

    number: int
    clients: int
    samples: int
    names: int  # bytes of the section with the names; 0 if every id is an integer
    root: bytes

    @classmethod
    def parsed(cls, path: Path, data: bytes, number: int) -> Header:
        if len(data) == HEADER.size and data[: len(_KIND)] == _KIND:
            require_version(path, data[len(_KIND)] - ord("0"), FORMAT)
        if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
            raise damaged(path, "it is not a file of the clients' books")
        _, said, clients, samples, names, root = HEADER.unpack_from(data)
        found = cls(said, clients, samples, names, root)
        if found.number != number:
            raise damaged(path, "its number is missing or invalid")
        if max(found.clients, found.samples) > _LARGEST:
            raise damaged(path, "it says that it holds more than a file can")
        return found

    def encoded(self) -> bytes:
        return HEADER.pack(MAGIC, self.number, self.clients, self.samples, self.names, self.root)

    @property
    def starts(self) -> dict[str, int]:
        """Where each column begins, in the order of the file."""
        place, found = HEADER.size, dict[str, int]()
        for name, width, rows in (
            ("clients", BLOCK_BYTES, self.clients),
            ("ends", NUMBER_BYTES, self.clients),
            ("seeds", SEED_BYTES, self.clients),
            ("nonces", SEED_BYTES, self.clients),
            ("roots", LABEL_BYTES, self.clients),
            ("samples", BLOCK_BYTES, self.samples),
            ("contents", CONTENT_BYTES, self.samples),
            ("name ends", NUMBER_BYTES, self.clients + self.samples if self.names else 0),
        ):
            found[name] = place
            place += width * rows
        return {**found, "text": place}

    @property
    def size(self) -> int:
        """The bytes of the whole file."""
        text = self.names - NUMBER_BYTES * (self.clients + self.samples) if self.names else 0
        return self.starts["text"] + text


def header_of(path: Path, descriptor: int, number: int) -> Header:
    """Return the header of an open file; raise RunDamaged if it is not that of a file of its size."""
    header, size = Header.parsed(path, os.pread(descriptor, HEADER.size, 0), number), os.fstat(descriptor).st_size
    if header.names and header.names < NUMBER_BYTES * (header.clients + header.samples):
        raise damaged(path, "the names of its ids are missing or invalid")
    if header.size != size:
        raise damaged(path, f"it has {size} bytes, and its header says {header.size}")
    return header


def numbers_of(column: Column) -> NDArray[np.int64]:
    return np.ascontiguousarray(column).view(">u8").ravel().astype(np.int64)


def names_of(path: Path, blocks: Column, ends: NDArray[np.int64], text: bytes) -> dict[bytes, str]:
    """Return the string behind each block of one. ``ends`` begins with 0, and then has the end of each name."""
    found = dict[bytes, str]()
    for row in np.flatnonzero(blocks[:, 0] == STRING).tolist():
        block = bytes(blocks[row])
        try:
            name = text[int(ends[row]) : int(ends[row + 1])].decode()
            right = canonical_id(name) == name and id_block(name) == block
        except (UnicodeDecodeError, InvalidId):
            name, right = "", False
        if not right:
            raise damaged(path, "the names of its ids are missing or invalid")
        found[block] = name
    return found


def split(data: bytes, width: int) -> list[bytes]:
    return [data[start : start + width] for start in range(0, len(data), width)]


def are_ascending(blocks: Column, after: NDArray[np.int64] | None = None) -> bool:
    """Return whether these are blocks of ids in ascending order, which begins anew at the rows ``after``."""
    high, low = (np.ascontiguousarray(blocks[:, half]).view(">u8").ravel() for half in (slice(8), slice(8, 16)))
    integers = high == 0
    if not (np.where(integers, low < 2**63, high >> np.uint64(56) == STRING)).all():
        return False
    rises = (high[:-1] < high[1:]) | ((high[:-1] == high[1:]) & (low[:-1] < low[1:]))
    if after is not None:
        rises[after - 1] = True
    return bool(rises.all())


def read(descriptor: int, start: int, count: int) -> bytes:
    parts, left = list[bytes](), count
    while left > 0 and (part := os.pread(descriptor, min(left, 2**30), start)):
        parts.append(part)
        start, left = start + len(part), left - len(part)
    return b"".join(parts)


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise RunDamaged(f"{path} is missing", hint="restore it from a backup; it cannot be derived again") from error
    except OSError as error:
        raise StorageFailed(f"cannot read {path}: {error.strerror}", hint="check the disk and permissions") from error


def damaged(path: Path, what: str) -> RunDamaged:
    return RunDamaged(f"{path} is damaged: {what}")
