"""Create a run directory. The plan is written last: without it the directory is not a run, and creation starts over."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedforget.algorithm.contents import ContentsOf
from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import State
from fedforget.algorithm.seeds import Seed
from fedforget.disk.database import Database
from fedforget.disk.door import Door
from fedforget.disk.files import TEMPORARY, storage_errors, sync_directory, write_durably
from fedforget.disk.lock import RunLock
from fedforget.disk.seen import settled_signature
from fedforget.errors import FedForgetError, InvalidInput, RunDamaged
from fedforget.requests import inbox
from fedforget.store import metrics, plan_file, record, server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.checks import sealed_digest
from fedforget.store.model_files import ModelFiles
from fedforget.store.names import (
    BROKEN_SEALS,
    KEYS,
    METRICS,
    MODELS,
    PRIVATE_KEY,
    PUBLIC_KEY,
    RECORD,
    SEALS,
    SERVER,
    USES,
)
from fedforget.store.plan_file import PlanFile
from fedforget.store.record import Record
from fedforget.store.run_directory import is_run
from fedforget.store.seals import SEALED, Seal, Seals
from fedforget.store.server_store import ServerStore
from fedforget.store.uses import Uses

_OURS = {
    *SEALED, KEYS, SEALS, BROKEN_SEALS, MODELS, "lock", plan_file.NAME, inbox.NAME, PRIVATE_KEY, PUBLIC_KEY,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewRun:
    """The initial content of a run directory."""

    file: PlanFile
    server_seed: Seed
    seed_origin: str
    tree_key: bytes
    client_seeds: Mapping[Id, Seed]
    contents: ContentsOf
    initial: State
    learner: Mapping[str, str]
    contents_in_memory: bool = False  # a second process may read them


def create(path: Path, new: NewRun) -> None:
    """Create a run directory, starting over if an earlier creation was interrupted. Does nothing if the run exists."""
    with storage_errors(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # private: it holds the seeds
    with storage_errors(path):
        _refuse_foreign(path)
    with RunLock(path):
        if is_run(path):
            return
        _refuse_used(path)
        _wipe(path)
        with storage_errors(path):
            (path / MODELS).mkdir(mode=0o700)
        server = Database(path / SERVER, server_store.SCHEMA, create=True)
        notes = Database(path / USES, uses.SCHEMA, create=True)
        measured = Database(path / METRICS, metrics.SCHEMA, create=True)
        trail = Database(path / RECORD, record.SCHEMA, create=True)
        ServerStore.create(
            server,
            ModelFiles(path / MODELS),
            seed=new.server_seed,
            seed_origin=new.seed_origin,
            tree_key=new.tree_key,
            plan_digest=new.file.digest,
            commitments={client: seed.commitment for client, seed in new.client_seeds.items()},
            initial=new.initial,
        )
        books = Books(path, new.tree_key)
        books.create(new.client_seeds, new.contents, in_memory=new.contents_in_memory)
        Uses(notes).store_digest()
        Record(trail).create(new.seed_origin, new.learner)
        for database in (server, notes, measured, trail):
            database.close_canonical()
        roots, door = books.roots(), Door(path)
        books.close()
        Seals(path).set(
            {name: Seal(sealed_digest(path, name), roots.get(name), settled_signature(door, name)) for name in SEALED}
        )
        with storage_errors(path):
            sync_directory(path.absolute().parent)
        write_durably(path / plan_file.NAME, new.file.encode(), mode=0o600)


def _refuse_foreign(path: Path) -> None:
    foreign = [
        entry.name
        for entry in path.iterdir()
        if entry.name not in _OURS and not any(entry.name.startswith(name) for name in (SERVER, USES, METRICS, RECORD))
        and not entry.name.endswith(TEMPORARY)
    ]  # fmt: skip
    if foreign and not is_run(path):
        raise InvalidInput(
            f"{path} exists and is not a run (it holds {foreign[0]})", hint="choose a new or empty directory for --out"
        )


def _refuse_used(path: Path) -> None:
    """Refuse to start over if the run has rounds or requests: it had a plan and has lost it."""
    used = 0
    for name, schema, sql in (
        (SERVER, server_store.SCHEMA, "SELECT count(*) FROM rounds WHERE round > 0"),
        (RECORD, record.SCHEMA, "SELECT count(*) FROM requests"),
    ):
        with contextlib.suppress(FedForgetError):
            database = Database(path / name, schema)
            try:
                used += database.rows(sql)[0][0]
            finally:
                database.close()
    if used:
        raise RunDamaged(f"{path / plan_file.NAME} is missing, but the run has rounds or requests")


def _wipe(path: Path) -> None:
    """Delete what an interrupted creation left."""
    with storage_errors(path):
        for entry in path.iterdir():
            if entry.name == "lock":
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
