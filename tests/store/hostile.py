"""Run directories as an attacker makes them: one wrong thing each, everything else consistent with it.

The attacker knows the format: digests, seals and checksums are computed again, so that nothing but the door stands in
the way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedforget.algorithm.seeds import SeedSource
from fedforget.disk.key_file import KeyFile
from fedforget.disk.page_sum import page_hash
from fedforget.errors import FedForgetError
from fedforget.requests.vault import LEAVES, MODEL, STATE, waiting
from fedforget.store import metrics, record, server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.books.content import Book
from fedforget.store.names import BOOKS, KEYS, METRICS, RECORD, SEALS, SERVER, USES
from fedforget.store.sealed_files import sum_text
from fedforget.store.seals import Seal, Seals
from fedforget.store.uses import Uses
from tests.cli.commandline import WORLD
from tests.helpers import take_off_seals
from tests.store.book_sql import edit_book, rehash_book, root_of_book
from tests.store.roster_sql import client_becomes

PAGE = 4096
GIANT = 10 * 2**30
READ = 4  # the client that is forgotten in ``test_hostile``: its book is read
BOOK = Books(Path(), SeedSource(WORLD[WORLD.index("--seed") + 1]).tree_key()).path_of(READ).name
ANOTHER = (BOOKS.index(BOOK) + 1) % len(BOOKS)
SCHEMAS = {SERVER: server_store.SCHEMA, USES: uses.SCHEMA, METRICS: metrics.SCHEMA, RECORD: record.SCHEMA}
DEEP = 100_000
TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"


@dataclass(frozen=True)
class Case:
    """``make`` turns a copy of a run into a hostile one. ``crashed``: it begins with a run that was killed at work."""

    name: str
    make: Callable[[Path, Path], object]
    crashed: bool = False
    harmless: bool = False  # nothing has to be refused; it must only have no effect
    long: bool = False  # it says that there are more rounds than can be trained: commands that train go on for ever

    @property
    def kind(self) -> str:
        """What is wrong, without the file, table or number where it is."""
        group, *rest = self.name.removesuffix(" after a crash").replace("first event", "event").split()
        places = ("file", "header", "log", "column", "journal", "holes", "json", "book", "tree")
        if group in places or rest[-1] == "gone" or (group == "schema" and rest[0].endswith(".db")):
            rest = [word for word in rest[1:] if group != "book" or not word.isdigit()]
        elif group == "value":
            rest = rest[2:]
        elif "without" in rest:
            rest = rest[:2]
        return " ".join((group, *rest))

    @property
    def group(self) -> str:
        return self.name.split()[0]


def one_of_each(of: Sequence[Case], by: Callable[[Case], str], choice: int = 0) -> list[Case]:
    """Return one case of each kind. Which one depends on its kind alone, so that a new case changes no other choice."""
    found: dict[str, list[Case]] = {}
    for case in of:
        found.setdefault(by(case), []).append(case)
    return [each[(zlib.crc32(kind.encode()) + choice) % len(each)] for kind, each in found.items()]


def cases() -> list[Case]:
    found = [
        *_files(), *_directories(), *_journals(), *_headers(), *_trees(), *_schemas(), *_columns(), *_rows(),
        *_strange_rows(), *_books(), *_json(), *_toml(), *_models(), *_logs(), *_holes(), *_names(),
    ]  # fmt: skip
    assert len({case.name for case in found}) == len(found)
    return found


# ---------------------------------------------------------------------------------------------- every file, every kind


def _link(path: Path, outside: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(outside)


def _fifo(path: Path, _: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _directory(path: Path, _: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _sparse(path: Path, _: Path) -> None:
    os.truncate(path, GIANT)


def _giant(path: Path, _: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, GIANT)


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, outside: _link(path, outside / path.name),
    "dangling link": lambda path, outside: _link(path, outside / "nothing"),
    "zeros": lambda path, _: _link(path, Path("/dev/zero")),
    "pipe": _fifo,
    "directory": _directory,
    "sparse": _sparse,
    "giant": _giant,
    "cut": lambda path, _: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path, _: path.write_bytes(b""),
    "head": lambda path, _: path.write_bytes(bytes(64) + path.read_bytes()[64:]),
    "noise": lambda path, _: path.write_bytes(hashlib.shake_256(path.name.encode()).digest(8192)),
}
FILES = ("plan.toml", *SCHEMAS, BOOK, KEYS, SEALS, "receipt-key.pem", "receipt-key.pub.pem")
NOT_A_FILE = ("link", "dangling link", "zeros", "pipe", "directory")


def _of(run: Path, name: str) -> Path:
    """``models/*`` is the first model, ``inbox/*`` the first file there."""
    return min((run / name).parent.glob("*")) if name.endswith("*") else run / name


def _files() -> Iterator[Case]:
    for name in (*FILES, "models/*", "inbox/*"):
        for kind, change in KINDS.items():
            make = partial(_change_file, name, change)
            yield Case(f"file {name} {kind}", make, harmless=(name, kind) == ("receipt-key.pub.pem", "link"))
    for name in ("record.db-wal", "server.db-wal"):
        for kind in (*NOT_A_FILE, "sparse", "giant", "head", "noise"):
            yield Case(f"file {name} {kind}", partial(_change_file, name, KINDS[kind]), crashed=True)
    for kind in NOT_A_FILE:
        yield Case(f"file lock {kind}", partial(_change_file, "lock", KINDS[kind]))
    for kind in ("sparse", "giant", "noise"):
        yield Case(f"file lock {kind}", partial(_change_file, "lock", KINDS[kind]), harmless=True)
    for name in ("server.db", BOOK, "lock"):
        yield Case(f"file {name} second name", partial(_second_name, name), harmless=True)


def _change_file(name: str, change: Callable[[Path, Path], object], run: Path, outside: Path) -> None:
    path = _of(run, name)
    shutil.copy(path, outside / path.name)
    change(path, outside)


def _second_name(name: str, run: Path, outside: Path) -> None:
    shutil.copy(run / name, outside / name)
    (run / name).unlink()
    os.link(outside / name, run / name)


def _directories() -> Iterator[Case]:
    def link(name: str, run: Path, outside: Path) -> None:
        shutil.copytree(run / name, outside / name)
        (outside / name / ("f" * 64 + ".safetensors")).write_bytes(b"not of this run")
        (outside / name / "left.tmp").write_bytes(b"not of this run")
        shutil.rmtree(run / name)
        (run / name).symlink_to(outside / name)

    def replaced(name: str, change: Callable[[Path, Path], object], run: Path, outside: Path) -> None:
        shutil.rmtree(run / name)
        change(run / name, outside)

    for crashed in (False, True):
        for name in ("models", "inbox"):
            after = " after a crash" if crashed else ""
            yield Case(f"directory {name} link{after}", partial(link, name), crashed)
            yield Case(f"directory {name} pipe{after}", partial(replaced, name, _fifo), crashed)
            text: Callable[[Path, Path], object] = lambda path, _: path.write_bytes(b"text")  # noqa: E731
            yield Case(f"directory {name} file{after}", partial(replaced, name, text), crashed)


def _journals() -> Iterator[Case]:
    def planted(name: str, run: Path, outside: Path) -> None:
        """A hot journal that names a super-journal elsewhere: SQLite deletes that file when it has obeyed."""
        super_journal = str(outside / "victim").encode()
        page = (run / name.removesuffix(".tmp")).read_bytes()[:PAGE]
        head = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 1, 7, 1, 512, PAGE)
        total = (7 + sum(page[place] for place in range(PAGE - 200, 0, -200))) & 0xFFFFFFFF
        body = head.ljust(512, b"\0") + struct.pack(">I", 1) + page + struct.pack(">I", total)
        body = body.ljust((len(body) + 511) // 512 * 512, b"\0")
        end = struct.pack(">I", 0x40000000 // PAGE + 1) + super_journal
        end += struct.pack(">II", len(super_journal), sum(super_journal)) + bytes.fromhex("d9d505f920a163d7")
        (run / (name + "-journal")).write_bytes(body + end)

    for name in SCHEMAS:
        for crashed in (False, True):
            after = " after a crash" if crashed else ""
            yield Case(f"journal {name}{after}", partial(planted, name), crashed)
        yield Case(f"journal {name} empty", lambda run, _, name=name: (run / f"{name}-journal").touch())  # type: ignore[misc]
        yield Case(f"journal {name}.tmp", partial(planted, name + ".tmp"), harmless=True)
    yield Case("journal link", lambda run, outside: (run / "record.db-journal").symlink_to(outside / "victim"))


# ---------------------------------------------------------------------------------------------------------- databases


class Rows:
    """A connection that is asked like a database of ours."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def rows(self, sql: str) -> list[Any]:
        return self.connection.execute(sql).fetchall()


def reseal(run: Path, book: str = "") -> None:
    """Seals that fit what is there, where they can still be read. ``book``: its root may be another one now."""
    with contextlib.suppress(sqlite3.Error, FedForgetError, OSError):
        seals = Seals(run).all()
        for name, seal in seals.items():
            root = root_of_book(run / book) if name == book else seal.root
            seals[name] = Seal(_digest_for_seal(run / name), root)
        if seals:
            Seals(run).set(seals)


def _digest_for_seal(path: Path) -> str:
    data = path.read_bytes()
    if path.name != RECORD:
        return hashlib.blake2b(data, digest_size=32).hexdigest()
    pages = (data[place : place + PAGE] for place in range(0, len(data), PAGE))
    return sum_text(sum(page_hash(number, page) for number, page in enumerate(pages, start=1)) % 2**256)


def change_seal(run: Path, name: str, **changes: Any) -> None:
    """Change what the seals say about a file."""
    seals = Seals(run).all()
    seals[name] = replace(seals[name], **changes)
    Seals(run).set(seals)


_KEY = "SELECT value FROM server WHERE key = 'tree_key'"


def _asked(path: Path, sql: str) -> Any:
    """One value of a database whose log, if it has one, must stay as it is."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        found = connection.execute(sql).fetchone()
        return found and found[0]


def rehash(run: Path, name: str) -> None:
    """Roots or the digest that fit the rows, where they can be computed."""
    if name in BOOKS:
        with contextlib.suppress(FedForgetError):
            rehash_book(run / name, _asked(run / SERVER, _KEY))
        return
    hopeless = (sqlite3.Error, FedForgetError, ValueError, TypeError, KeyError, AttributeError, OverflowError)
    with contextlib.suppress(*hopeless), contextlib.closing(sqlite3.connect(run / name)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        if name == USES:
            notes = Uses(Rows(connection))  # type: ignore[arg-type]
            connection.execute("UPDATE content SET digest = ?", (notes.computed_digest(),))


def altered(
    run: Path, name: str, *statements: str, values: tuple[Any, ...] = (), seal: bool = True, hashes: bool = True
) -> None:
    """Change rows without any constraint, then put the schema back; with hashes and seals that fit, or without."""
    if name in BOOKS:
        edit_book(run / name, *statements, values=values)
    else:
        _altered_rows(run, name, statements, values)
    if hashes:
        rehash(run, name)
    if seal:
        reseal(run, name if name in BOOKS else "")
    else:
        take_off_seals(run)


def _altered_rows(run: Path, name: str, statements: tuple[str, ...], values: tuple[Any, ...]) -> None:
    with contextlib.closing(sqlite3.connect(run / name, isolation_level=None)) as connection:
        connection.text_factory = bytes
        tables = [name.decode() for (name,) in connection.execute(TABLES)]
        connection.text_factory = str
        real = dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"))
        loose = {table: _loose(connection, table, real[table]) for table in tables}
        _write_schema(connection, loose)
    with contextlib.closing(sqlite3.connect(run / name, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement, values if "?" in statement else ())
        _write_schema(connection, real)


def _loose(connection: sqlite3.Connection, table: str, sql: str) -> str:
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    key = [name for _, name, _, _, _, place in sorted(columns, key=lambda each: each[5]) if place]
    if "WITHOUT ROWID" in sql:
        return (
            f"CREATE TABLE {table} ({', '.join(c[1] for c in columns)}, PRIMARY KEY ({', '.join(key)})) WITHOUT ROWID"
        )
    return f"CREATE TABLE {table} ({', '.join(c[1] + (' INTEGER PRIMARY KEY' if c[5] else '') for c in columns)})"


def _write_schema(connection: sqlite3.Connection, sql: dict[str, str]) -> None:
    connection.execute("PRAGMA writable_schema=ON")
    for table, text in sql.items():
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (text, table))
    connection.execute("PRAGMA writable_schema=OFF")


def patched(run: Path, name: str, *changes: tuple[int, bytes]) -> None:
    data = bytearray((run / name).read_bytes())
    for place, new in changes:
        data[place : place + len(new)] = new
    (run / name).write_bytes(bytes(data))
    reseal(run)


def _headers() -> Iterator[Case]:
    changes = {
        "page size 512": (16, struct.pack(">H", 512)),
        "page size 65536": (16, struct.pack(">H", 1)),
        "page size 3": (16, struct.pack(">H", 3)),
        "plain": (18, b"\1\1"),
        "future": (18, b"\3\3"),
        "reserved": (20, b"\x80"),
        "more pages": (28, struct.pack(">I", 2**31)),
        "fewer pages": (28, struct.pack(">I", 1)),
        "no pages": (28, bytes(4)),
        "free list": (32, struct.pack(">II", 2, 2**31)),
        "free list elsewhere": (32, struct.pack(">II", 2**31, 1)),
        "format 0": (44, bytes(4)),
        "format 9": (44, struct.pack(">I", 9)),
        "vacuum": (52, struct.pack(">II", 3, 1)),
        "UTF-16": (56, struct.pack(">I", 2)),
        "odd text": (56, struct.pack(">I", 77)),
        "version 0": (60, bytes(4)),
        "version 1": (60, struct.pack(">I", 1)),
        "version 2": (60, struct.pack(">I", 2)),
        "version 3": (60, struct.pack(">I", 3)),
        "version 99": (60, struct.pack(">I", 99)),
        "no tree": (100, b"\0"),
        "cells": (103, struct.pack(">H", 5000)),
    }
    for name in SCHEMAS:
        for what, change in changes.items():
            yield Case(f"header {name} {what}", lambda run, _, name=name, change=change: patched(run, name, change))  # type: ignore[misc]
        yield Case(f"header {name} a page more", partial(_longer, name))


def _longer(name: str, run: Path, _: Path) -> None:
    (run / name).write_bytes((run / name).read_bytes() + bytes(PAGE))
    reseal(run)


def _root_of(run: Path, name: str, table: str) -> int:
    with contextlib.closing(sqlite3.connect(run / name)) as connection:
        (found,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
        return int(found)


def _interior(kind: int, children: list[int], last: int) -> bytes:
    """A page of a tree whose cells hold nothing but the numbers of pages."""
    page, at, cells = bytearray(PAGE), PAGE, []
    for number, child in enumerate(children):
        cell = struct.pack(">I", child) + (
            bytes([number + 1]) if kind == 5 else b"\x02\x02\x01" + bytes([number % 128])
        )
        at -= len(cell)
        page[at : at + len(cell)] = cell
        cells.append(at)
    page[0:12] = struct.pack(">BHHHBI", kind, 0, len(cells), at, 0, last)
    page[12 : 12 + 2 * len(cells)] = struct.pack(f">{len(cells)}H", *cells)
    return bytes(page)


def _trees() -> Iterator[Case]:
    def looped(name: str, table: str, run: Path, _: Path) -> None:
        root = _root_of(run, name, table)
        patched(run, name, ((root - 1) * PAGE, _interior(2, [root], root)))

    def many_times(name: str, table: str | None, run: Path, _: Path) -> None:
        """Each page refers to the next forty times: 40^15 rows."""
        data = bytearray((run / name).read_bytes())
        root = 1 if table is None else _root_of(run, name, table)
        first = len(data) // PAGE + 1
        kind = 5 if table is None else 2
        for place in range(15):
            data += _interior(kind, [first + place + 1] * 40, first + place + 1)
        data += data[(root - 1) * PAGE : root * PAGE] if root > 1 else _interior(13, [], 0)
        top = _interior(kind, [first] * 40, first)
        if root == 1:
            data[100:PAGE] = top[: PAGE - 100]
            data[112:192] = struct.pack(">40H", *(PAGE - 100 - 5 * (n + 1) for n in range(40)))
        else:
            data[(root - 1) * PAGE : root * PAGE] = top
        data[28:32] = struct.pack(">I", len(data) // PAGE)
        (run / name).write_bytes(bytes(data))
        reseal(run)

    def deep(name: str, table: str, run: Path, _: Path) -> None:
        data = bytearray((run / name).read_bytes())
        root = _root_of(run, name, table)
        first, levels = len(data) // PAGE + 1, 40_000
        for place in range(levels):
            data += _interior(2, [], first + place + 1)
        data += data[(root - 1) * PAGE : root * PAGE]
        data[(root - 1) * PAGE : root * PAGE] = _interior(2, [], first)
        data[28:32] = struct.pack(">I", len(data) // PAGE)
        (run / name).write_bytes(bytes(data))
        reseal(run)

    for name, table in ((USES, "first_uses"),):
        yield Case(f"tree {name} loop", partial(looped, name, table))
        yield Case(f"tree {name} many times", partial(many_times, name, table))
        yield Case(f"tree {name} of the schema many times", partial(many_times, name, None))
        yield Case(f"tree {name} deep", partial(deep, name, table))


ENDLESS = "WITH RECURSIVE n(client) AS (SELECT 1 UNION ALL SELECT client + 1 FROM n) SELECT client"


def _schemas() -> Iterator[Case]:
    def done(name: str, *statements: str) -> Callable[[Path, Path], None]:
        def make(run: Path, _: Path) -> None:
            with contextlib.closing(sqlite3.connect(run / name, isolation_level=None)) as connection:
                for statement in statements:
                    connection.execute(statement)
            reseal(run)

        return make

    columns = {SERVER: "roster", USES: "first_uses", METRICS: "metrics", RECORD: "requests"}
    for name, table in columns.items():
        yield Case(f"schema {name} another table", done(name, "CREATE TABLE other (x)"))
        column = {"record.db": "basis", SERVER: "number"}.get(name, "client")
        yield Case(f"schema {name} an index", done(name, f"CREATE INDEX other ON {table} ({column})"))
        yield Case(f"schema {name} a view", done(name, f"CREATE VIEW other AS SELECT * FROM {table}"))
        yield Case(f"schema {name} a trigger", done(name, f"CREATE TRIGGER other AFTER UPDATE ON {table} BEGIN "
                                                    f"DELETE FROM {table}; END"))  # fmt: skip
        yield Case(f"schema {name} a column", done(name, f"ALTER TABLE {table} ADD COLUMN other ANY"))
        yield Case(f"schema {name} a computed column", done(name, f"ALTER TABLE {table} ADD COLUMN o ANY AS (1)"))
        yield Case(f"schema {name} no table", done(name, f"DROP TABLE {table}"))
        yield Case(f"schema {name} statistics", done(name, "ANALYZE"))
        yield Case(f"schema {name} not text", partial(_not_text, name))
        yield Case(f"schema {name} nonsense", partial(_schema_text, name, "CREATE TABLE nonsense"))
        yield Case(f"schema {name} long", partial(_schema_text, name, "CREATE TABLE t (x " + "-" * 2**21))
    endless = f"CREATE VIEW roster AS {ENDLESS} AS number, zeroblob(16) AS clients, zeroblob(32) AS commitments FROM n"
    yield Case("schema an endless view", done("server.db", "DROP TABLE roster", endless))
    endless = f"CREATE VIEW first_uses AS {ENDLESS}, 1 AS sample, 1 AS step FROM n"
    yield Case("schema endless uses", done(USES, "DROP TABLE first_uses", endless))


def _schema_text(name: str, text: str | bytes, run: Path, _: Path) -> None:
    with contextlib.closing(sqlite3.connect(run / name, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_schema SET sql = CAST(? AS TEXT) WHERE rowid = 1", (text,))
    reseal(run)


def _not_text(name: str, run: Path, outside: Path) -> None:
    _schema_text(name, b"CREATE TABLE x (\xff\xfe\xfd)", run, outside)


WRONG: dict[str, Any] = {
    "null": None,
    "number": -7,
    "fraction": 0.5,
    "text": "x",
    "text with a NUL": "a\0b",
    "blob": b"\0" * 5,
    "empty": "",
    "huge number": 2**62,
    "huge": "x" * 2**22,
    "huge blob": b"x" * 2**22,
}


def columns_of(name: str) -> Iterator[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMAS[name])
        for (table,) in connection.execute(f"{TABLES} ORDER BY name").fetchall():
            for row in connection.execute(f"PRAGMA table_info({table})").fetchall():
                yield table, row[1]


def _columns() -> Iterator[Case]:
    """Every column of every table holds one value that it may not have, or that nothing else fits."""
    for name in SCHEMAS:
        for table, column in columns_of(name):
            crashed = (table, column) in INTENTS
            for what, value in WRONG.items():
                make = partial(_wrong_value, name, table, column, value, crashed)
                yield Case(f"column {table}.{column} {what}", make, crashed, harmless=True)


HASHES = {("content", "digest")}
INTENTS = {("intents", column) for column in ("batch_id", "stage", "key", "body")}


def _is_huge(value: Any) -> bool:
    return isinstance(value, str | bytes) and len(value) > 2**16


def _wrong_value(name: str, table: str, column: str, value: Any, crashed: bool, run: Path, _: Path) -> None:
    if table in ("samples", "first_uses", "witnesses") and _is_huge(value):
        value = value[: 2**16]  # in each of its rows
    one = f"UPDATE {table} SET {column} = ?1 WHERE {column} = (SELECT {column} FROM {table} LIMIT 1)"
    with contextlib.suppress(sqlite3.IntegrityError):  # a NULL in a key cannot even be written
        seal, hashes = len(column) % 2 == 0 and not crashed, (table, column) not in HASHES
        altered(run, name, one, values=(value,), seal=seal, hashes=hashes)


def _rows() -> Iterator[Case]:
    for name in SCHEMAS:
        for table in dict.fromkeys(table for table, _ in columns_of(name)):
            if table not in ("waiting", "waiting_keys", "standing", "intents", "keys", "aliases", "metrics", "names"):
                gone: Callable[[Path, Path], object] = lambda run, _, n=name, t=table: altered(  # type: ignore[misc]  # noqa: E731
                    run, n, f"DELETE FROM {t}"
                )
                yield Case(f"rows {table} gone", gone, harmless=table == "content")  # it is computed where it is needed
    for key in ("seed", "nonce", "seed_origin", "tree_key", "plan_digest", "rounds_done"):
        sql = f"DELETE FROM server WHERE key = '{key}'"
        yield Case(f"rows server without {key}", lambda run, _, sql=sql: altered(run, "server.db", sql))  # type: ignore[misc]
    for key in ("pseudonym_key", "tainted"):
        sql = f"DELETE FROM record WHERE key = '{key}'"
        yield Case(f"rows record without {key}", lambda run, _, sql=sql: altered(run, "record.db", sql))  # type: ignore[misc]
    values = {
        "server": ("seed", "nonce", "seed_origin", "tree_key", "plan_digest", "rounds_done"),
        "record": ("pseudonym_key", "tainted", "policy", "receipt_key"),
    }
    for table, keys in values.items():
        for key in keys:
            for what, value in WRONG.items():
                if (key, what) not in {("policy", "text"), ("receipt_key", "text")}:
                    sql = f"INSERT OR REPLACE INTO {table} VALUES ('{key}', ?1)"
                    make = partial(_altered_with, f"{table}.db", sql, value)
                    yield Case(f"value {table} {key} {what}", make)


def _strange_rows() -> Iterator[Case]:
    yield Case("rows a billion rounds", _a_billion_rounds, harmless=True, long=True)
    yield Case("rows a billion rounds after a crash", partial(_a_billion_rounds, seal=False), harmless=True, long=True)
    strange = {
        "sample of no client": (BOOK, "INSERT INTO samples VALUES (99, 1, zeroblob(16))"),
        "client without samples": (BOOK, f"INSERT INTO clients VALUES (99, {', '.join(['zeroblob(32)'] * 3)})"),
        "id spelled otherwise": (USES, "UPDATE first_uses SET sample = CAST(sample AS TEXT)"),
        "number of another book": (BOOK, f"UPDATE part SET number = {ANOTHER}"),
        "client of another book": (BOOK, *_strangers("3")),
        "many clients of another book": (BOOK, *_strangers(f"n.n FROM ({MANY}) AS n")),
        "another content": (BOOK, f"UPDATE samples SET content = zeroblob(16) WHERE sample IN ({ANY_SAMPLE})"),
        "another seed": (BOOK, "UPDATE clients SET seed = zeroblob(32)"),
        "another tree": (SERVER, "UPDATE server SET value = zeroblob(32) WHERE key = 'tree_key'"),
        "use of no client": (USES, "INSERT INTO first_uses VALUES (99, 1, 1)"),
        "use of no sample": (USES, f"INSERT INTO first_uses VALUES ({READ}, 'none', 1)"),
        "witness of no client": (USES, "INSERT INTO witnesses VALUES (99, 1, zeroblob(40))"),
        "witness of no round": (USES, f"INSERT INTO witnesses VALUES ({READ}, 4000, zeroblob(40))"),
        "use that is not text": (USES, f"UPDATE first_uses SET sample = {NOT_TEXT} WHERE sample IN ({ANY_USE})"),
        "another first step": (USES, "UPDATE first_uses SET step = 1 WHERE step = 2"),
        "an id of no kind in the roster": ("server.db", client_becomes(3, "x'ffffffffffffffffffffffffffffffff'")),
        "policy of no kind": ("record.db", "INSERT OR REPLACE INTO record VALUES ('policy', 'never 1')"),
        "policy without end": ("record.db", "INSERT OR REPLACE INTO record VALUES ('policy', 'batch 1e400')"),
        "deadline of no day": ("record.db", "UPDATE requests SET deadline = '2026-02-31T00:00:00.000+00:00'"),
        "received in no zone": ("record.db", "UPDATE requests SET received = '2026-02-03T00:00:00.000'"),
        "purged while its batch is at work": (
            RECORD,
            f"UPDATE requests SET state = 'purged', batch_id = ({ANY_BATCH})",
            f"INSERT INTO intents SELECT ({ANY_BATCH}), 'removed', key, x'00' FROM standing LIMIT 1",
            "DELETE FROM waiting",
        ),
        "a round too many": ("server.db", "INSERT INTO rounds SELECT 4000, model FROM rounds WHERE round = 0"),
        "rounds beyond the plan": ("server.db", "UPDATE server SET value = 1000000000 WHERE key = 'rounds_done'"),
        "no initial model": ("server.db", "DELETE FROM rounds WHERE round = 0"),
        "a model by path": ("server.db", f"UPDATE rounds SET model = '{'../' * 21}x'"),
    }
    for what, (name, *sql) in strange.items():
        yield Case(f"rows {what}", lambda run, _, name=name, sql=sql: altered(run, name, *sql))  # type: ignore[misc]
    stale = {
        "root of another book": (BOOK, "UPDATE part SET root = zeroblob(32)"),
        "root of another client": (BOOK, "UPDATE clients SET root = zeroblob(32)"),
        "content under an old root": (BOOK, f"DELETE FROM samples WHERE sample IN ({ANY_SAMPLE})"),
        "digest of other notes": (USES, "UPDATE content SET digest = zeroblob(32)"),
        "notes under an old digest": (USES, "DELETE FROM first_uses WHERE step = 2"),
    }
    for what, (name, change) in stale.items():
        make = lambda run, _, name=name, change=change: altered(run, name, change, hashes=False)  # noqa: E731
        yield Case(f"rows {what}", make)
    yield Case("seals another root", lambda run, _: change_seal(run, BOOK, root=bytes(32)))
    yield Case("seals no root", lambda run, _: change_seal(run, BOOK, root=None), harmless=True)
    yield Case("seals another digest", lambda run, _: change_seal(run, RECORD, digest="0" * 64))
    yield Case("seals of a file less", lambda run, _: Seals(run).set({RECORD: Seals(run).all()[RECORD]}))
    for what, text in TEXTS.items():
        yield Case(f"json seals {what}", lambda run, _, text=text: _seal_into(run / SEALS, text.encode()))  # type: ignore[misc]


ANY_BATCH = "SELECT batch_id FROM batches LIMIT 1"
NOT_TEXT = "CAST(x'ff' AS TEXT)"
ANY_SAMPLE, ANY_USE = "SELECT sample FROM samples LIMIT 1", "SELECT sample FROM first_uses LIMIT 1"
MANY = "WITH RECURSIVE n(n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM n LIMIT 400) SELECT n FROM n"


def _strangers(clients: str) -> tuple[str, str]:
    """Clients that the labels of most do not lead to this book."""
    client, _, source = clients.partition(" ")
    return (
        f"INSERT INTO clients SELECT {client}, zeroblob(32), zeroblob(32), zeroblob(32) {source}",
        f"INSERT INTO samples SELECT {client}, 1, zeroblob(16) {source}",
    )


def _altered_with(name: str, sql: str, value: Any, run: Path, _: Path) -> None:
    with contextlib.suppress(sqlite3.IntegrityError):
        altered(run, name, sql, values=(value,))


def replan(run: Path, change: Callable[[str], str], *, seal: bool = True) -> None:
    """Another plan, and the server says that it is the one."""
    text = change((run / "plan.toml").read_text()).encode()
    (run / "plan.toml").write_bytes(text)
    told = hashlib.blake2b(text, digest_size=32).hexdigest()
    altered(run, "server.db", f"UPDATE server SET value = '{told}' WHERE key = 'plan_digest'", seal=seal)


def _a_billion_rounds(run: Path, _: Path, *, seal: bool = True) -> None:
    altered(
        run, "server.db", "UPDATE server SET value = 1000000000 WHERE key = 'rounds_done'",
        "DELETE FROM rounds WHERE round NOT IN (0, 5)", "UPDATE rounds SET round = 1000000000 WHERE round = 5",
    )  # fmt: skip
    longer: Callable[[str], str] = lambda text: re.sub(  # noqa: E731
        r"keep = .*", 'keep = "ends"', re.sub(r"rounds = \d+", "rounds = 2000000000", text)
    )
    replan(run, longer, seal=seal)


# ------------------------------------------------------------------------------------------------------ JSON and TOML

TEXTS: dict[str, str] = {
    "deep list": "[" * DEEP + "]" * DEEP,
    "deep object": '{"a":' * DEEP + "1" + "}" * DEEP,
    "deep in a field": '{"request": ' + "[" * DEEP + "]" * DEEP + "}",
    "list": "[1, 2]",
    "number": "7",
    "long number": '{"goal": ' + "9" * 5000 + "}",
    "text": '"x"',
    "nothing": "",
    "null": "null",
    "half": '{"request": ',
    "wide": '{"a": [' + "[]," * 2**21 + "1]}",
    "odd members": '{"request": {}, "requests": 3, "ids": null, "basis": [], "received": 5, "joining": 1, "reseed": 2}',
    "half a character": '{"request": "\\ud800", "received": "\\ud800"}',
}


def _json() -> Iterator[Case]:
    places = {
        "event": ("record.db", "UPDATE events SET body = ?1 WHERE kind = 'accepted'", False),
        "first event": ("record.db", "UPDATE events SET body = ?1 WHERE sequence = 1", False),
        "key": ("record.db", "UPDATE keys SET requests = ?1", False),
        "work": ("server.db", "INSERT OR REPLACE INTO server VALUES ('work', ?1)", True),
    }
    for place, (name, sql, crashed) in places.items():
        for what, text in TEXTS.items():
            make = partial(_altered_with, name, sql, text)
            yield Case(f"json {place} {what}", make, crashed, harmless=place in ("key", "work"))
    for what, text in TEXTS.items():
        yield Case(f"json inbox {what}", partial(_hand_in, text))
        yield Case(f"json intent {what}", partial(_encrypted_intent, text), crashed=True)
        yield Case(f"json waiting {what}", partial(_encrypted_target, text), harmless=True)
    for field, value in (
        ("requests", [[True, 1]]), ("requests", [[-1]]), ("requests", []), ("ids", ["x" * 99]), ("ids", []),
        ("ids", ["../../x"]), ("basis", "other"), ("received", "yesterday"), ("deadline", None),
        ("deadline", "9" * 5000),
        ("key", 3), ("received", "2026-01-01"), ("deadline", "2026-02-31T00:00:00.000+00:00"),
        ("deadline", "0001-01-01T00:00:00.000+23:59"), ("received", "9999-12-31T23:59:59.999-23:59"),
    ):  # fmt: skip
        yield Case(f"json inbox {field} {str(value)[:30]}", partial(_hand_in_with, field, value))
    for kind in (MODEL, STATE, LEAVES):  # only ``receipt`` needs the last two
        make = partial(_encrypted_digest, kind)
        yield Case(f"json standing {kind} not text", make, harmless=kind != MODEL)
    yield Case("json inbox not text", lambda run, _: _seal_into(_of(run, "inbox/*"), b"\xff\xfe{}"))


def _encrypted_intent(text: str, run: Path, _: Path) -> None:
    """The attacker has the keys."""
    with contextlib.closing(sqlite3.connect(f"{(run / RECORD).as_uri()}?mode=ro", uri=True)) as connection:
        batch, key = connection.execute("SELECT batch_id, key FROM intents").fetchone()
    body = KeyFile(run / KEYS).encrypt(key, text.encode(), batch)
    altered(run, RECORD, "UPDATE intents SET body = ?1", values=(body,), seal=False)


def _encrypted_target(text: str, run: Path, _: Path) -> None:
    number, key = _asked(run / RECORD, "SELECT number FROM waiting"), _asked(run / RECORD, "SELECT key FROM waiting")
    body = KeyFile(run / KEYS).encrypt(key, text.encode(), waiting(number))
    altered(run, RECORD, "UPDATE waiting SET body = ?1", values=(body,))


def _encrypted_digest(kind: str, run: Path, _: Path) -> None:
    """What stands is not the text of a digest."""
    about, key = (
        _asked(run / RECORD, f"SELECT {column} FROM standing WHERE kind = '{kind}'") for column in ("about", "key")
    )
    body = KeyFile(run / KEYS).encrypt(key, b"\xff" * 9, f"{kind} {about}")
    altered(run, RECORD, f"UPDATE standing SET body = ?1 WHERE kind = '{kind}'", values=(body,))


def _seal_into(path: Path, data: bytes) -> None:
    path.write_bytes(hashlib.blake2b(data, digest_size=32).hexdigest().encode() + b"\n" + data)


def _hand_in(text: str, run: Path, _: Path) -> None:
    _seal_into(_of(run, "inbox/*"), text.encode())


def _hand_in_with(field: str, value: Any, run: Path, _: Path) -> None:
    path = _of(run, "inbox/*")
    told = json.loads(path.read_bytes().partition(b"\n")[2])
    _seal_into(path, json.dumps({**told, field: value}).encode())


def _toml() -> Iterator[Case]:
    def swap(pattern: str, new: str) -> Callable[[str], str]:
        return lambda text: re.sub(pattern, lambda _: new, text, count=1)

    def add(line: str) -> Callable[[str], str]:
        return lambda text: text.replace("[model]\n", f"[model]\n{line}\n", 1)

    changes = {
        "deep lists": add("x = " + "[" * DEEP + "]" * DEEP),
        "deep tables": add("x = " + "{a = " * 50_000 + "1" + "}" * 50_000),
        "dotted": add("x" + ".x" * 100_000 + " = 1"),
        "long number": add("x = " + "9" * 5000),
        "long text": add('x = "' + "y" * 2**21 + '"'),
        "list": add("x = [1]"),
        "date": add("x = 2026-01-01"),
        "no format": swap(r"format = 3", ""),
        "format 2": swap(r"format = 3", "format = 2"),
        "format 4": swap(r"format = 3", "format = 4"),
        "format text": swap(r"format = 3", 'format = "3"'),
        "format list": swap(r"format = 3", "format = []"),
        "format inf": swap(r"format = 3", "format = inf"),
        "plan list": swap(r"\[plan\]", "[[plan]]"),
        "model number": swap(r"\[model\]", "model = 3\n[other]"),
        "commitment list": swap(r'server = "', 'server = ["'),
        "commitment number": swap(r'server = ".*"', "server = 7"),
        "K text": swap(r"clients_per_round = \d+", 'clients_per_round = "2"'),
        "K inf": swap(r"clients_per_round = \d+", "clients_per_round = inf"),
        "K large": swap(r"clients_per_round = \d+", f"clients_per_round = {10**6}"),
        "E large": swap(r"local_steps = \d+", f"local_steps = {10**6}"),
        "K giant": swap(r"clients_per_round = \d+", f"clients_per_round = {10**30}"),
        "E zero": swap(r"local_steps = \d+", "local_steps = 0"),
        "keep list": swap(r"keep = .*", "keep = []"),
        "keep giant": swap(r"keep = .*", f"keep = {10**25}"),
        "lr text": swap(r"lr = .*", 'lr = "x"'),
        "lr nan": swap(r"lr = .*", "lr = nan"),
        "lr list": swap(r"lr = .*", "lr = [0.1]"),
        "another optimiser": swap(r'name = "average"', 'name = "other"'),
        "NUL": lambda text: text + "\0",
        "not text": lambda text: text + "\udcff",
        "hidden giant": swap(r"hidden = \d+", f"hidden = {2**40}"),
        "hidden text": swap(r"hidden = \d+", 'hidden = "x"'),
        "hidden negative": swap(r"hidden = \d+", "hidden = -4"),
        "unknown model": swap(r'name = "mlp"', 'name = "../x"'),
        "unknown data": swap(r'name = "digits"', 'name = "../x"'),
    }
    harmless = {"unknown model", "unknown data", "hidden giant", "hidden text", "hidden negative", "dotted",
                "keep giant", "another optimiser", "lr nan", "long number", "long text", "lr text",
                "lr list"}  # fmt: skip
    for what, change in changes.items():
        long = what.endswith("large")  # as much work as the run says that it is
        yield Case(f"toml {what}", partial(_replanned, change), harmless=long or what in harmless, long=long)
        if what.startswith(("deep", "K", "E", "hidden")):
            hostile = partial(_replanned, change)
            yield Case(f"toml {what} after a crash", hostile, crashed=True, harmless=True, long=long)


def _replanned(change: Callable[[str], str], run: Path, _: Path) -> None:
    text = change((run / "plan.toml").read_text()).encode("utf-8", "surrogateescape")
    (run / "plan.toml").write_bytes(text)
    told = hashlib.blake2b(text, digest_size=32).hexdigest()
    altered(run, "server.db", f"UPDATE server SET value = '{told}' WHERE key = 'plan_digest'")


# ------------------------------------------------------------------------------------------------------------- models


def _models() -> Iterator[Case]:
    def tensor(dtype: str = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
        return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}

    headers: dict[str, Any] = {
        "unknown type": tensor("F7"),
        "BF16": tensor("BF16", (2, 4)),
        "type list": tensor(["F32"]),  # type: ignore[arg-type]
        "giant shape": tensor(shape=(2**62, 4)),
        "giant and sparse": tensor(shape=(GIANT // 4,), offsets=(0, GIANT)),
        "zero and giant": tensor(shape=(0, 2**62), offsets=(0, 0)),
        "negative shape": tensor(shape=(-2, -2)),
        "shape text": tensor(shape="22"),
        "shape number": tensor(shape=4),
        "shape of fractions": tensor(shape=(2.0, 2.0)),
        "many dimensions": tensor(shape=[1] * 100 + [4]),
        "offsets reversed": tensor(offsets=(16, 0)),
        "offsets beyond": tensor(offsets=(16, 32)),
        "offsets negative": tensor(offsets=(-16, 0)),
        "offsets missing": {"w": {"dtype": "F32", "shape": [2, 2]}},
        "offsets three": tensor(offsets=(0, 8, 16)),
        "overlap": {**tensor(), "v": tensor()["w"]},
        "gap": {**tensor(shape=(1,), offsets=(0, 4)), "v": tensor(shape=(2,), offsets=(8, 16))["w"]},
        "too short": tensor(shape=(1,), offsets=(0, 4)),
        "metadata": {"__metadata__": {"a": "b"}, **tensor()},
        "foreign": tensor(),
        "list": [1],
        "nothing": {},
        "tensor null": {"w": None},
    }
    for what, header in headers.items():
        size = GIANT if what == "giant and sparse" else 16
        yield Case(f"model {what}", partial(_replace_model, json.dumps(header).encode(), size))
    raw = {
        "deep header": b"[" * DEEP,
        "deep objects": b'{"a":' * DEEP,
        "not text": b"\xff" * 20,
        "empty header": b"",
    }
    for what, text in raw.items():
        yield Case(f"model {what}", partial(_replace_model, text, 16))
    for what, length in (("header of 2^63", 2**63), ("header of 2^40", 2**40), ("header beyond", 1000)):
        yield Case(f"model {what}", partial(_replace_model, b"{}", 16, length=length))


def _replace_model(header: bytes, size: int, run: Path, _: Path, *, length: int | None = None) -> None:
    """The model of the last round, under its own digest unless it is too large for one."""
    data = struct.pack("<Q", len(header) if length is None else length) + header + bytes(min(size, 16))
    name = hashlib.blake2b(data, digest_size=32).hexdigest()
    path = run / "models" / f"{name}.safetensors"
    path.write_bytes(data)
    if size > 16:
        os.truncate(path, 8 + len(header) + size)
    altered(run, "server.db", f"UPDATE rounds SET model = '{name}' WHERE round = (SELECT max(round) FROM rounds)")


# ---------------------------------------------------------------------------------------------------- write-ahead logs


def checksum(data: bytes, before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Word by word, as SQLite's documentation has it."""
    first, second = before
    words = struct.unpack(f"<{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def log_of(frames: list[tuple[int, int, bytes]], *, version: int = 3007000, page_size: int = PAGE) -> bytes:
    """A log with these frames (page, pages after the commit, content), its checksums right."""
    head = struct.pack(">IIIIII", 0x377F0682, version, page_size, 0, 1, 2)
    sums = checksum(head)
    made = head + struct.pack(">II", *sums)
    for page, pages, content in frames:
        begin = struct.pack(">II", page, pages)
        sums = checksum(begin + content, sums)
        made += begin + struct.pack(">II", 1, 2) + struct.pack(">II", *sums) + content
    return made


def _logs() -> Iterator[Case]:
    def write(name: str, make: Callable[[bytes], bytes], run: Path, _: Path) -> None:
        (run / f"{name}-wal").write_bytes(make((run / name).read_bytes()))

    zeros = bytes(PAGE)
    logs: dict[str, Callable[[bytes], bytes]] = {
        **{f"page size {size}": partial(lambda s, _: log_of([], page_size=s) + zeros, size)
           for size in (0, 1, 3, 512, 1024, 65536, 2**31)},
        "version": lambda _: log_of([], version=1) + zeros,
        "magic": lambda _: b"\0" * 32 + zeros,
        "header only": lambda _: log_of([]),
        "a page of zeros": lambda data: log_of([(1, len(data) // PAGE, zeros)]),
        "page 0": lambda data: log_of([(0, len(data) // PAGE, zeros), (1, len(data) // PAGE, data[:PAGE])] * 2),
        "giant": lambda data: log_of([(1, 2**31, data[:PAGE])]),
        "large": lambda data: log_of([(1, 2**18, data[:PAGE])]),
        "page beyond": lambda data: log_of([(2**30, len(data) // PAGE, data[:PAGE])]),
        "one page left": lambda data: log_of([(1, 1, data[:PAGE])]),
        "sparse": lambda data: log_of([(1, len(data) // PAGE, data[:PAGE])]) + bytes(2**23),
    }  # fmt: skip
    harmless = {"header only", "page beyond", "sparse", "page size 2147483648"}
    for name in SCHEMAS:
        for what, make in logs.items():
            crashed = Case(f"log {name} {what}", partial(write, name, make), True, harmless=what in harmless)
            yield crashed


# ----------------------------------------------------------------------------------- files of holes, and strange names


def grown(path: Path, size: int) -> None:
    """A database that is sparse and whose header agrees with its size."""
    os.truncate(path, size)
    with path.open("r+b") as file:
        file.seek(28)
        file.write(struct.pack(">I", size // PAGE))


def _holes() -> Iterator[Case]:
    def database(name: str, run: Path, _: Path) -> None:
        grown(run / name, 4 * GIANT)

    def with_log(name: str, run: Path, _: Path) -> None:
        """The size that a log may have follows from the size of its database."""
        grown(run / name, 2**38)
        (run / f"{name}-wal").write_bytes(log_of([]))
        os.truncate(run / f"{name}-wal", 2**37)

    for name in SCHEMAS:
        yield Case(f"holes {name}", partial(database, name))
        yield Case(f"holes {name} and its log", partial(with_log, name), crashed=True)
    yield Case(f"holes {BOOK}", _book_of_holes)
    yield Case("holes model of the plan", _model_of_holes)


def _book_of_holes(run: Path, _: Path) -> None:
    """A book of zeros that takes no space, whose header agrees with its size."""
    samples = GIANT // 32
    patched(run, BOOK, (24, struct.pack(">QQQ", 0, samples, 0)))
    os.truncate(run / BOOK, 80 + 32 * samples)


def _model_of_holes(run: Path, _: Path) -> None:
    """A model of zeros that takes no space, as the plan says that it is."""
    size = 960 * 2**20
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    head, hasher, zeros = struct.pack("<Q", len(header)) + header, hashlib.blake2b(digest_size=32), bytes(2**20)
    hasher.update(head)
    for _megabyte in range(size // len(zeros)):
        hasher.update(zeros)
    path = run / "models" / f"{hasher.hexdigest()}.safetensors"
    path.write_bytes(head)
    os.truncate(path, len(head) + size)
    altered(run, "server.db", f"UPDATE rounds SET model = '{hasher.hexdigest()}'")
    tensors = f'[tensors]\nw = "parameter float32 {size // 4}"\n'
    replan(run, lambda text: re.sub(r"\[tensors\].*", tensors, text, flags=re.DOTALL))


CONTROL = "\x1b]0;pwn\x07\nok \u202e"  # a title for the terminal, a bell, a line of its own, and a turn of the writing


def _books() -> Iterator[Case]:
    """A book whose bytes are wrong; its seals and the size in its header fit them."""
    most = (0, 1, 2**31, 2**32, 2**61, 2**63 - 1, 2**64 - 1)
    for field, at in (("number", 16), ("clients", 24), ("samples", 32), ("names", 40)):
        for value in most:
            change = (at, struct.pack(">Q", value))
            harmless = field == "number" and value == BOOKS.index(BOOK)
            harmless |= (field, value) in {("clients", 1), ("names", 0)}
            make = lambda run, _, change=change: patched(run, BOOK, change)  # noqa: E731
            yield Case(f"book {BOOK} {field} {value}", make, harmless=harmless)
    changes: dict[str, Callable[[Book], object]] = {
        "end of 0": lambda book: _set(book.ends, 0, 0),
        "end beyond": lambda book: _set(book.ends, 0, 2**40),
        "negative end": lambda book: _set(book.ends, 0, -1),
        "no order": lambda book: _set(book, "samples", book.samples[::-1]),
        "an id twice": lambda book: _set(book.samples, 1, book.samples[0]),
        "an id of no kind": lambda book: _set(book.samples, -1, np.frombuffer(b"\x02" + bytes(15), np.uint8)),
        "too large a number": lambda book: _set(book.samples, -1, np.frombuffer(bytes(8) + b"\xff" * 8, np.uint8)),
        "a string without a name": lambda book: _set(book.samples, -1, np.frombuffer(b"\x01" + bytes(15), np.uint8)),
    }
    for what, change_book in changes.items():
        yield Case(f"book {BOOK} {what}", partial(_changed_book, change_book))
    names = {"another name": b"b", "not text": b"\xff", "no name": b"", "number as a name": b"7"}
    for what, name in names.items():
        yield Case(f"book {BOOK} {what}", partial(_named_book, name))
    yield Case(f"book {BOOK} longer", lambda run, _: _longer(BOOK, run, _))


def _set(of: Any, place: Any, value: Any) -> None:
    if isinstance(place, str):
        setattr(of, place, value)
    else:
        of[place] = value


def _changed_book(change: Callable[[Book], object], run: Path, _: Path) -> None:
    book = Book.read(run / BOOK, BOOKS.index(BOOK))
    book.samples = book.samples.copy()
    change(book)
    for block in book.samples[book.samples[:, 0] == 1]:
        book.names[bytes(block)] = "x"
    (run / BOOK).write_bytes(book.encoded())
    reseal(run)


def _named_book(name: bytes, run: Path, _: Path) -> None:
    """A sample has the block of the string "a", and another name stands at its place."""
    edit_book(run / BOOK, f"UPDATE samples SET sample = 'a' WHERE sample IN ({ANY_SAMPLE})")
    data = (run / BOOK).read_bytes()
    rows = sum(struct.unpack_from(">QQ", data, 24))
    ends = np.frombuffer(data[-8 * rows - 1 : -1], ">u8")
    ends = np.where(ends > 0, len(name), 0).astype(">u8")
    made = data[: -8 * rows - 1] + ends.tobytes() + name
    (run / BOOK).write_bytes(made[:40] + struct.pack(">Q", 8 * rows + len(name)) + made[48:])
    rehash(run, BOOK)
    reseal(run, BOOK)


def _names() -> Iterator[Case]:
    def named(name: str, run: Path, _: Path) -> None:
        path = run / name
        path.write_bytes(b"not of this run")

    yield Case("name in the inbox", partial(named, f"inbox/000000000001-{CONTROL}.json"))
    yield Case("name of a model", partial(named, f"models/{CONTROL}.safetensors"), harmless=True)
    yield Case("name of a leftover", partial(named, f"{CONTROL}.tmp"), harmless=True)
    yield Case("number in the inbox", partial(named, f"inbox/{'9' * 18}-x.json"))


# ------------------------------------------------------------------------------------------------------------- fuzzing


def mutated(run: Path, number: int) -> str:
    """A few bytes of one file changed, cut, doubled or swapped; which, is up to the number."""
    chance = hashlib.shake_256(f"mutation {number}".encode()).digest(64)
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != "lock" and path.stat().st_size)
    path = files[chance[0] % len(files)]
    data = bytearray(path.read_bytes())
    how = ("flip", "flip", "zero", "cut", "double", "ones")[chance[1] % 6]
    at = int.from_bytes(chance[2:6]) % len(data)
    if chance[6] % 2:
        at %= 200  # headers
    length = 1 + chance[7] % 8
    if how == "flip":
        data[at] ^= 1 << chance[8] % 8
    elif how == "cut":
        del data[at : at + length]
    elif how == "double":
        data[at:at] = data[at : at + length]
    else:
        data[at : at + length] = (b"\0" if how == "zero" else b"\xff") * length
    path.write_bytes(bytes(data))
    if chance[9] % 2 and not list(run.glob("*-wal")):
        with contextlib.suppress(sqlite3.Error, UnicodeError, OverflowError, MemoryError):
            reseal(run)
    return f"{how} {path.relative_to(run)} at {at}"
