"""Ids of clients and samples, and the 16-byte blocks that the draws see.

An id is an integer in [0, 2^63) or a string. A string of decimal digits without leading zeros *is* that integer,
so ``3`` and ``"3"`` are one id. The block of an id never changes: test vectors pin it.
"""

from __future__ import annotations

import hashlib
import operator
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress, pairwise

import numpy as np
from numpy.typing import NDArray

from fedforget.errors import InvalidId, quoted

Id = int | str

BLOCK_BYTES = 16
_BLOCK = np.dtype(f"S{BLOCK_BYTES}")  # compared byte by byte; zeros at the end count, because all have one length
_INTEGER_LIMIT = 2**63
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_PERSON = b"fedforget/id/1"
_FEW = 2**12  # ids whose positions are kept in a dictionary; more would take too long to enter


def canonical_id(value: object) -> Id:
    """Return the canonical form of an id: an ``int`` if it is one, else a ``str``.

    >>> canonical_id("3"), canonical_id(3), canonical_id("03"), canonical_id("ward-7")
    (3, 3, '03', 'ward-7')
    """
    if isinstance(value, str):
        text = str.__str__(value)  # the characters, even if a subclass overrides __str__
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidId(f"the id {quoted(text)} is not valid Unicode text", hint="use another id") from error
        if _DECIMAL.fullmatch(text) and int(text) < _INTEGER_LIMIT:
            return int(text)
        return text
    if not isinstance(value, (bool, np.bool_, float)):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if 0 <= number < _INTEGER_LIMIT:
                return number
    raise InvalidId(
        f"{quoted(value)} cannot be the id of a client or sample",
        hint="use an integer from 0 to 2^63-1 or a string",
    )


def id_block(identifier: Id) -> bytes:
    """Return the 16 bytes that represent a canonical id in every draw."""
    if isinstance(identifier, int):
        return bytes(8) + identifier.to_bytes(8, "big")
    return b"\x01" + hashlib.blake2b(identifier.encode("utf-8"), digest_size=15, person=_PERSON).digest()


def integer_blocks(integers: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return the blocks of ids that are integers, one in each row."""
    blocks = np.zeros((len(integers), BLOCK_BYTES), np.uint8)
    blocks[:, 8:] = integers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return blocks


def integers_of(blocks: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the ids whose blocks these are, which must all be integers."""
    return np.ascontiguousarray(blocks[:, 8:]).view(">u8").ravel()


class IdSet:
    """Distinct ids in ascending block order, with their blocks as one array. Immutable."""

    def __init__(self, ids: Iterable[object], *, what: str = "id") -> None:
        pairs = sorted((id_block(identifier), identifier) for identifier in map(canonical_id, ids))
        for (block, first), (next_block, second) in pairwise(pairs):
            if block == next_block:
                raise InvalidId(
                    f"duplicate {what} {quoted(first)}"
                    if first == second
                    else f"{what}s {quoted(first)} and {quoted(second)} collide",
                    hint="ids must be unique; an integer and its decimal spelling are one id",
                )
        self._ids: tuple[Id, ...] | None = tuple(identifier for _, identifier in pairs)
        joined = b"".join(block for block, _ in pairs)
        self.blocks: NDArray[np.uint8] = np.frombuffer(joined, np.uint8).reshape(-1, BLOCK_BYTES)

    @classmethod
    def _of(cls, ids: tuple[Id, ...] | None, blocks: NDArray[np.uint8]) -> IdSet:
        made = cls.__new__(cls)
        made._ids, made.blocks = ids, blocks  # noqa: SLF001 (its own class)
        return made

    @classmethod
    def of_blocks(cls, blocks: NDArray[np.uint8], names: Mapping[bytes, str] | None = None) -> IdSet:
        """Return the set with these ascending blocks, without checking them. ``names``: the string behind a block.

        Without names all of them are of integers, which are decoded when they are asked for.
        """
        if not names:
            return cls._of(None, blocks)
        decoded = (names.get(block) if block[0] else int.from_bytes(block, "big") for block in map(bytes, blocks))
        return cls._of(tuple(decoded), blocks)  # type: ignore[arg-type]

    @property
    def ids(self) -> tuple[Id, ...]:
        if self._ids is None:
            self._ids = tuple(integers_of(self.blocks).tolist())
        return self._ids

    @classmethod
    def of_integers(cls, ascending: NDArray[np.integer]) -> IdSet:
        """Return the set of these integers, which must be ascending. Equal to ``IdSet(...)``, but without sorting."""
        if len(ascending) and (int(ascending[0]) < 0 or (np.diff(ascending) <= 0).any()):
            raise InvalidId("these integer ids do not ascend from 0", hint="give each once, in ascending order")
        return cls._of(None, integer_blocks(ascending))

    @classmethod
    def of_canonical(cls, ids: Collection[Id]) -> IdSet:
        """Return the set of these canonical ids. Equal to ``IdSet(...)``, and faster where all are integers."""
        if all(type(identifier) is int for identifier in ids):
            return cls.of_integers(np.sort(np.fromiter(ids, np.int64, len(ids))))
        return cls(ids)

    @cached_property
    def position(self) -> dict[Id, int]:
        """The position of each id in block order."""
        return {identifier: place for place, identifier in enumerate(self.ids)}

    def place_of(self, identifier: object) -> int | None:
        """Return the position of an id in block order, or None. In a large set it is found by bisection."""
        if len(self) <= _FEW or "position" in self.__dict__:
            return self.position.get(identifier)  # type: ignore[call-overload, no-any-return]
        if not isinstance(identifier, int | str) or (
            isinstance(identifier, int) and not 0 <= identifier < _INTEGER_LIMIT
        ):
            return None
        block = id_block(identifier)
        place = bisect_left(range(len(self)), block, key=lambda row: self.blocks[row].tobytes())
        return place if place < len(self) and self.blocks[place].tobytes() == block else None

    def places_of(self, ids: Sequence[Id]) -> NDArray[np.intp]:
        """Return the position of each of these ids. Raise KeyError if one is not in the set."""
        if not len(ids):
            return np.empty(0, np.intp)
        wanted = np.frombuffer(b"".join(map(id_block, ids)), _BLOCK)
        own = np.ascontiguousarray(self.blocks).view(_BLOCK).ravel()
        places = np.searchsorted(own, wanted)
        missing = places == len(own)
        missing[~missing] = own[places[~missing]] != wanted[~missing]
        if missing.any():
            raise KeyError(ids[int(missing.argmax())])
        return places

    def at(self, place: int) -> Id:
        """Return the id at a position."""
        return self._ids[place] if self._ids is not None else int.from_bytes(self.blocks[place].tobytes(), "big")

    def without(self, ids: Iterable[Id]) -> IdSet:
        """Return the set without ``ids``, in the same order."""
        gone = [place for identifier in set(ids) if (place := self.place_of(identifier)) is not None]
        if not gone:
            return self
        keep = np.ones(len(self), bool)
        keep[gone] = False
        kept_ids = None if self._ids is None else tuple(compress(self._ids, keep.tolist()))
        return self._of(kept_ids, np.ascontiguousarray(self.blocks[keep]))

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Id]:
        return iter(self.ids)

    def __contains__(self, identifier: object) -> bool:
        return self.place_of(identifier) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdSet) and self.ids == other.ids

    __hash__ = None  # type: ignore[assignment]
