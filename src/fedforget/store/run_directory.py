"""Open a run directory for writing or reading, and close it in canonical form.

plan.toml   the frozen plan; written last on creation, so a directory without it is created again
server.db   function: seed, roster with commitments, rounds, digests of kept states
clients.db  function: each client's seed, sample ids with content digests
models/     function: one safetensors file per kept round, named by digest
record.db   record: requests, receipts, events, metrics
inbox/      requests submitted while another process had the run open
receipt-key.pem, receipt-key.pub.pem   sign and verify receipts
lock        held by the writing process
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedforget.algorithm.forget import Request
from fedforget.disk import wal
from fedforget.disk.database import Database
from fedforget.disk.door import Door, chunks
from fedforget.disk.files import TEMPORARY, digest, new_hasher, storage_errors, write_durably
from fedforget.disk.lock import RunLock, exclusive_section, require_idle, shared_lock
from fedforget.disk.pages import PAGE, header_problem
from fedforget.disk.read_only import JOURNAL, require
from fedforget.disk.write_behind import WriteBehind
from fedforget.errors import CommitsLost, FedForgetError, RunBusy, RunDamaged, StorageFailed, UnfinishedRequest
from fedforget.requests.inbox import Inbox
from fedforget.store import client_store, crash_check, hints, plan_file, record, server_store
from fedforget.store.client_store import ClientStore
from fedforget.store.model_files import ModelFiles
from fedforget.store.names import CLIENTS, MODELS, RECORD, SERVER
from fedforget.store.plan_file import PlanFile
from fedforget.store.record import Record
from fedforget.store.row_checks import validate_clients, validate_record, validate_seeds, validate_server
from fedforget.store.seals import OWN_SEAL
from fedforget.store.server_store import ServerStore

_LARGE = 2**20  # bytes from which a model is slow to write


@dataclass(slots=True)
class OpenRun:
    """The open parts of a run directory."""

    path: Path
    file: PlanFile
    server: ServerStore
    clients: ClientStore
    record: Record
    inbox: Inbox
    crashed: bool = False  # the last writer did not close it properly

    def require_whole(self) -> None:
        """After a crash, raise CommitsLost if the databases contradict each other."""
        crash_check.require_whole(self.server, self.clients, self.record)

    def databases(self) -> tuple[Database, Database, Database]:
        return self.server.database, self.clients.database, self.record.database

    def purge_function(self) -> None:
        """Rebuild the function's databases from their content alone, and unlink unreferenced models."""
        self.server.database.rebuild()
        self.clients.database.rebuild()
        self.server.models.keep_only(self.server.kept().values())

    def commit_to(self, commitment: bytes) -> str:
        """Write the commitment to a new server seed into the plan and return its digest. Nothing else in it changes."""
        self.file = replace(self.file, server_commitment=commitment)
        write_durably(self.path / plan_file.NAME, self.file.encode(), mode=0o600)
        return self.file.digest

    def has(self, target: Request) -> bool:
        """Return whether a client, or a sample of a client, is in the run."""
        return target.client in self.server.roster and (
            target.sample is None or self.clients.has(target.client, target.sample)
        )


def is_run(path: Path) -> bool:
    with storage_errors(path):
        return os.path.lexists(path / plan_file.NAME)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[OpenRun]:
    """Open a run for writing: lock it, clean up after a crash, and leave it canonical and sealed."""
    PlanFile.read(path)  # raises NoSuchRun
    with RunLock(path), _open_for_writing(path) as run:
        yield run


@contextlib.contextmanager
def _open_for_writing(path: Path) -> Iterator[OpenRun]:
    run = _validated(path)
    behind, clean = WriteBehind(low_priority=run.server.models.size_of_one() >= _LARGE), False
    try:
        with exclusive_section(path):
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
            clean = not isinstance(error, CommitsLost)  # leave unsealed, so that the next opening reports it again
        _leave(run, suppress=True, seal=clean)
        raise
    _leave(run, suppress=False, seal=True)


