"""A forensic search: whether files hold ids, digests, or any piece of superseded models and updates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import load

PIECE = 16  # bytes: four numbers of a model in a row


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is searched: texts and digests by name, and pieces of tensors."""

    texts: Mapping[str, bytes]
    pieces: frozenset[bytes] = field(repr=False)


def pieces_of(tensors: Iterable[bytes], known: Collection[bytes] = ()) -> frozenset[bytes]:
    """Return the pieces of tensors in bytes, but those that are in ``known``, or hold one number again and again."""
    found = {raw[at : at + PIECE] for raw in tensors for at in range(0, len(raw) - PIECE + 1, PIECE)}
    return frozenset(each for each in found if len({each[i : i + 4] for i in range(0, PIECE, 4)}) > 1) - set(known)


def tensors_of(model: Path) -> list[bytes]:
    """Return the bytes of each tensor of a model file."""
    return [tensor.tobytes() for tensor in load(model.read_bytes()).values()]


@dataclass(slots=True)
class Found:
    """What was found in some files: each name with the number of places, and how many bytes were searched."""

    searched: int = 0
    files: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    where: set[str] = field(default_factory=set)

    @property
    def pieces(self) -> int:
        return self.hits.get("pieces of models and updates", 0)


def search(paths: Iterable[Path], wanted: Wanted) -> Found:
    """Search every byte of files, and of the files in directories, and their names."""
    found, heads = Found(), np.sort(np.frombuffer(b"".join(each[:8] for each in wanted.pieces), np.uint64))
    for file in _files(paths):
        try:
            raw = file.read_bytes()
        except OSError:
            continue  # a socket, or it has gone
        found.searched, found.files = found.searched + len(raw), found.files + 1
        for name, text in wanted.texts.items():
            _count(found, name, raw.count(text) + file.name.encode().count(text), file)
        _count(found, "pieces of models and updates", _pieces_in(raw, wanted.pieces, heads), file)
    return found


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        yield from (each for each in (path.rglob("*") if path.is_dir() else [path]) if each.is_file())


def _count(found: Found, name: str, number: int, file: Path) -> None:
    if number:
        found.hits[name] = found.hits.get(name, 0) + number
        found.where.add(file.name)


def _pieces_in(raw: bytes, pieces: Collection[bytes], heads: np.ndarray) -> int:
    """Return how many pieces are in some bytes, at any offset."""
    if len(raw) < PIECE or not len(heads):
        return 0
    count = 0
    for offset in range(8):
        words = np.frombuffer(raw, np.uint64, (len(raw) - offset) // 8, offset)
        places = np.flatnonzero(np.isin(words, heads))
        count += sum(raw[(at := offset + 8 * int(place)) : at + PIECE] in pieces for place in places)
    return count
