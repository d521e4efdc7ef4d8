"""What must hold before a run is used, each fact checked in one place.

Opening a run raises the first fact that does not hold; ``fedforget doctor`` lists all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from fedforget.algorithm.ids import Id
from fedforget.disk import wal
from fedforget.disk.database import Database
from fedforget.disk.door import Door, chunks
from fedforget.disk.files import digest, new_hasher
from fedforget.disk.pages import PAGE, header_problem
from fedforget.disk.read_only import require
from fedforget.errors import CommitsLost, RunDamaged, RunTooNew, RunTooOld, shown
from fedforget.store import crash_check, plan_file, record, server_store, uses
from fedforget.store.book_content import Book
from fedforget.store.book_layout import header_of
from fedforget.store.books import Books
from fedforget.store.client_store import ClientStore
from fedforget.store.model_files import ModelFiles
from fedforget.store.names import BOOKS, MODELS, RECORD, SERVER, USES
from fedforget.store.plan_file import PlanFile
from fedforget.store.record import Record
from fedforget.store.row_checks import validate_record, validate_server
from fedforget.store.seals import OWN_SEAL
from fedforget.store.server_store import ServerStore
from fedforget.store.uses import Uses

SEEDS, AFTER_CRASH = "seeds", "what a crash left"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that must hold. ``check`` returns a detail for people, or raises."""

    name: str
    check: Callable[[], str]


