"""The run directory: creating it, opening it for writing or reading, leaving it canonical.

plan.toml   frozen; written last when a run is made, so that a directory without it starts anew
server.db   function: seed, roster with commitments, rounds, digests of kept states
clients.db  function: each client's seed, sample ids with content digests
models/     function: one safetensors file per kept round, named by digest
record.db   record: requests, receipts, events, metrics
inbox/      requests that were handed in while somebody was at work
receipt-key.pem, receipt-key.pub.pem   what receipts are signed and verified with
lock        held by the process at work
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.errors import (
    CommitsLost,
    FedForgetError,
    RunBusy,
    RunDamaged,
    StorageFailed,
    UnfinishedRequest,
)
from fedforget.store import client_store, plan_file, record, server_store, wal, wholeness
from fedforget.store.client_store import ClientStore
from fedforget.store.database import Database
from fedforget.store.files import TEMPORARY, digest, storage_errors, write_durably
from fedforget.store.inbox import Inbox
from fedforget.store.lock import RunLock, looking, somebody_works, undisturbed
from fedforget.store.model_files import ModelFiles
from fedforget.store.plan_file import PlanFile
from fedforget.store.record import Record
from fedforget.store.seals import OWN_SEAL
from fedforget.store.server_store import ServerStore
from fedforget.store.validation import (
    require_schema,
    validate_clients,
    validate_record,
    validate_seeds,
    validate_server,
)
from fedforget.store.write_behind import WriteBehind

SERVER, CLIENTS, RECORD, MODELS = "server.db", "clients.db", "record.db", "models"
RECORD_FORMAT: Mapping[str, Any] = {"version": record.VERSION, "migrations": record.MIGRATIONS}

_LARGE = 2**20  # bytes of a model that takes a while to write


@dataclass(slots=True)
class OpenRun:
    """The open parts of a run directory."""

    path: Path
    file: PlanFile
    server: ServerStore
    clients: ClientStore
    record: Record
    inbox: Inbox
    crashed: bool = False  # it was not closed properly

    def require_whole(self) -> None:
        """After a crash: that nothing was lost since."""
        wholeness.require_whole(self.server, self.clients, self.record)

    def databases(self) -> tuple[Database, Database, Database]:
        return self.server.database, self.clients.database, self.record.database

    def purge_function(self) -> None:
        """Rebuild the function's databases from their content alone, and unlink models no round refers to."""
        self.server.database.rebuild()
        self.clients.database.rebuild()
        self.server.models.keep_only(self.server.kept().values())

    def replace_plan(self, file: PlanFile) -> None:
        """New seeds bring a new commitment; nothing else of a plan ever changes."""
        write_durably(self.path / plan_file.NAME, file.encode())
        self.file = file


def is_run(path: Path) -> bool:
    return (path / plan_file.NAME).exists()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[OpenRun]:
    """Open a run to change it: locked, cleaned of what a crash left, canonical again afterwards."""
    PlanFile.read(path)  # says so if there is no run
    with RunLock(path), _working(path) as run:
        yield run


@contextlib.contextmanager
def _working(path: Path) -> Iterator[OpenRun]:
    run = _open(path)
    with _closed_on_failure(run):
        if not (path / MODELS).is_dir():
            raise RunDamaged(f"{path / MODELS} is missing", hint="restore it from a backup; see `fedforget doctor`")
        if run.crashed:
            run.require_whole()
    behind, clean = WriteBehind(gives_way=run.server.models.size_of_one() >= _LARGE), False
    try:
        with undisturbed(path):
            run.record.database.begin_writing()
            run.record.seals.break_all()  # before any other byte changes
            run.server.database.begin_writing()
            run.clients.database.begin_writing()
        _clean(run)
        _write_behind(run, behind)
        yield run
        behind.finish()
        _write_behind(run, None)
    except BaseException as error:
        behind.stop()
        _write_behind(run, None)
        with contextlib.suppress(StorageFailed, RunDamaged):
            _clean(run)
            clean = not isinstance(error, CommitsLost)  # which is to be found again, not sealed in
        _leave(run, suppress=True, seal=clean)
        raise
    _leave(run, suppress=False, seal=True)


