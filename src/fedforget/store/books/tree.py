"""The leaves of a file of the clients' books in the tree over the data, and the roots over them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from fedforget.algorithm.ids import BLOCK_BYTES, IdSet
from fedforget.algorithm.tree import LABEL_BYTES, Leaf, labels_of, roots_of
from fedforget.errors import RunDamaged, shown
from fedforget.store.books.content import Book
from fedforget.store.books.layout import split
from fedforget.store.names import BOOKS

PARTS = len(BOOKS)
DEPTH = PARTS.bit_length() - 1
_PERSON = b"fedforget/book/1"


def number_of(label: bytes) -> int:
    """Return the number of the file that holds the client with this label."""
    return label[0] >> (8 - DEPTH)


def sample_key(key: bytes, block: bytes) -> bytes:
    """Return the key of the labels of a client's samples, from that of the clients' labels and the client's block."""
    return blake2b(b"samples" + block, key=key, digest_size=32, person=_PERSON).digest()


def client_leaves(key: bytes, book: Book, run: Path) -> list[Leaf]:
    """Return the leaf of every client in a file. Raise RunDamaged if one belongs into another file."""
    labels = labels_of(key, IdSet.of_blocks(book.clients))
    stranger = next((place for place, label in enumerate(labels) if number_of(label) != book.number), None)
    if stranger is not None:
        raise RunDamaged(
            f"{run / BOOKS[book.number]} is damaged: client {shown(book.client(stranger))} belongs into another file"
        )
    values = zip(book.commitments(), split(book.roots.tobytes(), LABEL_BYTES), strict=True)
    return [(label, commitment + root) for label, (commitment, root) in zip(labels, values, strict=True)]


def roots_at(key: bytes, book: Book, places: Sequence[int]) -> list[bytes]:
    """Return the roots over the samples of the clients in some rows."""
    keys = [sample_key(key, block) for block in split(book.clients[places].tobytes(), BLOCK_BYTES)]
    return roots_of(keys, book.contents_of(places))


def roots_fit(key: bytes, book: Book, places: slice) -> bool:
    """Return whether the clients in some rows have the roots of their samples."""
    rows = range(len(book.clients))[places]
    return roots_at(key, book, rows) == split(book.roots[places].tobytes(), LABEL_BYTES)
