"""``client.book``: a client's seed, and its sample ids with the digests of their contents.

It is a file of clients' books (``store.books``) with one client, or with none after the client has left. Every change
of the data replaces the file. Its root covers the seed and every sample, so damage is detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedforget.algorithm.contents import CONTENT_BYTES, Contents
from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.seeds import Seed
from fedforget.algorithm.tree import labels_of, root_of, roots_of
from fedforget.disk.door import Door
from fedforget.disk.files import write_durably
from fedforget.disk.lock import exclusive_section
from fedforget.errors import RunDamaged, UnknownTarget, shown
from fedforget.store.books.content import Book

BOOK = "client.book"
_NUMBER = 0


class OwnBook:
    """The book of one client, in memory once it is read. ``before_write`` is called before the file changes."""

    def __init__(self, state: Path, client: Id, key: bytes) -> None:
        self.path = state / BOOK
        self._client, self._key = client, key
        self._known: Book | None = None
        self.before_write: Callable[[], None] = lambda: None

    @property
    def _book(self) -> Book:
        if self._known is None:
            self._known = self._read()
        return self._known

    def _read(self) -> Book:
        if Door(self.path.parent).status(BOOK) is None:
            raise _lost(self.path, self._client, "is missing")
        book = Book.read(self.path, _NUMBER)
        if len(book.clients) > 1 or (len(book.clients) and book.client(0) != self._client):
            raise _lost(self.path, self._client, "is that of another client")
        whole = book.root == self._root_of(book) and all(self._root_at(book) == bytes(each) for each in book.roots)
        if not whole:
            raise _lost(self.path, self._client, "is damaged: its root is not that of its content")
        return book

    # Reading

    @property
    def is_empty(self) -> bool:
        """Whether the client has left."""
        return not len(self._book.clients)

    @property
    def seed(self) -> Seed:
        self._require_present()
        return Seed(self._book.seeds[0].tobytes(), self._book.nonces[0].tobytes())

    @property
    def root(self) -> bytes:
        """The root of the tree over the samples."""
        self._require_present()
        return bytes(self._book.roots[0])

    @property
    def samples(self) -> IdSet:
        return IdSet.of_blocks(self._book.samples, self._book.names)

    def contents(self) -> dict[Id, bytes]:
        """Return the content digest of each sample."""
        return {sample: row.tobytes() for sample, row in zip(self.samples, self._book.contents, strict=True)}

    def _require_present(self) -> None:
        if self.is_empty:
            raise UnknownTarget(
                f"client {shown(self._client)} has left the run", hint="to join again, make a new state directory"
            )

    # Writing

    def create(self, seed: Seed, contents: Mapping[Id, bytes]) -> None:
        ids = IdSet.of_canonical(contents)
        names = {id_block(each): each for each in ids if isinstance(each, str)}
        made = Contents(np.array([len(ids)]), ids.blocks, b"".join(contents[each] for each in ids), names)
        self._replace(Book.made(_NUMBER, [([self._client], [seed], made, roots_of([self._key], made))]))

    def remove(self, samples: tuple[Id, ...] | None) -> None:
        """Remove samples, or (None) the client. Idempotent; writes nothing if there is nothing to remove."""
        if self.is_empty:
            return
        rows = [row for each in samples or () if (row := self._book.row(0, each)) is not None]
        if rows or samples is None:
            with self._changing() as book:
                book.without([] if samples is not None else [0], rows)

    def join(self, samples: Mapping[Id, bytes]) -> None:
        """Add samples that are not in the book. Idempotent."""
        if samples:
            self._require_present()
        if any(len(content) != CONTENT_BYTES for content in samples.values()):
            raise RunDamaged(f"{self.path}: the content digest of a new sample is invalid")
        if any(self._book.row(0, each) is None for each in samples):
            with self._changing() as book:
                book.insert_samples({0: samples})

    def reseed(self, seed: Seed) -> None:
        """Store a new seed. Idempotent."""
        if self.seed != seed:
            with self._changing() as book:
                book.reseed({self._client: seed})

    @contextmanager
    def _changing(self) -> Iterator[Book]:
        book = self._read()
        yield book
        if len(book.clients):
            book.set_roots({0: self._root_at(book)})
        self._replace(book)

    def _replace(self, book: Book) -> None:
        book.root = self._root_of(book)
        self.before_write()
        with exclusive_section(self.path.parent):
            write_durably(self.path, book.encoded(), mode=0o600)
        self._known = book

    def _root_at(self, book: Book) -> bytes:
        return roots_of([self._key], book.contents_of([0]))[0]

    def _root_of(self, book: Book) -> bytes:
        """Return the root in the header: it covers the client's commitment and the root over its samples."""
        labels = labels_of(self._key, IdSet.of_blocks(book.clients))
        values = (commitment + root.tobytes() for commitment, root in zip(book.commitments(), book.roots, strict=True))
        return root_of(zip(labels, values, strict=True))


def _lost(path: Path, client: Id, what: str) -> RunDamaged:
    return RunDamaged(
        f"{path} {what}: the seed of client {shown(client)} is lost, and its rounds cannot be computed again",
        hint="restore the whole state directory from a backup; or let the server erase the client: "
        f"`fedforget forget RUN --client {shown(client)} --basis model-informed`",
    )