class Parts:
    """The files of a run, opened one by one, so that damage to one does not hide damage to another.

    The caller holds ``lock.shared_lock``. A part is None until its file was found to be in order.
    """

    def __init__(self, path: Path, opened: contextlib.ExitStack) -> None:
        self.path = path
        self.file: PlanFile | None = None
        self.record: Record | None = None
        self.server: ServerStore | None = None
        self.clients: ClientStore | None = None
        self._plan_digest = ""
        self._record_is_whole = False
        self._seals: dict[str, str] = {}
        self._opened = opened
        self._digest_of = cache(partial(digest_of, path))

    @property
    def sealed(self) -> bool:
        """Whether the last writer closed the run properly, as far as an intact record says so."""
        return bool(self._seals)

    def facts(self, *, every_book: bool = False) -> Iterator[Fact]:
        """Check each fact before advancing: later facts depend on earlier results.

        ``every_book``: read the clients' books now and compare the seeds with their commitments, also where seals vouch
        for them. Otherwise a book is checked when it is first read.
        """
        yield Fact(plan_file.NAME, self._read_plan)
        yield Fact(MODELS, self._find_models)
        yield Fact(RECORD, self._open_record)
        yield Fact(SERVER, self._open_server)
        yield Fact(USES, partial(self._open_uses, every_book))
        for name in BOOKS:
            yield Fact(name, partial(self._find_book, name, opening=every_book))
        in_progress = self.record is not None and bool(self.record.batches.unfinished())  # new seeds may be half stored
        if self.server is not None and self.file is not None and not in_progress:
            yield Fact(plan_file.NAME, partial(self._compare_plan, self.server))
        if self.server is None or self.clients is None:
            return
        if (every_book or not self.sealed) and not in_progress:
            yield Fact(SEEDS, partial(self._compare_seeds, self.server, self.clients))
        if self.record is not None and self._record_is_whole and not self.sealed:
            yield Fact(AFTER_CRASH, partial(_consistent, self.server, self.clients, self.record))

    def _read_plan(self) -> str:
        data = plan_file.read_bytes(self.path)
        self.file = PlanFile.parsed(self.path, data)
        self._plan_digest = digest(data)
        return f"{self.file.plan.rounds} rounds"

    def _find_models(self) -> str:
        if not Door(self.path, MODELS).is_there():
            raise RunDamaged(f"{self.path / MODELS} is missing")
        return "present"

    def _open_record(self) -> str:
        trail = Record(self._database(RECORD, record.SCHEMA))
        validate_record(trail.database)
        self.record = trail
        seals = trail.seals.all()
        if seals:
            self._require_vouching(trail, seals)
        self._seals, self._record_is_whole = seals, True
        return self._size(RECORD)

    def _require_vouching(self, trail: Record, seals: dict[str, str]) -> None:
        """Require that a record with seals is the one that set them: it vouches for the other files."""
        path = self.path / RECORD
        if logs := logs_beside(self.path):  # seals are broken before the first commit
            raise CommitsLost(
                f"{path} has lost commits: it does not know of {logs[0]}",
                hint="restore the whole run directory from a backup; see `fedforget doctor`",
            )
        if seals.keys() != {OWN_SEAL, SERVER, USES, *BOOKS}:
            raise RunDamaged(f"{path} is damaged: its seals are not those of a run")
        if trail.seals.content_digest() != seals[OWN_SEAL]:
            raise self._not_as_sealed(RECORD)
        others = (name for name in (USES, *BOOKS) if not self._is_as_sealed(name, seals))
        if not self._is_as_sealed(SERVER, seals) and (other := next(others, None)):
            raise RunDamaged(
                f"{path} does not fit {SERVER} and {other}: it is damaged, or of another time or run, "
                "or both of them are"
            )

    def _is_as_sealed(self, name: str, seals: dict[str, str]) -> bool:
        """Return whether a database matches its seal. A missing one counts as matching: opening it reports that."""
        try:
            return Door(self.path).status(name) is None or self._digest_of(name) == seals[name]
        except RunDamaged:
            return False

    def _open_server(self) -> str:
        database = self._sealed_database(SERVER, server_store.SCHEMA)
        if self.file is not None:
            validate_server(database, self.file.plan)
            self.server = ServerStore(database, self.models(), self.file.plan)
        return self._size(SERVER)

    def models(self) -> ModelFiles:
        """Return the model files, restricted to the plan's tensors if the plan could be read."""
        return ModelFiles(self.path / MODELS, () if self.file is None else self.file.layouts)

    def _open_uses(self, every_book: bool) -> str:
        notes = Uses(self._sealed_database(USES, uses.SCHEMA))
        if self.server is not None:
            roots = self.record.seals.roots() if self.record is not None and self.sealed else {}
            found = Books(self.path, self.server.tree_key, self._require_as_sealed, roots)
            self._opened.callback(found.close)
            self.clients = ClientStore(found, notes)
        if every_book:
            notes.require_digest()
            if self.server is not None:
                notes.require_clients(self.server.roster)
        return self._size(USES)

    def _find_book(self, name: str, *, opening: bool) -> str:
        if Door(self.path).status(name) is None:
            raise RunDamaged(f"{self.path / name} is missing")
        number = BOOKS.index(name)
        if opening and self.clients is not None:
            self.clients.books.require_tree(number)
        elif opening:  # the key of the tree is not known
            self._require_as_sealed(name)
            Book.read(self.path / name, number)
        return self._size(name)

    def sealed_books(self) -> dict[str, str]:
        """Return the digests of the clients' books at the last closing; none after a crash."""
        return {name: found for name, found in self._seals.items() if name in BOOKS}

    def _compare_plan(self, server: ServerStore) -> str:
        if server.plan_digest != self._plan_digest:
            raise RunDamaged(
                f"{self.path / plan_file.NAME} is not the plan this run began with",
                hint="restore it from a backup; only new seeds change a plan",
            )
        return f"{server.plan.rounds} rounds"

    def _compare_seeds(self, server: ServerStore, clients: ClientStore) -> str:
        """Another seed changes every draw."""
        committed = None if self.file is None else self.file.server_commitment
        for problem in seed_problems(server, clients, committed, clients.commitments()):
            raise RunDamaged(problem)
        return "as committed to"

    def _sealed_database(self, name: str, schema: str) -> Database:
        """Open a database that matches its seal; SQLite never opens another one."""
        self._require_as_sealed(name)
        return self._database(name, schema)

    def _require_as_sealed(self, name: str) -> None:
        if self._seals and Door(self.path).status(name) and self._digest_of(name) != self._seals[name]:
            raise self._not_as_sealed(name)

    def _database(self, name: str, schema: str) -> Database:
        database = Database(self.path / name, schema)
        self._opened.callback(database.close)
        return database

    def _not_as_sealed(self, name: str) -> RunDamaged:
        return RunDamaged(f"{self.path / name} is damaged: it is not what it was when the run was last closed")

    def _size(self, name: str) -> str:
        return f"{Door(self.path).size(name)} bytes"


def seed_problems(
    server: ServerStore, clients: ClientStore, committed: bytes | None, answers: dict[Id, bytes]
) -> Iterator[str]:
    """Compare the seeds with their commitments: the server's in the plan, each client's in the roster.

    ``answers``: the commitments that the clients give now.
    """
    if committed is not None and server.seed.commitment != committed:
        yield f"the seed in {server.database.path} is not the one that the plan is committed to"
    commitments = server.commitments()
    if answers.keys() != commitments.keys():
        books = server.database.path.with_name("clients-*.book")
        yield f"{books} and the roster in {server.database.path} name different clients"
    for client in commitments.keys() & answers.keys():
        if answers[client] != commitments[client]:
            yield (
                f"the seed of client {shown(client)} in {clients.books.path_of(client)} is not the one that "
                f"{server.database.path} says it is committed to"
            )


def logs_beside(path: Path) -> list[str]:
    """Return the non-empty logs of the function's databases: a process is writing, or has crashed."""
    return [name + wal.SUFFIX for name in (SERVER, USES) if wal.has_content(path / name)]


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


def _consistent(server: ServerStore, clients: ClientStore, trail: Record) -> str:
    crash_check.require_whole(server, clients, trail)
    return "fits together; the next command goes on from there"
