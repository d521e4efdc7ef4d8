"""What must hold before a run is used, each fact checked in one place.

Opening a run raises the first fact that does not hold; ``fedforget doctor`` lists all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedforget.algorithm.ids import Id
from fedforget.disk import wal
from fedforget.disk.database import Database
from fedforget.disk.door import Door, chunks
from fedforget.disk.files import digest, new_hasher
from fedforget.disk.key_file import KeyFile
from fedforget.disk.page_sum import page_sum
from fedforget.disk.pages import PAGE, header_problem
from fedforget.disk.read_only import require
from fedforget.disk.seen import Signature, signature
from fedforget.errors import CommitsLost, RunDamaged, RunTooNew, RunTooOld, shown
from fedforget.store import crash_check, metrics, plan_file, record, server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.books.content import Book
from fedforget.store.books.layout import header_of
from fedforget.store.client_store import ClientStore
from fedforget.store.metrics import Metrics
from fedforget.store.model_files import ModelFiles
from fedforget.store.names import BOOKS, KEYS, METRICS, MODELS, RECORD, SEALS, SERVER, USES
from fedforget.store.plan_file import PlanFile
from fedforget.store.record import Record
from fedforget.store.row_checks import validate_record, validate_server
from fedforget.store.seals import Seal, Seals, roots_in
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

    def __init__(
        self, path: Path, opened: contextlib.ExitStack, *, trusting: bool = True, describing: bool = False
    ) -> None:
        """``trusting``: a file whose signature is that of its seal is not read as a whole.

        ``describing``: nothing relies on what is read, so the seals that a process at work moved aside count as well.
        """
        self.path = path
        self.file: PlanFile | None = None
        self.record: Record | None = None
        self.server: ServerStore | None = None
        self.clients: ClientStore | None = None
        self.metrics: Metrics | None = None
        self.seals: dict[str, Seal] = {}  # of a run that was closed properly
        self._aside: dict[str, Seal] = Seals(path).broken() if describing else {}
        self.read_whole: dict[str, Signature | None] = {}  # files that were compared with their seals
        self._plan_digest = ""
        self._record_is_whole = False
        self._opened = opened
        self._trusting = trusting
        self._door = Door(path)

    @property
    def sealed(self) -> bool:
        """Whether the last writer closed the run properly."""
        return bool(self.seals)

    def facts(self, *, every_book: bool = False) -> Iterator[Fact]:
        """Check each fact before advancing: later facts depend on earlier results.

        ``every_book``: read the clients' books now and compare the seeds with their commitments, also where seals vouch
        for them. Otherwise a book is checked when it is first read.
        """
        yield Fact(plan_file.NAME, self._read_plan)
        yield Fact(MODELS, self._find_models)
        yield Fact(SEALS, self._read_seals)
        yield Fact(RECORD, self._open_record)
        yield Fact(KEYS, partial(self._read_keys, every_book))
        yield Fact(SERVER, self._open_server)
        yield Fact(USES, partial(self._open_uses, every_book))
        yield Fact(METRICS, self._open_metrics)
        for name in BOOKS:
            yield Fact(name, partial(self._find_book, name, opening=every_book))
        in_progress = self.record is not None and self.record.batches.are_unfinished  # new seeds may be half stored
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

    def _read_seals(self) -> str:
        seals = Seals(self.path).all()
        if seals and (logs := logs_beside(self.path)):  # seals are broken before the first commit
            raise CommitsLost(
                f"{self.path / SEALS} does not know of {logs[0]}: commits were lost, or it is of another time",
                hint="restore the whole run directory from a backup; see `fedforget doctor`",
            )
        self.seals = seals
        return "set when the run was closed" if seals else "broken: a process is writing the run, or was killed"

    def _open_record(self) -> str:
        trail = Record(self._sealed_database(RECORD, record.SCHEMA))
        if not self.trusts(RECORD):
            validate_record(trail.database)
        if self.sealed:
            trail.database.page_sum = int(self.seals[RECORD].digest, 16)
        self.record, self._record_is_whole = trail, True
        return self._size(RECORD)

    def _read_keys(self, everything: bool) -> str:
        if self.record is None:
            return f"{len(KeyFile(self.path / KEYS).keys)} keys"
        vault = self.record.vault
        if everything:
            vault.require_readable()
        else:
            vault.require_keys()
        return f"{len(self.record.vault.keys.keys)} keys"

    def _open_server(self) -> str:
        database = self._sealed_database(SERVER, server_store.SCHEMA)
        if self.file is not None:
            if not self.trusts(SERVER):
                validate_server(database, self.file.plan)
            self.server = ServerStore(database, self.models(), self.file.plan)
        return self._size(SERVER)

    def models(self) -> ModelFiles:
        """Return the model files, restricted to the plan's tensors if the plan could be read."""
        return ModelFiles(self.path / MODELS, () if self.file is None else self.file.layouts)

    def _open_uses(self, every_book: bool) -> str:
        notes = Uses(self._sealed_database(USES, uses.SCHEMA))
        if self.server is not None:
            found = Books(self.path, self.server.tree_key, self._checked_book, roots_in(self.seals))
            self._opened.callback(found.close)
            self.clients = ClientStore(found, notes)
        if every_book:
            notes.require_digest()
            if self.server is not None:
                notes.require_clients(self.server.roster)
        return self._size(USES)

    def _checked_book(self, name: str) -> bool:
        self._require_as_sealed(name)
        return self.trusts(name)

    def _open_metrics(self) -> str:
        self.metrics = Metrics(self._sealed_database(METRICS, metrics.SCHEMA))
        return self._size(METRICS)

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
        database = Database(self.path / name, schema, trusted=self.trusts(name))
        self._opened.callback(database.close)
        return database

    def trusts(self, name: str) -> bool:
        """Return whether a file is unchanged since FedForget wrote it, or read it as a whole."""
        return self._trusting and Seals(self.path).trusts(name, self.seals.get(name) or self._aside.get(name))

    def _require_as_sealed(self, name: str) -> None:
        seal = self.seals.get(name)
        if seal is None or self._door.status(name) is None or self.trusts(name):
            return
        before = signature(self._door, name)
        if sealed_digest(self.path, name) != seal.digest:
            raise RunDamaged(f"{self.path / name} is damaged: it is not what it was when the run was last closed")
        self.read_whole[name] = before

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
    return [name + wal.SUFFIX for name in (SERVER, USES, METRICS, RECORD) if wal.has_content(path / name)]


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


def _consistent(server: ServerStore, clients: ClientStore, trail: Record) -> str:
    crash_check.require_whole(server, clients, trail)
    return "fits together; the next command goes on from there"