def _validated(path: Path) -> OpenRun:
    """Open and validate a run for reading, before SQLite opens any of its files for writing."""
    with shared_lock(path):
        run = _open(path)
        with _closed_on_failure(run):
            if run.crashed:
                run.require_whole()
            run.inbox.names()
            for name in (SERVER, CLIENTS, RECORD):
                Door(path).require_own(name)
    return run


@contextlib.contextmanager
def reading(path: Path, *, only_idle: bool = True, skip_seed_check: bool = False) -> Iterator[OpenRun]:
    """Open a run for reading. Writes nothing.

    ``only_idle``: raise RunBusy if a process writes the run, UnfinishedRequest if a request was interrupted. Callers
    that only describe a run pass False; nothing relies on the seeds then, so they are not checked.
    ``skip_seed_check``: the caller checks the seeds itself and reports every mismatch.
    """
    skip_seed_check = skip_seed_check or not only_idle
    PlanFile.read(path)  # raises NoSuchRun
    with require_idle(path) if only_idle else contextlib.nullcontext(), shared_lock(path):
        run = _open(path, skip_seed_check=skip_seed_check)
        try:
            if only_idle and run.record.batches.pending():
                raise UnfinishedRequest(
                    f"a request on {path} was interrupted and is not finished",
                    hint=f"finish it with {hints.train(path)}, or give the same request again",
                )
            if only_idle and run.crashed:
                with contextlib.suppress(*((RunDamaged,) if skip_seed_check else ())):
                    run.require_whole()
                _rewind_privately(run)
            yield run
        finally:
            _close(run)


def _rewind_privately(run: OpenRun) -> None:
    """Drop, in memory only, the first uses of an uncommitted round. The next writer drops them on disk."""
    done = run.server.rounds_done
    last = run.server.steps_of(done)
    if run.clients.last_noted_step() > last or run.clients.last_witnessed_round() > done:
        run.clients.database.make_private()
        run.clients.rewind(done, last)


@contextlib.contextmanager
def _closed_on_failure(run: OpenRun) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _close(run)
        raise


def _close(run: OpenRun) -> None:
    for database in run.databases():
        database.close()


def _open(path: Path, *, skip_seed_check: bool = False) -> OpenRun:
    """Open and validate every part of a run. The caller holds ``shared_lock``."""
    file = PlanFile.read(path)
    with contextlib.ExitStack() as opened, storage_errors(path):

        def opened_database(name: str, schema: str) -> Database:
            database = Database(path / name, schema)
            opened.callback(database.close)
            return database

        _require_models(path)
        trail = Record(opened_database(RECORD, record.SCHEMA))
        validate_record(trail.database)
        _check_seals(path, trail)
        server_database = opened_database(SERVER, server_store.SCHEMA)
        clients_database = opened_database(CLIENTS, client_store.SCHEMA)
        validate_server(server_database, file.plan)
        validate_clients(clients_database)
        crashed, pending = not trail.seals.all(), trail.batches.pending()
        if crashed and not skip_seed_check and not pending:  # a pending reseed may be half done
            validate_seeds(server_database, clients_database, file.server_commitment)
        server = ServerStore(server_database, ModelFiles(path / MODELS), file.plan)
        if server.plan_digest != digest(plan_file.read_bytes(path)) and not pending:
            raise RunDamaged(
                f"{path / plan_file.NAME} is not the plan this run began with",
                hint="restore it from a backup; a plan is never changed",
            )
        opened.pop_all()
    run = OpenRun(path, file, server, ClientStore(clients_database), trail, Inbox(path), crashed)
    server.commit_to = run.commit_to
    return run


def _require_models(path: Path) -> None:
    if not Door(path, MODELS).is_there():
        raise RunDamaged(f"{path / MODELS} is missing", hint="restore it from a backup; see `fedforget doctor`")


def logs_beside(path: Path) -> list[str]:
    """Return the non-empty logs of the function's databases: a process is writing, or has crashed."""
    return [name + wal.SUFFIX for name in (SERVER, CLIENTS) if wal.has_content(path / name)]


