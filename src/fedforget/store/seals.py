"""Seals: digests of a run's files at its last closing. Absent while a process writes the run, and after a crash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fedforget.disk.column_checks import check, is_blob, is_name
from fedforget.disk.database import Database

SCHEMA = f"""
CREATE TABLE seals (
    file TEXT PRIMARY KEY {check(is_name("file"))},
    digest TEXT NOT NULL {check(is_name("digest"))},
    root BLOB {check(is_blob("root", 32), optional="root")}
) WITHOUT ROWID;
"""
OWN_SEAL = "record"


class Seals:
    """The table ``seals``: digests of the other databases and of the record itself."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[str, str]:
        return dict(self._database.rows("SELECT file, digest FROM seals"))

    def roots(self) -> dict[str, bytes]:
        """Return the roots of the clients' books, as they were at the last closing."""
        return dict(self._database.rows("SELECT file, root FROM seals WHERE root IS NOT NULL"))

    def set(self, digests: Mapping[str, str], roots: Mapping[str, bytes]) -> None:
        with self._database.transaction():
            rows = ((file, found, roots.get(file)) for file, found in digests.items())
            self._database.run_many("INSERT INTO seals VALUES (?, ?, ?)", rows)
            self._database.run("INSERT INTO seals VALUES (?, ?, NULL)", (OWN_SEAL, self.content_digest()))

    def break_all(self) -> None:
        with self._database.transaction():
            self._database.run("DELETE FROM seals")

    def content_digest(self) -> str:
        """Return the digest of every row of the database except its own seal."""
        hasher = hashlib.blake2b(digest_size=32, person=b"fedforget/record")
        for (table,) in self._database.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"):
            for row in self._database.rows(f"SELECT * FROM {table}"):  # noqa: S608 (our own table names)
                if not (table == "seals" and row[0] == OWN_SEAL):
                    hasher.update(repr((table, row)).encode())
        return hasher.hexdigest()
