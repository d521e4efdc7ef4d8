"""The files of a run directory, compared with their seals before anything reads them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from fedforget.disk.database import Database
from fedforget.disk.door import Door, chunks
from fedforget.disk.files import new_hasher
from fedforget.disk.page_sum import page_sum
from fedforget.disk.pages import PAGE, header_problem
from fedforget.disk.read_only import require
from fedforget.disk.seen import Signature, signature
from fedforget.errors import RunDamaged, RunTooNew, RunTooOld
from fedforget.store.books.layout import header_of
from fedforget.store.names import BOOKS, RECORD
from fedforget.store.seals import Seal, Seals


@dataclass(slots=True)
class SealedFiles:
    """The files of a run with their seals. ``opened`` closes what is opened here.

    ``trusting``: a file whose signature is that of its seal is not read as a whole. ``aside``: seals that a process at
    work moved aside, where nothing relies on what is read.
    """

    path: Path
    opened: contextlib.ExitStack
    trusting: bool = True
    seals: dict[str, Seal] = field(default_factory=dict)  # of a run that was closed properly
    aside: dict[str, Seal] = field(default_factory=dict)
    read_whole: dict[str, Signature | None] = field(default_factory=dict)  # files that were compared with their seals
    _trusted: dict[str, bool] = field(default_factory=dict)  # what was found out since the run was opened

    @property
    def door(self) -> Door:
        return Door(self.path)

    def database(self, name: str, schema: str) -> Database:
        """Open a database that matches its seal; SQLite never opens another one."""
        self.require_as_sealed(name)
        database = Database(self.path / name, schema, trusted=self.trusts(name))
        self.opened.callback(database.close)
        return database

    def trusts(self, name: str) -> bool:
        """Return whether a file is unchanged since FedForget wrote it, or read it as a whole."""
        if name not in self._trusted:
            seal = self.seals.get(name) or self.aside.get(name)
            self._trusted[name] = self.trusting and Seals(self.path).trusts(name, seal)
        return self._trusted[name]

    def require_as_sealed(self, name: str) -> None:
        seal = self.seals.get(name)
        if seal is None or self.trusts(name) or self.door.status(name) is None:
            return
        before = signature(self.door, name)
        if sealed_digest(self.path, name) != seal.digest:
            raise RunDamaged(f"{self.path / name} is damaged: it is not what it was when the run was last closed")
        self.read_whole[name] = before

    def size(self, name: str) -> str:
        """Return the size of a file as text; raise RunDamaged if it is missing."""
        found = self.door.size(name)
        if found is None:
            raise RunDamaged(f"{self.path / name} is missing")
        return f"{found} bytes"


def sealed_digest(path: Path, name: str) -> str:
    """Return the digest of a database as its seal has it: of the record the sum of its pages, which can be updated."""
    return sum_text(page_sum(path, name)) if name == RECORD else digest_of(path, name)


def sum_text(total: int) -> str:
    return f"{total:064x}"


def digest_of(path: Path, name: str) -> str:
    """Return the digest of a database or a book of a run; raise RunDamaged if its size contradicts its header."""
    hasher = new_hasher()
    with Door(path).opened(name) as file:
        size = os.fstat(file).st_size
        if name in BOOKS:
            with contextlib.suppress(RunTooNew, RunTooOld):  # said when it is opened, if it is as it was sealed
                header_of(path / name, file, BOOKS.index(name))
        else:
            require(path / name, header_problem(os.pread(file, PAGE, 0), size))
        for chunk in chunks(file):
            hasher.update(chunk)
    return hasher.hexdigest()
