"""Change a file of the clients' books with SQL, as other tests change a database.

The file is read into tables, and written from them. Nothing is checked on the way, so that tests can make wrong files.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.tree import root_of
from fedforget.store.books.content import Book
from fedforget.store.books.tree import DEPTH, client_leaves, roots_at
from fedforget.store.names import BOOKS

_TABLES = """
CREATE TABLE clients (client ANY, seed, nonce, root);
CREATE TABLE samples (client ANY, sample ANY, content);
CREATE TABLE part (number, root);
"""


def edit_book(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> int:
    """Run statements on the tables ``clients``, ``samples`` and ``part``. Return how many rows the last one changed."""
    count = 0
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as tables:
        tables.executescript(_TABLES)
        _fill(tables, Book.read(path, BOOKS.index(path.name)))
        for statement in statements:
            count = tables.execute(statement, values if "?" in statement else ()).rowcount
        path.write_bytes(_book_of(tables).encoded())
    return count


def rows_of_book(path: Path, sql: str) -> list[Any]:
    """Return the answer of the tables to a query."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as tables:
        tables.executescript(_TABLES)
        _fill(tables, Book.read(path, BOOKS.index(path.name)))
        return tables.execute(sql).fetchall()


def root_of_book(path: Path) -> bytes:
    return path.read_bytes()[48:80]


def rehash_book(path: Path, key: bytes) -> None:
    """Write roots that fit the content."""
    book = Book.read(path, BOOKS.index(path.name))
    book.set_roots({place: roots_at(key, book, [place])[0] for place in range(len(book.ends))})
    book.root = root_of(client_leaves(key, book, path.parent), DEPTH)
    path.write_bytes(book.encoded())


def _fill(tables: sqlite3.Connection, book: Book) -> None:
    tables.execute("INSERT INTO part VALUES (?, ?)", (book.number, book.root))
    for place in range(len(book.ends)):
        client = book.client(place)
        secrets = (column[place].tobytes() for column in (book.seeds, book.nonces, book.roots))
        tables.execute("INSERT INTO clients VALUES (?, ?, ?, ?)", (client, *secrets))
        start, stop = book.rows(place)
        ids = IdSet.of_blocks(book.samples[start:stop], book.names)
        for row, sample in zip(range(start, stop), ids, strict=True):
            values = (client, sample, book.contents[row].tobytes())
            tables.execute("INSERT INTO samples VALUES (?, ?, ?)", values)


def _block(identifier: Id) -> bytes:
    """Also of a number in quotes, which is no id."""
    if isinstance(identifier, str) and identifier.isdecimal():
        return b"\x01" + blake2b(identifier.encode(), digest_size=15, person=b"fedforget/id/1").digest()
    return id_block(identifier)


def _rows(values: Iterable[bytes], width: int) -> Any:
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, width)


def _book_of(tables: sqlite3.Connection) -> Book:
    """Samples of no client stand behind those of the others."""
    clients = sorted(tables.execute("SELECT * FROM clients"), key=lambda row: _block(row[0]))
    owners = {row[0]: place for place, row in enumerate(clients)}
    samples = sorted(
        tables.execute("SELECT * FROM samples"), key=lambda row: (owners.get(row[0], len(owners)), _block(row[1]))
    )
    [(number, root)] = tables.execute("SELECT number, root FROM part")
    ids = {row[0] for row in clients} | {row[1] for row in samples}
    return Book(
        number=number,
        clients=_rows((_block(row[0]) for row in clients), 16),
        ends=np.array([sum(s[0] == row[0] for s in samples) for row in clients], np.int64).cumsum(),
        seeds=_rows((row[1] for row in clients), 32),
        nonces=_rows((row[2] for row in clients), 32),
        roots=_rows((row[3] for row in clients), 32),
        samples=_rows((_block(row[1]) for row in samples), 16),
        contents=_rows((row[2] for row in samples), 16),
        names={_block(each): each for each in ids if isinstance(each, str)},
        root=root,
    )
