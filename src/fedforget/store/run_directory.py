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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedforget.algorithm.forget import Request
from fedforget.disk import wal
from fedforget.disk.database import Database
from fedforget.disk.door import Door, chunks
from fedforget.disk.files import TEMPORARY, digest, new_hasher, storage_errors, write_durably
from fedforget.disk.lock import RunLock, at_rest, looking, undisturbed
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
        crash_check.require_whole(self.server, self.clients, self.record)

    def databases(self) -> tuple[Database, Database, Database]:
        return self.server.database, self.clients.database, self.record.database

    def purge_function(self) -> None:
        """Rebuild the function's databases from their content alone, and unlink models no round refers to."""
        self.server.database.rebuild()
        self.clients.database.rebuild()
        self.server.models.keep_only(self.server.kept().values())

    def commit_to(self, commitment: bytes) -> str:
        """Write the commitment to a new server seed into the plan; nothing else of a plan ever changes."""
        self.file = replace(self.file, server_commitment=commitment)
        write_durably(self.path / plan_file.NAME, self.file.encode(), mode=0o600)
        return self.file.digest

    def has(self, target: Request) -> bool:
        """Whether a client, or a sample of a client, is in the run."""
        return target.client in self.server.roster and (
            target.sample is None or self.clients.has(target.client, target.sample)
        )


def is_run(path: Path) -> bool:
    with storage_errors(path):
        return os.path.lexists(path / plan_file.NAME)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[OpenRun]:
    """Open a run to change it: locked, cleaned of what a crash left, canonical again afterwards."""
    PlanFile.read(path)  # says so if there is no run
    with RunLock(path), _working(path) as run:
        yield run


@contextlib.contextmanager
def _working(path: Path) -> Iterator[OpenRun]:
    run = _checked_for_work(path)
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


def _checked_for_work(path: Path) -> OpenRun:
    """The run as a look finds it, complete, before SQLite opens any file of it to write."""
    with looking(path):
        run = _open(path)
        with _closed_on_failure(run):
            if run.crashed:
                run.require_whole()
            run.inbox.names()
            for name in (SERVER, CLIENTS, RECORD):
                Door(path).require_own(name)
    return run


@contextlib.contextmanager
def reading(path: Path, *, settled: bool = True, trusting: bool = False) -> Iterator[OpenRun]:
    """Open a run to look at it; writes nothing. ``settled``: only if no process works on it and no request is pending.

    ``trusting``: the caller checks the seeds itself and reports every mismatch. A run that is not settled is only
    described, so nothing relies on them there either.
    """
    trusting = trusting or not settled
    PlanFile.read(path)  # says so if there is no run
    with at_rest(path) if settled else contextlib.nullcontext(), looking(path):
        run = _open(path, trusting=trusting)
        try:
            if settled and run.record.batches.pending():
                raise UnfinishedRequest(
                    f"a request on {path} was interrupted and is not finished",
                    hint=f"finish it with {hints.train(path)}, or by asking for it again",
                )
            if settled and run.crashed:
                with contextlib.suppress(*((RunDamaged,) if trusting else ())):
                    run.require_whole()
                _rewind_privately(run)
            yield run
        finally:
            _close(run)


def _rewind_privately(run: OpenRun) -> None:
    """Without the uses of a round that was never committed, which the next process to work takes back on disk."""
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


def _open(path: Path, *, trusting: bool = False) -> OpenRun:
    """Every part of a run as it is now, checked. The caller holds ``looking``."""
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
        if crashed and not trusting and not pending:  # else new seeds may be half way in
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
    """Logs of the function's databases: there while a process works, and after a crash."""
    return [name + wal.SUFFIX for name in (SERVER, CLIENTS) if wal.has_content(path / name)]


def _check_seals(path: Path, trail: Record) -> None:
    """What was closed properly must be found as it was left."""
    seals = trail.seals.all()
    if not seals:
        return
    if logs := logs_beside(path):  # seals are broken before the first commit
        raise CommitsLost(
            f"{path / RECORD} has lost commits: it knows nothing of {logs[0]}",
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
        return misfit(path)
    return f"{path / unlike[0]} is damaged: it is not what it was when the run was last closed" if unlike else None


def digest_of(path: Path, name: str) -> str:
    """The digest of a database of a run, read piece by piece; refused if its size is not what its header says."""
    hasher = new_hasher()
    with Door(path).opened(name) as file:
        require(path / name, header_problem(os.pread(file, PAGE, 0), os.fstat(file).st_size))
        for chunk in chunks(file):
            hasher.update(chunk)
    return hasher.hexdigest()


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
        for name in (*Door(run.path).names(TEMPORARY), *Door(run.path).names(TEMPORARY + JOURNAL)):
            leftover = run.path / name
            if leftover.is_symlink() or not leftover.is_dir():  # FedForget makes no directory of that name
                leftover.unlink()
    run.inbox.clean()
    run.server.models.keep_only(run.server.kept().values())
    rounds_done = run.server.stored_rounds_done()
    run.clients.rewind(rounds_done, run.server.steps_of(rounds_done))


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
                    run.record.seals.set({name: digest_of(run.path, name) for name in (SERVER, CLIENTS)})
            database.close_canonical()
        except (StorageFailed, RunDamaged) as error:
            database.close()
            failure = failure or error
    return failure
