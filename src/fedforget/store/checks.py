"""The facts that must hold before a run is used, each checked in one place.

Opening a run raises the first fact that does not hold; ``fedforget doctor`` lists all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fedforget.algorithm.ids import Id
from fedforget.disk import wal
from fedforget.disk.door import Door
from fedforget.disk.files import digest
from fedforget.disk.key_file import KeyFile
from fedforget.errors import CommitsLost, RunDamaged
from fedforget.store import crash_check, local_files, metrics, plan_file, record
from fedforget.store.client_store import ClientStore
from fedforget.store.clients_part import ClientsPart
from fedforget.store.fact import ClientsFiles, Fact
from fedforget.store.local_files import LocalFiles
from fedforget.store.metrics import Metrics
from fedforget.store.model_files import ModelFiles
from fedforget.store.names import CONTACTS, KEYS, METRICS, MODELS, RECORD, SEALS, SERVER, USES
from fedforget.store.plan_file import PlanFile
from fedforget.store.record import Record
from fedforget.store.remote_files import RemoteFiles
from fedforget.store.row_checks import validate_record, validate_server
from fedforget.store.sealed_files import SealedFiles
from fedforget.store.seals import Seals
from fedforget.store.server_store import ServerStore

SEEDS, AFTER_CRASH = "seeds", "what a crash left"


class Parts:
    """The files of a run, opened one by one, so that damage to one does not hide damage to another.

    The caller holds ``lock.shared_lock``. A part is None until its file has been checked.
    """

    def __init__(
        self, path: Path, opened: contextlib.ExitStack, *, trusting: bool = True, describing: bool = False
    ) -> None:
        """``trusting``: a file whose signature is that of its seal is not read as a whole.

        ``describing``: the caller only describes the run, so seals that a writing process moved aside count, too.
        """
        self.path = path
        self.files = SealedFiles(path, opened, trusting, aside=Seals(path).broken() if describing else {})
        self.of_clients: ClientsFiles = RemoteFiles(self.files) if is_remote(path) else LocalFiles(self.files)
        self.file: PlanFile | None = None
        self.record: Record | None = None
        self.server: ServerStore | None = None
        self.metrics: Metrics | None = None
        self._plan_digest = ""
        self._record_is_whole = False

    @property
    def sealed(self) -> bool:
        """Whether the last writer closed the run properly."""
        return bool(self.files.seals)

    @property
    def clients(self) -> ClientsPart | None:
        return self.of_clients.part

    def facts(self, *, every_book: bool = False) -> Iterator[Fact]:
        """Check each fact before advancing: later facts depend on earlier results.

        ``every_book``: read the clients' books now and compare the seeds with their commitments, even if their seals
        are intact. Otherwise a book is checked when it is first read.
        """
        yield Fact(plan_file.NAME, self._read_plan)
        yield Fact(MODELS, self._find_models)
        yield Fact(SEALS, self._read_seals)
        yield Fact(RECORD, self._open_record)
        yield Fact(KEYS, partial(self._read_keys, every_book))
        yield Fact(SERVER, self._open_server)
        yield Fact(METRICS, self._open_metrics)
        yield from self.of_clients.facts(self.server, self.record, everything=every_book)
        in_progress = self.record is not None and self.record.batches.are_unfinished  # new seeds may be half stored
        if self.server is not None and self.file is not None and not in_progress:
            yield Fact(plan_file.NAME, partial(self._compare_plan, self.server))
        if self.server is None or self.clients is None:
            return
        if (every_book or not self.sealed) and not in_progress:
            yield Fact(SEEDS, partial(self._compare_seeds, self.server))
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
                f"{self.path} has {logs[0]}, which `seals` does not list: commits were lost, or `seals` is from "
                "another backup",
                hint="restore the whole run directory from a backup; see `fedforget doctor`",
            )
        if seals and (CONTACTS in seals) != is_remote(self.path):
            raise RunDamaged(f"{self.path / SEALS} is damaged: it lists the files of another kind of run")
        self.files.seals = seals
        return "set when the run was closed" if seals else "broken: a process is writing the run, or was killed"

    def _open_record(self) -> str:
        trail = Record(self.files.database(RECORD, record.SCHEMA))
        if not self.files.trusts(RECORD):
            validate_record(trail.database)
        if self.sealed:
            trail.database.page_sum = int(self.files.seals[RECORD].digest, 16)
        self.record, self._record_is_whole = trail, True
        return self.files.size(RECORD)

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
        database = self.files.database(SERVER, self.of_clients.server_schema)
        if self.file is not None:
            trusted = self.files.trusts(SERVER)
            if not trusted:
                validate_server(database, self.file.plan)
            server = ServerStore(database, self.models(), self.file.plan)
            if not trusted:
                server.require_readable()
            self.server = server
        return self.files.size(SERVER)

    def models(self) -> ModelFiles:
        """Return the model files, restricted to the plan's tensors if the plan could be read."""
        return ModelFiles(self.path / MODELS, () if self.file is None else self.file.layouts)

    def _open_metrics(self) -> str:
        self.metrics = Metrics(self.files.database(METRICS, metrics.SCHEMA))
        return self.files.size(METRICS)

    def _compare_plan(self, server: ServerStore) -> str:
        if server.plan_digest != self._plan_digest:
            raise RunDamaged(
                f"{self.path / plan_file.NAME} is not the plan that this run was created with",
                hint="restore it from a backup; only new seeds change a plan",
            )
        return f"{server.plan.rounds} rounds"

    def _compare_seeds(self, server: ServerStore) -> str:
        """Compare the seeds with their commitments: another seed changes every draw."""
        problem = server_seed_problem(server, None if self.file is None else self.file.server_commitment)
        if problem is not None:
            raise RunDamaged(problem)
        self.of_clients.require_seeds(server)
        return "as committed to"


def is_remote(path: Path) -> bool:
    """Return whether the clients of a run are on other machines."""
    return Door(path).status(CONTACTS) is not None


def seed_problems(
    server: ServerStore, clients: ClientStore, committed: bytes | None, answers: dict[Id, bytes]
) -> Iterator[str]:
    """Compare the seeds with their commitments: the server's in the plan, each client's in the roster.

    ``answers``: the commitments that the clients give now.
    """
    problem = server_seed_problem(server, committed)
    if problem is not None:
        yield problem
    yield from local_files.seed_problems(server, clients, answers)


def server_seed_problem(server: ServerStore, committed: bytes | None) -> str | None:
    if committed is None or server.seed.commitment == committed:
        return None
    return f"the seed in {server.database.path} is not the one that the plan is committed to"


def logs_beside(path: Path) -> list[str]:
    """Return the non-empty logs of the run's databases: a process is writing, or has crashed."""
    return [name + wal.SUFFIX for name in (SERVER, USES, CONTACTS, METRICS, RECORD) if wal.has_content(path / name)]


def _consistent(server: ServerStore, clients: ClientsPart, trail: Record) -> str:
    crash_check.require_whole(server, clients, trail)
    return "consistent; the next command continues from there"
