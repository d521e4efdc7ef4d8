"""The hashes that chain events, with shortcuts, so that a short proof shows that one event follows another.

The hash of an event covers the hash before it and one further back: event 15 covers those of events 14 and 0, event 14
those of 13 and 7. A proof that one event follows another has at most three steps per doubling of the distance.
A step is two hashes: it reveals nothing about the events between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

HASH_BYTES = 32
BEGINNING = bytes(HASH_BYTES)  # the hash before the first event
_PERSON = b"fedforget/link/1"

Step = tuple[bytes, bytes]  # the digest of an event, and the one of its two covered hashes that is not on the path


def shortcut_of(sequence: int) -> int:
    """Return the earlier event that an event also covers.

    Subtract from the number the largest 2^k - 1 that fits, again and again until nothing is left. The shortcut is as
    far back as the last subtracted number (E. Myers' jump pointers).
    """
    rest = part = sequence
    while rest:
        part = (1 << (rest + 1).bit_length() - 1) - 1
        rest -= part
    return sequence - part


def link(sequence: int, previous: bytes, shortcut: bytes, digest: bytes) -> bytes:
    """Return the hash of an event: over its number, the two hashes that it covers, and the digest of its content."""
    message = sequence.to_bytes(8, "big") + previous + shortcut + digest
    return hashlib.blake2b(message, digest_size=HASH_BYTES, person=_PERSON).digest()


class Linker:
    """Computes the hashes of consecutive events. Keeps only those that later events can cover."""

    def __init__(self, sequence: int = 0, hash_at: Callable[[int], bytes] = lambda _: BEGINNING) -> None:
        """Continue after event ``sequence``. ``hash_at`` gives the hash of an event; it is not asked for event 0."""
        known = [sequence] if sequence else []
        while known and shortcut_of(known[-1]):
            known.append(shortcut_of(known[-1]))
        self._covered = [(0, BEGINNING), *((each, hash_at(each)) for each in reversed(known))]

    @property
    def sequence(self) -> int:
        return self._covered[-1][0]

    def append(self, digest: bytes) -> bytes:
        """Return the hash of the next event, given the digest of its content."""
        last, previous = self._covered[-1]
        sequence = last + 1
        while self._covered[-1][0] != shortcut_of(sequence):
            self._covered.pop()
        found = link(sequence, previous, self._covered[-1][1], digest)
        self._covered.append((sequence, found))
        return found


def path_back(newer: int, older: int) -> Iterator[tuple[int, bool]]:
    """Yield each event on the path from ``newer`` back to ``older``, and whether the path uses its shortcut."""
    while newer > older:
        by_shortcut = shortcut_of(newer) >= older
        yield newer, by_shortcut
        newer = shortcut_of(newer) if by_shortcut else newer - 1


def proof(newer: int, older: int, digest_at: Callable[[int], bytes], hash_at: Callable[[int], bytes]) -> list[Step]:
    """Return the steps from an older event up to a newer one."""
    return [
        (digest_at(each), hash_at(each - 1 if by_shortcut else shortcut_of(each)))
        for each, by_shortcut in reversed(list(path_back(newer, older)))
    ]


def follow(older: int, older_hash: bytes, newer: int, steps: Sequence[Step]) -> bytes | None:
    """Return the hash of the newer event that the steps lead to; None if their number is not that of the path."""
    passed = list(path_back(newer, older))
    if len(passed) != len(steps):
        return None
    found = older_hash
    for (each, by_shortcut), (digest, beside) in zip(reversed(passed), steps, strict=True):
        previous, shortcut = (beside, found) if by_shortcut else (found, beside)
        found = link(each, previous, shortcut, digest)
    return found
