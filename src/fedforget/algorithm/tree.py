"""A Merkle tree whose shape is a function of its content: the same leaves give the same tree, whatever happened before.

Each leaf has a label of 32 bytes, which looks random to a reader without the key. The bits of the label are its path
from the root. A subtree with at most 16 leaves is one bucket: the hash of its leaves in order. Any other subtree is the
hash of its two halves. So a short path shows that a label is in the tree, or that it is not.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from fedforget.algorithm.contents import CONTENT_BYTES, Contents
from fedforget.algorithm.ids import BLOCK_BYTES, Id, IdSet, id_block

LABEL_BYTES, SALT_BYTES = 32, 16
BUCKET = 16  # leaves
_PERSON = b"fedforget/tree/1"
_BUCKET, _NODE, _LABEL, _VALUE = b"\0", b"\1", b"\2", b"\3"
_BITS = 8 * LABEL_BYTES
_ECB = modes.ECB()  # noqa: S305 (used as a PRP)

Leaf = tuple[bytes, bytes]  # a label and a value; the values of a tree have one length


def salts_of(key: bytes, ids: IdSet) -> list[bytes]:
    """Return the salt of each id. A reader without it cannot test a guess of the id. Salts need not be stored."""
    data = _cipher(key).update(ids.blocks.tobytes())
    return [data[start : start + SALT_BYTES] for start in range(0, len(data), SALT_BYTES)]


def _cipher(key: bytes) -> CipherContext:
    derived = hashlib.blake2b(key=key, digest_size=16, person=_PERSON).digest()
    return Cipher(algorithms.AES(derived), _ECB).encryptor()


def label_of(salt: bytes, identifier: Id) -> bytes:
    """Return the label of an id. Its salt is enough to compute it."""
    return _hash(_LABEL + salt + id_block(identifier))


def labels_of(key: bytes, ids: IdSet) -> list[bytes]:
    """Return the label of each id."""
    return _hashes(_LABEL, _beside(b"".join(salts_of(key, ids)), ids.blocks.tobytes(), BLOCK_BYTES))


def labeller(key: bytes) -> Callable[[Id], bytes]:
    """Return the function from an id to its label: faster than ``labels_of`` where ids come one at a time."""
    encrypt = _cipher(key).update
    return lambda identifier: label_of(encrypt(id_block(identifier)), identifier)


def value_of(salt: bytes, content: bytes) -> bytes:
    """Return the value of a sample's leaf. A reader without the salt cannot test a guess of its content digest."""
    return _hash(_VALUE + salt + content)


def leaves_of(key: bytes, ids: IdSet, contents: Sequence[bytes]) -> list[Leaf]:
    """Return the leaf of each sample, given its content digest."""
    blocks = ids.blocks.tobytes()
    salts = _cipher(key).update(blocks)
    labels = _hashes(_LABEL, _beside(salts, blocks, BLOCK_BYTES))
    starts = range(0, len(salts), SALT_BYTES)
    salted = [salts[at : at + SALT_BYTES] + content for at, content in zip(starts, contents, strict=True)]
    return list(zip(labels, _hashes(_VALUE, salted), strict=True))


def roots_of(keys: Sequence[bytes], contents: Contents) -> list[bytes]:
    """Return the root over the samples of each client, given the clients' keys. The ids of a client are distinct."""
    data, ends = contents.blocks.tobytes(), [0, *contents.sizes.cumsum().tolist()]
    salts = b"".join(
        _cipher(key).update(data[start * BLOCK_BYTES : stop * BLOCK_BYTES])
        for key, start, stop in zip(keys, ends[:-1], ends[1:], strict=True)
    )
    labels = _hashes(_LABEL, _beside(salts, data, BLOCK_BYTES))
    values = _hashes(_VALUE, _beside(salts, contents.digests, CONTENT_BYTES))
    rows = list(map(bytes.__add__, labels, values))
    return [_subtree(sorted(rows[start:stop]), 0, stop - start, 0) for start, stop in pairwise(ends)]


def _beside(salts: bytes, others: bytes, width: int) -> list[bytes]:
    """Return each salt with what belongs to it behind it."""
    columns = (np.frombuffer(data, np.uint8).reshape(-1, size) for data, size in ((salts, SALT_BYTES), (others, width)))
    joined, size = np.hstack(list(columns)).tobytes(), SALT_BYTES + width
    return [joined[start : start + size] for start in range(0, len(joined), size)]


def _hashes(kind: bytes, items: Sequence[bytes]) -> list[bytes]:
    """Return the hash of each item. Faster than ``_hash``, with the same results."""
    begun, found = hashlib.blake2b(kind, digest_size=32, person=_PERSON).copy, list[bytes]()
    for item in items:
        hasher = begun()
        hasher.update(item)
        found.append(hasher.digest())
    return found


_begun = hashlib.blake2b(digest_size=32, person=_PERSON).copy


def _hash(data: bytes) -> bytes:
    hasher = _begun()  # faster than a new one
    hasher.update(data)
    return hasher.digest()


