"""The clients' books on disk: each client's seed, and its sample ids with content digests, in 16 files.

A book changes when data leave or join, never in a round. Its file is then replaced as a whole, in canonical form, so it
has no log, and after a crash it is the old file or the new one. The label of a client decides which file holds its
book, and the files' roots join to the root of the tree over all data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.contents import CONTENT_BYTES, Contents, ContentsOf
from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.ports import Newcomer, RemoveOrder
from fedforget.algorithm.seeds import Seed
from fedforget.algorithm.tree import Leaf, joined, labeller, labels_of, leaves_of, root_of, roots_of
from fedforget.disk.files import write_durably
from fedforget.disk.lock import exclusive_section
from fedforget.disk.second_process import can_help, made
from fedforget.errors import RunDamaged, shown
from fedforget.store.books.content import Book
from fedforget.store.books.file import BookFile
from fedforget.store.books.tree import DEPTH, PARTS, client_leaves, number_of, roots_at, roots_fit, sample_key
from fedforget.store.names import BOOKS

_AT_ONCE = 4096  # clients: more cost more memory
_MANY = 20_000  # clients from which a second process is worth its start


class Books:
    """The books of all clients. ``key`` is a secret of the run: it makes labels that reveal nothing about ids.

    Files are opened on first use. ``check`` is called with the name of a file before it is opened; it returns whether
    the file is known to be as FedForget wrote it. ``known_roots``: the roots of files that need not be opened to know
    them.
    """

    def __init__(
        self,
        run: Path,
        key: bytes,
        check: Callable[[str], bool | None] = lambda _: False,
        known_roots: Mapping[str, bytes] | None = None,
    ) -> None:
        self._run, self.key, self._check = run, key, check
        self._label_of = labeller(key)
        self._known_roots = dict(known_roots or {})
        self._open: dict[int, BookFile] = {}
        self._checked: set[int] = set()  # against their seals; also those that this process has written
        self._trusted: set[int] = set()  # need not be read as a whole
        self.before_write: Callable[[], None] = lambda: None
        self.changed: set[str] = set()  # names of files, since the run was opened or sealed

    # Reading

    def part_of(self, client: Id) -> int:
        return number_of(self._label_of(client))

    def path_of(self, client: Id) -> Path:
        """Return the file that holds a client's book."""
        return self._run / BOOKS[self.part_of(client)]

    def part(self, number: int) -> BookFile:
        """Open a file, after checking all of it."""
        if number not in self._open:
            if not self._is_trusted(number):
                self._read(number)
            self._open[number] = BookFile(self._run / BOOKS[number], number)
        return self._open[number]

    def _is_trusted(self, number: int) -> bool:
        """Compare a file with its seal once, and return whether it need not be read as a whole."""
        if number not in self._checked:
            if self._check(BOOKS[number]):
                self._trusted.add(number)
            self._checked.add(number)
        return number in self._trusted

    def _read(self, number: int) -> Book:
        self._is_trusted(number)
        return Book.read(self._run / BOOKS[number], number)

    def is_open(self, name: str) -> bool:
        """Return whether a file was opened, and was in order."""
        return BOOKS.index(name) in self._open

    def _all(self) -> Iterator[BookFile]:
        return (self.part(number) for number in range(PARTS))

    def clients(self) -> Iterator[Id]:
        return (client for part in self._all() for client in part.clients())

    def commitments(self) -> dict[Id, bytes]:
        """Return each client's commitment, computed from its seed and nonce."""
        return {c: found for part in self._all() for c, found in zip(part.clients(), part.commitments(), strict=True)}

    def sizes(self) -> dict[Id, int]:
        return {c: n for part in self._all() for c, n in zip(part.clients(), part.sizes().tolist(), strict=True)}

    def sample_counts(self) -> NDArray[np.int64]:
        """Return how many samples each client has, without the clients' ids: fast for very many clients."""
        return np.concatenate([part.sizes() for part in self._all()])

    def count(self) -> tuple[int, int]:
        """Return how many clients and samples there are, as the files say. Reads their beginnings only."""
        headers = []
        for number in range(PARTS):
            with self._glancing(number) as part:
                headers.append(part.header)
        return sum(header.clients for header in headers), sum(header.samples for header in headers)

    @contextlib.contextmanager
    def _glancing(self, number: int) -> Iterator[BookFile]:
        if number in self._open:
            yield self._open[number]
            return
        with contextlib.closing(BookFile(self._run / BOOKS[number], number)) as part:
            yield part

    def has(self, client: Id, sample: Id) -> bool:
        return self.part(self.part_of(client)).has(client, sample)

    def has_client(self, client: Id) -> bool:
        return self.part(self.part_of(client)).has(client, None)

    def samples(self, client: Id) -> IdSet:
        part, place = self._find(client)
        return IdSet([]) if place is None else part.samples(place)

    def contents(self, client: Id, samples: Sequence[Id] | None = None) -> dict[Id, bytes]:
        """Return the content digest of each sample of a client, or of some of its samples."""
        part, place = self._find(client)
        if place is None:
            return {}
        found = dict(zip(part.samples(place), part.contents(place), strict=True))
        return found if samples is None else {sample: found[sample] for sample in samples if sample in found}

    def seed(self, client: Id) -> Seed:
        part, place = self._find(client)
        if place is None:
            raise RunDamaged(f"{part.path} lacks client {shown(client)}")
        return part.seed(place)

    def _find(self, client: Id) -> tuple[BookFile, int | None]:
        part = self.part(self.part_of(client))
        return part, part.place(client)

    # The tree

    def roots(self) -> dict[str, bytes]:
        """Return the root of each file."""
        return {name: self._known_roots.get(name) or self.part(number).header.root for number, name in enumerate(BOOKS)}

    def root(self) -> bytes:
        """Return the root of the tree over all clients and samples."""
        return joined(list(self.roots().values()))

    def require_tree(self, number: int) -> None:
        """Raise RunDamaged if the roots in a file are not those of its content."""
        book = self._read(number)
        wrong = book.root != root_of(client_leaves(self.key, book, self._run), DEPTH)
        wrong = wrong or book.root != self._known_roots.get(BOOKS[number], book.root)
        groups = (slice(start, start + _AT_ONCE) for start in range(0, len(book.ends), _AT_ONCE))
        if wrong or not all(roots_fit(self.key, book, places) for places in groups):
            raise RunDamaged(f"{self._run / BOOKS[number]} is damaged: its roots are not those of its content")

    def groups(self, number: int) -> Iterator[tuple[list[Id], Contents]]:
        """Yield the clients of a file with their samples, thousands at a time."""
        book = self._read(number)
        for start in range(0, len(book.ends), _AT_ONCE):
            places = range(start, min(start + _AT_ONCE, len(book.ends)))
            contents = replace(book.contents_of(places), names=book.names)
            yield [book.client(place) for place in places], contents

    def client_leaves(self, number: int) -> dict[Id, Leaf]:
        """Return the leaf of every client in a file."""
        book = self._read(number)
        return {book.client(place): leaf for place, leaf in enumerate(client_leaves(self.key, book, self._run))}

    def leaf_of(self, client: Id, label: bytes) -> Leaf:
        """Return the leaf of a client with this label; its value is the commitment, and the root of its samples."""
        part = self.part(number_of(label))
        place = part.place(client)
        if place is None:
            raise RunDamaged(f"{part.path} lacks client {shown(client)}")
        return label, part.seed(place).commitment + part.root(place)

    def sample_leaves(self, client: Id) -> list[Leaf]:
        """Return the leaves of a client's samples."""
        known = self.contents(client)
        return leaves_of(sample_key(self.key, id_block(client)), IdSet.of_canonical(known), list(known.values()))

    # Writing

    def create(self, clients: Mapping[Id, Seed], contents_of: ContentsOf, *, in_memory: bool = False) -> None:
        """Write the books of a new run.

        ``in_memory``: the contents are read from memory alone, so that a second process may read them, too.
        """
        ids = IdSet.of_canonical(clients)
        parts: list[list[Id]] = [[] for _ in range(PARTS)]
        for label, client in zip(labels_of(self.key, ids), ids, strict=True):
            parts[number_of(label)].append(client)

        def image(number: int) -> bytes:
            members = parts[number]
            groups = (members[start : start + _AT_ONCE] for start in range(0, len(members), _AT_ONCE))
            return self._finished(Book.made(number, (self._made(group, clients, contents_of) for group in groups)))

        helped = in_memory and len(ids) >= _MANY and can_help()
        for number, data in made(image, range(PARTS), helped=helped):
            write_durably(self._run / BOOKS[number], data, mode=0o600)

    def _made(
        self, group: list[Id], seeds: Mapping[Id, Seed], contents_of: ContentsOf
    ) -> tuple[list[Id], list[Seed], Contents, list[bytes]]:
        contents = contents_of(group)
        keys = [sample_key(self.key, id_block(client)) for client in group]
        return group, [seeds[client] for client in group], contents, roots_of(keys, contents)

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        """Remove samples and clients. Idempotent."""
        for number, own in _by_part(orders, self.part_of).items():
            with self._replacing(number) as book:
                places = {order.client: place for order in own if (place := book.place(order.client)) is not None}
                there = [order for order in own if order.client in places]
                partly = [order.client for order in there if order.samples is not None]
                book.without(
                    [places[order.client] for order in there if order.samples is None],
                    [row for order in there for sample in order.samples or ()
                     if (row := book.row(places[order.client], sample)) is not None],
                )  # fmt: skip
                self._set_roots(book, partly)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        """Insert new samples, of new or existing clients. Idempotent."""
        if any(len(content) != CONTENT_BYTES for new in newcomers for _, content in new.samples):
            raise RunDamaged(f"{self._run} is damaged: the content digest of a sample that joins is invalid")
        for number, own in _by_part(newcomers, self.part_of).items():
            with self._replacing(number) as book:
                known = {new.client for new in own if book.place(new.client) is not None}
                book.insert_clients({new.client: new.seed for new in own if new.client not in known and new.seed})
                places = {new.client: book.place(new.client) for new in own}
                book.insert_samples({place: dict(new.samples) for new in own
                                     if (place := places[new.client]) is not None})  # fmt: skip
                self._set_roots(book, places)

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        """Store new seeds. Idempotent."""
        for number in range(PARTS):
            with self._replacing(number) as book:
                book.reseed(seeds)

    def _set_roots(self, book: Book, clients: Iterable[Id]) -> None:
        places = sorted(place for client in clients if (place := book.place(client)) is not None)
        for start in range(0, len(places), _AT_ONCE):
            some = places[start : start + _AT_ONCE]
            book.set_roots(dict(zip(some, roots_at(self.key, book, some), strict=True)))

    @contextlib.contextmanager
    def _replacing(self, number: int) -> Iterator[Book]:
        """Change a file: yield its content, and put what became of it in the place of the file."""
        self.before_write()
        book = self._read(number)
        yield book
        image = self._finished(book)
        if number in self._open:
            self._open.pop(number).close()
        self._known_roots.pop(BOOKS[number], None)
        self.changed.add(BOOKS[number])
        path = self._run / BOOKS[number]
        with exclusive_section(self._run):
            write_durably(path, image, mode=0o600)
        self._open[number] = BookFile(path, number)  # this process has written it: it need not be checked again

    def _finished(self, book: Book) -> bytes:
        """Set the root of a file, and return its bytes."""
        book.root = root_of(client_leaves(self.key, book, self._run), DEPTH)
        return book.encoded()

    def close(self) -> None:
        for part in self._open.values():
            part.close()
        self._open.clear()


def _by_part(items: Iterable[Any], part_of: Callable[[Id], int]) -> dict[int, list[Any]]:
    """Group orders or newcomers by the file that holds their client."""
    found: dict[int, list[Any]] = {}
    for item in items:
        found.setdefault(part_of(item.client), []).append(item)
    return found