@contextlib.contextmanager
def reading(path: Path, *, settled: bool = True, trusting: bool = False) -> Iterator[OpenRun]:
    """Open a run to look at it. ``settled``: only if nobody works on it and no request waits to be finished.

    ``trusting``: whoever looks checks the seeds himself, and wants to say what is wrong with them; who looks at a run
    that is not settled relies on nothing.
    """
    trusting = trusting or not settled
    PlanFile.read(path)  # says so if there is no run
    with RunLock(path) if settled and _can_change(path) else looking(path):
        run = _open(path, trusting=trusting, snapshot=not settled)
        if settled and not run.record.seals.all():
            _close(run)
            with contextlib.suppress(*((RunDamaged,) if trusting else ())), _working(path):
                pass  # takes away what a crash left
            run = _open(path, trusting=trusting)
        try:
            if settled and run.record.batches.pending():
                raise UnfinishedRequest(
                    f"a request on {path} was interrupted and is not finished",
                    hint=f"finish it with `fedforget train {path}`, or by asking for it again",
                )
            yield run
        finally:
            _close(run)


@contextlib.contextmanager
def _closed_on_failure(run: OpenRun) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _close(run)
        raise


def _can_change(path: Path) -> bool:
    """Nobody works on a file system that is read-only, so there is nobody to keep out."""
    return not os.statvfs(path).f_flag & os.ST_RDONLY


def _close(run: OpenRun) -> None:
    for database in run.databases():
        database.close()


def _open(path: Path, *, trusting: bool = False, snapshot: bool = False) -> OpenRun:
    file = PlanFile.read(path)
    with storage_errors(path):
        if snapshot:
            _check_idle_logs(path)
        else:
            check_logs(path)
    with contextlib.ExitStack() as opened:

        def opened_database(name: str, **kind: Any) -> Database:
            database = Database(path / name, **kind)
            opened.callback(database.close)
            if snapshot:
                database.begin_reading()
            return database

        trail = Record(opened_database(RECORD, **RECORD_FORMAT))
        require_schema(trail.database, record.SCHEMA)
        with storage_errors(path):
            _check_seals(path, trail)
        server_database, clients_database = opened_database(SERVER), opened_database(CLIENTS)
        if not trail.seals.all():
            require_schema(server_database, server_store.SCHEMA)
            require_schema(clients_database, client_store.SCHEMA)
            validate_record(trail.database)
            validate_server(server_database, file.plan.rounds)
            validate_clients(clients_database)
            if not trusting and not trail.batches.pending():  # else new seeds may be half way in
                validate_seeds(server_database, clients_database, file.server_commitment)
        server = ServerStore(server_database, ModelFiles(path / MODELS), file.plan)
        clients = ClientStore(clients_database)
        with storage_errors(path / plan_file.NAME):
            plan_digest = digest((path / plan_file.NAME).read_bytes())
        if server.plan_digest != plan_digest and not trail.batches.pending():
            raise RunDamaged(
                f"{path / plan_file.NAME} is not the plan this run began with",
                hint="restore it from a backup; a plan is never changed",
            )
        opened.pop_all()
    return OpenRun(path, file, server, clients, trail, Inbox(path), crashed=not trail.seals.all())


def _check_idle_logs(path: Path) -> None:
    """As ``check_logs``, for who looks: a log is looked into only if nobody is just writing it.

    Opening a database folds its log in as far as it can be read, and deletes it: what a crash left must be whole first.
    """
    try:
        if any(wal.has_content(path / name) for name in (RECORD, SERVER, CLIENTS)) and not somebody_works(path):
            check_logs(path)
    except RunDamaged:
        if not somebody_works(path):  # else somebody began to work meanwhile
            check_logs(path)


