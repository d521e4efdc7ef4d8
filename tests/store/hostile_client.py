"""State directories of a client as an attacker makes them: wrong things as in ``hostile``, in a client's files."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fedforget.client_side import own_record
from fedforget.disk.key_file import KeyFile
from fedforget.store import uses
from fedforget.store.names import KEYS, RECORD, USES
from tests.store.hostile import (
    CONTROL,
    GIANT,
    KINDS,
    NOT_A_FILE,
    PAGE,
    TEXTS,
    WRONG,
    Case,
    _altered_rows,
    _change_file,
    _fifo,
    _hand_in,
    _is_huge,
    log_of,
    rehash,
)

CLIENT, BOOK = "client.toml", "client.book"
SCHEMAS = {RECORD: own_record.SCHEMA, USES: uses.SCHEMA}
FILES = (CLIENT, BOOK, *SCHEMAS, KEYS, "plan.toml", "receipt-key.pem", "receipt-key.pub.pem")
UNREAD = ("plan.toml", "receipt-key.pem", "receipt-key.pub.pem", "inbox/*", KEYS)  # not read by every command


def client_cases() -> list[Case]:
    found = [*_files(), *_headers(), *_logs(), *_schemas(), *_columns(), *_toml(), *_json(), *_names()]
    assert len({case.name for case in found}) == len(found)
    return found


def _files() -> Iterator[Case]:
    for name in (*FILES, "inbox/*"):
        for kind, change in KINDS.items():
            yield Case(f"file {name} {kind}", partial(_change_file, name, change), harmless=name in UNREAD)
    for kind in NOT_A_FILE:
        yield Case(f"file lock {kind}", partial(_change_file, "lock", KINDS[kind]), harmless=True)

    def inbox(kind: str, state: Path, outside: Path) -> None:
        (state / "inbox").rename(outside / "inbox")
        if kind == "link":
            (state / "inbox").symlink_to(outside / "inbox")
        elif kind == "pipe":
            _fifo(state / "inbox", outside)
        else:
            (state / "inbox").write_bytes(b"text")

    for kind in ("link", "pipe", "file"):
        yield Case(f"directory inbox {kind}", partial(inbox, kind), harmless=True)


def _patched(name: str, at: int, new: bytes, state: Path, _: Path) -> None:
    data = bytearray((state / name).read_bytes())
    data[at : at + len(new)] = new
    (state / name).write_bytes(bytes(data))


def _headers() -> Iterator[Case]:
    changes = {
        "page size": (16, b"\x02\x00"), "future": (18, b"\3\3"), "more pages": (28, b"\x80\0\0\0"),
        "no tree": (100, b"\0"),
        "free list": (32, b"\0\0\0\2\x80\0\0\0"), "UTF-16": (56, b"\0\0\0\2"), "cells": (103, b"\x13\x88"),
    }  # fmt: skip
    for name in SCHEMAS:
        for what, (at, new) in changes.items():
            yield Case(f"header {name} {what}", partial(_patched, name, at, new), harmless=True)
    for at in (0, 8, 16, 24, 32, 40):
        for value in (b"\0" * 8, b"\x7f" + b"\xff" * 7, b"\xff" * 8, b"\0\0\0\0\x80\0\0\0"):
            yield Case(f"book {at} {value.hex()}", partial(_patched, BOOK, at, value), harmless=True)


def _logs() -> Iterator[Case]:
    def planted(name: str, data: bytes, state: Path, outside: Path) -> None:
        (state / name).write_bytes(data.replace(b"VICTIM", str(outside / "victim").encode()))

    zeros = bytes(PAGE)
    logs = {
        "page size 1": log_of([], page_size=1) + zeros, "magic": b"\0" * 32 + zeros,
        "giant": log_of([(1, 2**31, zeros)]),
        "zeros": log_of([(1, 1, zeros)]), "page 0": log_of([(0, 1, zeros)]),
    }  # fmt: skip
    for name in SCHEMAS:
        for what, data in logs.items():
            yield Case(f"log {name} {what}", partial(planted, f"{name}-wal", data), harmless=True)
        yield Case(f"journal {name}", partial(planted, f"{name}-journal", b"\xd9\xd5\x05\xf9VICTIM"), harmless=True)


def _schemas() -> Iterator[Case]:
    def done(name: str, statement: str, state: Path, _: Path) -> None:
        with contextlib.closing(sqlite3.connect(state / name, isolation_level=None)) as connection:
            connection.execute(statement)

    for name, table in ((RECORD, "events"), (USES, "first_uses")):
        statements = {
            "another table": "CREATE TABLE other (x)", "a view": f"CREATE VIEW other AS SELECT * FROM {table}",
            "a trigger": f"CREATE TRIGGER other AFTER UPDATE ON {table} BEGIN DELETE FROM {table}; END",
            "a column": f"ALTER TABLE {table} ADD COLUMN other ANY", "no table": f"DROP TABLE {table}",
        }  # fmt: skip
        for what, statement in statements.items():
            yield Case(f"schema {name} {what}", partial(done, name, statement))


def _columns() -> Iterator[Case]:
    for name, schema in SCHEMAS.items():
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(schema)
            tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
            columns = [
                (table, row[1])
                for (table,) in tables
                for row in connection.execute(f"PRAGMA table_info({table})").fetchall()
            ]
        for table, column in columns:
            for what, value in WRONG.items():
                make = partial(_wrong_value, name, table, column, value)
                yield Case(f"column {table}.{column} {what}", make, harmless=True)


def _wrong_value(name: str, table: str, column: str, value: Any, state: Path, _: Path) -> None:
    if table in ("first_uses", "witnesses") and _is_huge(value):
        value = value[: 2**16]
    one = f"UPDATE {table} SET {column} = ?1 WHERE {column} = (SELECT {column} FROM {table} LIMIT 1)"
    with contextlib.suppress(sqlite3.IntegrityError):
        _altered_rows(state, name, (one,), (value,))
    rehash(state, name)


def _toml() -> Iterator[Case]:
    def written(change: Any, state: Path, _: Path) -> None:
        text = change((state / CLIENT).read_text())
        (state / CLIENT).write_bytes(text.encode("utf-8", "surrogateescape"))

    changes: dict[str, Any] = {
        "deep": lambda text: text + "x = " + "[" * 100_000 + "]" * 100_000 + "\n",
        "dotted": lambda text: text + "x" + ".x" * 100_000 + " = 1\n",
        "long number": lambda text: text + "x = " + "9" * 5000 + "\n",
        "giant": lambda text: text + 'x = "' + "y" * 2**25 + '"\n',
        "NUL": lambda text: text + "\0",
        "not text": lambda text: text + "\udcff",
        "nothing": lambda _: "",
        "numbers": lambda text: re.sub(r'= ".*"', "= 7", text),
        "lists": lambda text: re.sub(r'= ".*"', "= [7]", text),
        "texts": lambda text: re.sub(r"= [0-9]+", '= "x"', text),
        "another client": lambda text: re.sub(r"client = .*", 'client = "other"', text),
        "an odd client": lambda text: re.sub(r"client = .*", 'client = "\\\\u001b]0;pwn\\\\u0007"', text),
        "another function": lambda text: re.sub(r'own = ".*"', 'own = "os:abort"', text),
        "no function": lambda text: re.sub(r'own = ".*"', 'own = "../x:y"', text),
    }
    for what, change in changes.items():
        yield Case(f"toml {what}", partial(written, change), harmless=True)


def _json() -> Iterator[Case]:
    for what, text in TEXTS.items():
        yield Case(f"json inbox {what}", partial(_hand_in, text), harmless=True)
        yield Case(f"json event {what}", partial(_altered, "UPDATE events SET body = ?1", text), harmless=True)
        yield Case(f"json arriving {what}", partial(_encrypted, "arriving", "handle", text), harmless=True)


def _altered(sql: str, value: Any, state: Path, _: Path) -> None:
    _altered_rows(state, RECORD, (sql,), (value,))


def _encrypted(table: str, about: str, text: str, state: Path, _: Path) -> None:
    """The attacker has the keys."""
    with contextlib.closing(sqlite3.connect(state / RECORD)) as connection:
        place, key = connection.execute(f"SELECT {about}, key FROM {table}").fetchone()
    body = KeyFile(state / KEYS).encrypt(key, text.encode(), place)
    _altered_rows(state, RECORD, (f"UPDATE {table} SET body = ?1",), (body,))


def _names() -> Iterator[Case]:
    def named(name: str, state: Path, _: Path) -> None:
        (state / name).write_bytes(b"not of this client")

    yield Case("name in the inbox", partial(named, f"inbox/000000000001-{CONTROL}.json"), harmless=True)
    yield Case("name of a leftover", partial(named, f"{CONTROL}.tmp"), harmless=True)
    yield Case("holes record.db", lambda state, _: _grown(state / RECORD))
    yield Case("holes uses.db", lambda state, _: _grown(state / USES))


def _grown(path: Path) -> None:
    os.truncate(path, GIANT)
    with path.open("r+b") as file:
        file.seek(28)
        file.write(struct.pack(">I", GIANT // PAGE))