def _bucket_hash(rows: Sequence[bytes]) -> bytes:
    """Return the hash of a bucket, given the label and the value of each leaf joined."""
    return _hash(_BUCKET + b"".join(rows))


def node_of(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node with these two halves."""
    return _hash(_NODE + left + right)


def bit_of(label: bytes, depth: int) -> int:
    """Return the bit of a label that decides at a depth: 0 is left, 1 is right."""
    return label[depth // 8] >> (7 - depth % 8) & 1


def root_of(leaves: Iterable[Leaf], depth: int = 0) -> bytes:
    """Return the root of the subtree with these leaves, whose labels agree in their first ``depth`` bits."""
    return _root_of_rows(sorted(label + value for label, value in leaves), depth)


def _root_of_rows(rows: Sequence[bytes], depth: int) -> bytes:
    if len({row[:LABEL_BYTES] for row in rows}) < len(rows):
        raise ValueError("two leaves have the same label")
    return _subtree(rows, 0, len(rows), depth)


def _subtree(rows: Sequence[bytes], start: int, stop: int, depth: int) -> bytes:
    if stop - start <= BUCKET:
        return _bucket_hash(rows[start:stop])
    middle = _middle(rows, start, stop, depth)
    return node_of(_subtree(rows, start, middle, depth + 1), _subtree(rows, middle, stop, depth + 1))


def _middle(rows: Sequence[bytes], start: int, stop: int, depth: int) -> int:
    """Return where the right half begins: at the first label with a 1 at this depth."""
    if not depth:
        return bisect_left(rows, b"\x80", start, stop)
    first = int.from_bytes(rows[start][:LABEL_BYTES], "big") >> (_BITS - depth) << 1 | 1
    return bisect_left(rows, (first << (_BITS - depth - 1)).to_bytes(LABEL_BYTES, "big"), start, stop)


@dataclass(frozen=True, slots=True)
class Path:
    """The way from the root to where a label is, or would be: the hashes beside it, and the bucket at its end."""

    siblings: tuple[bytes, ...]  # from the root down
    bucket: tuple[Leaf, ...]

    def root(self, label: bytes) -> bytes:
        """Return the root of the tree that has this path for the label. Raise ValueError if no tree has it."""
        if len(label) != LABEL_BYTES or len(self.siblings) > _BITS:
            raise ValueError("this is not a path of a tree")
        if len(self.bucket) > BUCKET or any(one >= other for (one, _), (other, _) in pairwise(self.bucket)):
            raise ValueError("its last part is not a bucket of a tree")
        if any(len(found) != LABEL_BYTES or not self._passes(found, label) for found, _ in self.bucket):
            raise ValueError("a leaf of the bucket is not on the path of this label")
        if len({len(value) for _, value in self.bucket}) > 1:
            raise ValueError("the leaves of the bucket differ in length")
        found = _bucket_hash([found + value for found, value in self.bucket])
        for depth, sibling in reversed(list(enumerate(self.siblings))):
            found = node_of(sibling, found) if bit_of(label, depth) else node_of(found, sibling)
        return found

    def _passes(self, found: bytes, label: bytes) -> bool:
        shift = _BITS - len(self.siblings)
        return int.from_bytes(found, "big") >> shift == int.from_bytes(label, "big") >> shift

    def value(self, label: bytes) -> bytes | None:
        """Return the value of the label, or None if it is not in the tree that this is a path of."""
        return dict(self.bucket).get(label)

    def below(self, above: Sequence[bytes]) -> Path:
        """Return the path from a higher root, given the hashes beside this subtree from there down."""
        return Path((*above, *self.siblings), self.bucket)


def path_of(leaves: Iterable[Leaf], label: bytes, depth: int = 0) -> Path:
    """Return the path of a label in the subtree with these leaves, from its root at ``depth``."""
    rows = sorted(each + value for each, value in leaves)
    start, stop, siblings = 0, len(rows), list[bytes]()
    while stop - start > BUCKET:
        middle = _middle(rows, start, stop, depth)
        if bit_of(label, depth):
            siblings.append(_subtree(rows, start, middle, depth + 1))
            start = middle
        else:
            siblings.append(_subtree(rows, middle, stop, depth + 1))
            stop = middle
        depth += 1
    return Path(tuple(siblings), tuple((row[:LABEL_BYTES], row[LABEL_BYTES:]) for row in rows[start:stop]))


def joined(roots: Sequence[bytes]) -> bytes:
    """Return the root above all subtrees of one depth, in the order of their labels. Their number is a power of two."""
    level = list(roots)
    while len(level) > 1:
        level = [node_of(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def beside(roots: Sequence[bytes], place: int) -> list[bytes]:
    """Return the hashes beside one subtree of ``joined``, from the root down."""
    level, found = list(roots), list[bytes]()
    while len(level) > 1:
        found.append(level[place ^ 1])
        level = [node_of(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
        place //= 2
    return found[::-1]