def check_logs(path: Path) -> None:
    """Refuse a run whose write-ahead logs are not as they were written."""
    for name in (RECORD, SERVER, CLIENTS):
        problem = wal.problem_of(path / name)
        if problem is not None:
            raise RunDamaged(problem, hint="restore the whole run directory from a backup; see `fedforget doctor`")


def logs_beside(path: Path) -> list[str]:
    """Logs of the function's databases: there while somebody works, and after a crash."""
    return [name + wal.SUFFIX for name in (SERVER, CLIENTS) if wal.has_content(path / name)]


def _check_seals(path: Path, trail: Record) -> None:
    """What was closed properly must be found as it was left."""
    seals = trail.seals.all()
    if seals and logs_beside(path) and trail.seals.all() == seals:  # seals are broken before the first commit
        raise CommitsLost(
            f"{path / RECORD} has lost commits: it knows nothing of {logs_beside(path)[0]}",
            hint="restore the whole run directory from a backup; see `fedforget doctor`",
        )
    if seals and seals.keys() != {OWN_SEAL, SERVER, CLIENTS}:
        raise RunDamaged(
            f"{path / RECORD} is damaged: its seals are not those of a run",
            hint="restore it from a backup; see `fedforget doctor`",
        )
    problem = _broken_seal(path, trail, seals)
    if problem is not None and trail.seals.all() == seals:  # else somebody began to work meanwhile
        raise RunDamaged(problem, hint="restore it from a backup; see `fedforget doctor`")


def _broken_seal(path: Path, trail: Record, seals: dict[str, str]) -> str | None:
    if not seals:
        return None
    if trail.seals.content_digest() != seals[OWN_SEAL]:  # the record vouches for the rest
        return f"{path / RECORD} is damaged: it is not what it was when the run was last closed"
    for name in (CLIENTS, SERVER):
        if not (path / name).is_file():
            return f"{path / name} is missing"
    unlike = [name for name in (CLIENTS, SERVER) if digest((path / name).read_bytes()) != seals[name]]
    if len(unlike) > 1:
        return misfit(path)
    return f"{path / unlike[0]} is damaged: it is not what it was when the run was last closed" if unlike else None


def misfit(path: Path) -> str:
    """Where neither database of the function is the one that the record has sealed, the odd one may be the record."""
    return (
        f"{path / RECORD} does not fit {SERVER} and {CLIENTS}: it is damaged, or of another time or run, "
        "or both of them are"
    )


def _write_behind(run: OpenRun, behind: WriteBehind | None) -> None:
    for database in run.databases():
        database.behind = behind


def _clean(run: OpenRun) -> None:
    """Take away what a crash left: temporary files, models no round refers to, uses of rounds never committed."""
    with storage_errors(run.path):
        for leftover in run.path.glob("*" + TEMPORARY):
            if not leftover.is_dir():  # which is nobody's of ours
                leftover.unlink()
    run.inbox.clean()
    run.server.models.keep_only(run.server.kept().values())
    run.clients.rewind(run.server.stored_rounds_done() * run.file.plan.local_steps)


def _leave(run: OpenRun, *, suppress: bool, seal: bool) -> None:
    failure: FedForgetError | None
    try:
        with undisturbed(run.path):
            failure = _close_all(run, seal=seal)
    except (StorageFailed, RunBusy) as error:  # as after a crash: the next opening makes it canonical
        _close(run)
        failure = error
    if failure is not None and not suppress:
        raise failure


def _close_all(run: OpenRun, *, seal: bool) -> FedForgetError | None:
    """Leave every file canonical; returns what went wrong."""
    failure: FedForgetError | None = None
    for database in run.databases():  # the record comes last, with the seals of the others
        try:
            if seal and database is run.record.database and failure is None:
                with storage_errors(run.path):
                    run.record.seals.set({name: digest((run.path / name).read_bytes()) for name in (SERVER, CLIENTS)})
            database.close_canonical()
        except (StorageFailed, RunDamaged) as error:
            database.close()
            failure = failure or error
    return failure