def _check_seals(path: Path, trail: Record) -> None:
    """Require that a properly closed run is byte for byte what it was at closing."""
    seals = trail.seals.all()
    if not seals:
        return
    if logs := logs_beside(path):  # seals are broken before the first commit
        raise CommitsLost(
            f"{path / RECORD} has lost commits: it does not know of {logs[0]}",
            hint="restore the whole run directory from a backup; see `fedforget doctor`",
        )
    problem = _broken_seal(path, trail, seals)
    if problem is not None:
        raise RunDamaged(problem, hint="restore it from a backup; see `fedforget doctor`")


def _broken_seal(path: Path, trail: Record, seals: dict[str, str]) -> str | None:
    if seals.keys() != {OWN_SEAL, SERVER, CLIENTS}:
        return f"{path / RECORD} is damaged: its seals are not those of a run"
    if trail.seals.content_digest() != seals[OWN_SEAL]:  # the record vouches for the rest
        return f"{path / RECORD} is damaged: it is not what it was when the run was last closed"
    for name in (CLIENTS, SERVER):
        if Door(path).status(name) is None:
            return f"{path / name} is missing"
    unlike = [name for name in (CLIENTS, SERVER) if digest_of(path, name) != seals[name]]
    if len(unlike) > 1:
        return seal_mismatch(path)
    return f"{path / unlike[0]} is damaged: it is not what it was when the run was last closed" if unlike else None


def digest_of(path: Path, name: str) -> str:
    """Return the digest of a database of a run; raise RunDamaged if its size contradicts its header."""
    hasher = new_hasher()
    with Door(path).opened(name) as file:
        require(path / name, header_problem(os.pread(file, PAGE, 0), os.fstat(file).st_size))
        for chunk in chunks(file):
            hasher.update(chunk)
    return hasher.hexdigest()


def seal_mismatch(path: Path) -> str:
    """Return the message for a record whose seals match neither database: either side may be the wrong one."""
    return (
        f"{path / RECORD} does not fit {SERVER} and {CLIENTS}: it is damaged, or of another time or run, "
        "or both of them are"
    )


def _write_behind(run: OpenRun, behind: WriteBehind | None) -> None:
    for database in run.databases():
        database.behind = behind


def _clean(run: OpenRun) -> None:
    """Delete what a crash left: temporary files, unreferenced models, first uses of uncommitted rounds."""
    with storage_errors(run.path):
        for name in (*Door(run.path).names(TEMPORARY), *Door(run.path).names(TEMPORARY + JOURNAL)):
            leftover = run.path / name
            if leftover.is_symlink() or not leftover.is_dir():  # FedForget never creates such a directory
                leftover.unlink()
    run.inbox.clean()
    run.server.models.keep_only(run.server.kept().values())
    rounds_done = run.server.stored_rounds_done()
    run.clients.rewind(rounds_done, run.server.steps_of(rounds_done))


def _leave(run: OpenRun, *, suppress: bool, seal: bool) -> None:
    failure: FedForgetError | None
    try:
        with exclusive_section(run.path):
            failure = _close_all(run, seal=seal)
    except (StorageFailed, RunBusy) as error:  # as after a crash, the next writer makes it canonical
        _close(run)
        failure = error
    if failure is not None and not suppress:
        raise failure


def _close_all(run: OpenRun, *, seal: bool) -> FedForgetError | None:
    """Close every database in canonical form; return the first failure, or None."""
    failure: FedForgetError | None = None
    for database in run.databases():  # the record comes last, with the seals of the others
        try:
            if seal and database is run.record.database and failure is None:
                with storage_errors(run.path):
                    run.record.seals.set({name: digest_of(run.path, name) for name in (SERVER, CLIENTS)})
            database.close_canonical()
        except (StorageFailed, RunDamaged) as error:
            database.close()
            failure = failure or error
    return failure
