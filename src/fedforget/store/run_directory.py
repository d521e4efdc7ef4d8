"""Open a run directory for writing or reading, and close it in canonical form.

plan.toml   the frozen plan; written last on creation, so a directory without it is created again
server.db   function: seed, roster with commitments, rounds, digests of kept states
contacts.db in place of the next two where clients are on other machines: keys, nodes, epoch (``contacts``)
clients-*.book  function: each client's seed, sample ids with content digests
uses.db     function: first uses and witnesses of the clients
models/     function: one safetensors file per kept round, named by digest
metrics.db  record: measurements
record.db   record: requests, receipts, events
record.keys record: keys for what the record holds only for a time
seals       digests of the databases at the last closing; absent while a process writes
inbox/      requests submitted while another process had the run open
receipt-key.pem, receipt-key.pub.pem   sign and verify receipts
lock        held by the writing process
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedforget.algorithm.forget import Request
from fedforget.disk.database import Database
from fedforget.disk.door import Door
from fedforget.disk.files import TEMPORARY, storage_errors, write_durably
from fedforget.disk.lock import RunLock, exclusive_section, require_idle, shared_lock
from fedforget.disk.read_only import JOURNAL
from fedforget.disk.write_behind import WriteBehind
from fedforget.errors import CommitsLost, InvalidInput, RunBusy, RunDamaged, StorageFailed, UnfinishedRequest
from fedforget.requests.inbox import Inbox
from fedforget.store import crash_check, hints, plan_file
from fedforget.store.checks import AFTER_CRASH, SEEDS, Parts
from fedforget.store.client_store import ClientStore
from fedforget.store.clients_part import ClientsPart
from fedforget.store.local_part import LocalPart
from fedforget.store.metrics import Metrics
from fedforget.store.plan_file import PlanFile
from fedforget.store.record import Record
from fedforget.store.remote_part import RemotePart
from fedforget.store.sealing import Sealing
from fedforget.store.server_store import ServerStore

_LARGE = 2**20  # bytes from which a model is slow to write


@dataclass(slots=True)
class OpenRun:
    """The open parts of a run directory."""

    path: Path
    file: PlanFile
    server: ServerStore
    part: ClientsPart
    metrics: Metrics
    record: Record
    inbox: Inbox
    sealing: Sealing
    crashed: bool = False  # the last writer did not close it properly
    _broken: bool = False  # the seals, by this process
    _behind: WriteBehind | None = None

    @property
    def is_remote(self) -> bool:
        """Whether the clients hold their data on other machines."""
        return isinstance(self.part, RemotePart)

    @property
    def clients(self) -> ClientStore:
        """The clients' books and notes. Raises InvalidInput if they are on other machines."""
        if not isinstance(self.part, LocalPart):
            raise InvalidInput(
                f"the clients of {self.path} hold their data on their own machines",
                hint="ask them there: `fedforget client status`; or reach them with --federation flower:NAME",
            )
        return self.part.store

    @property
    def remote(self) -> RemotePart:
        """The digests and contacts of clients on other machines. Raises InvalidInput if they are on this one."""
        if not isinstance(self.part, RemotePart):
            raise InvalidInput(
                f"the clients of {self.path} are on this machine", hint="leave out --federation flower:NAME"
            )
        return self.part

    def require_reached(self, superlink: str | None) -> None:
        """Refuse a command that does not reach the clients where they are."""
        if superlink is not None:
            _ = self.remote  # raises
        elif self.is_remote:
            raise InvalidInput(
                f"the clients of {self.path} are on other machines",
                hint="reach them with --federation flower:NAME; or hand requests in with --defer",
            )

    def require_whole(self) -> None:
        """After a crash, raise CommitsLost if the databases contradict each other."""
        crash_check.require_whole(self.server, self.part, self.record)

    def databases(self) -> list[Database]:
        return [*self._rebuilt_databases(), self.record.database]

    def _rebuilt_databases(self) -> list[Database]:
        """Return the databases that are rebuilt when they have changed: all but the record."""
        return [self.server.database, *self.part.databases(), self.metrics.database]

    def commit_to(self, commitment: bytes) -> str:
        """Write the commitment to a new server seed into the plan and return its digest. Nothing else in it changes."""
        self.file = replace(self.file, server_commitment=commitment)
        write_durably(self.path / plan_file.NAME, self.file.encode(), mode=0o600)
        return self.file.digest

    def has(self, target: Request) -> bool:
        """Return whether a client, or a sample of a client, is in the run."""
        return self.part.has(target)

    @property
    def is_open_to_write(self) -> bool:
        """Whether this process may write the run."""
        return self.server.database.before_first_write is not None

    @property
    def is_writing(self) -> bool:
        """Whether anything was written since the run was opened or sealed."""
        return self._broken

    def begin_writing(self) -> None:
        """Break the seals before any other byte changes, and clean up after a crash. The first write calls this."""
        if self._broken:
            return
        with exclusive_section(self.path):
            self.sealing.break_all()
            self._broken = True
            for database in self.databases() if self.crashed else ():
                database.begin_writing()
        if not self.crashed:
            self.record.vault.begin()
        self._clean(rewind=self.crashed)
        if not self.is_remote:  # a round is durable before clients elsewhere train the next one
            self._write_behind(WriteBehind(low_priority=self.server.models.size_of_one() >= _LARGE))

    def seal(self, last: Callable[[], None] | None = None) -> None:
        """Rewrite what changed of the function in canonical form, drop keys and seal. Nothing deleted can be read.

        ``last`` makes the changes to the record that say so. Writing again begins anew.
        """
        if self._behind is not None:
            self._behind.finish()
        self._write_behind(None)
        if self.server.database.is_writing:
            self.server.models.keep_only(self.server.kept().values())
        self.part.before_sealing(crashed=self.crashed)
        rebuilt = {}
        with exclusive_section(self.path):
            for database in self._rebuilt_databases():
                if database.changed or self.crashed:
                    database.close_canonical()
                    rebuilt[database.path.name] = database
                elif database.is_writing:
                    database.close()
                    database.reopen()
            self.sealing.close_record(last)
            self.sealing.set({*rebuilt, *self.part.replaced()})
            for database in rebuilt.values():
                database.reopen()
        self.part.sealed()
        self.crashed = self._broken = False

    def _abandon(self, error: BaseException) -> None:
        """Leave the run after an error: sealed where that is possible, else to be cleaned up by the next writer."""
        if self._behind is not None:
            self._behind.stop()
        self._write_behind(None)
        with contextlib.suppress(StorageFailed, RunDamaged, RunBusy):
            self._clean(rewind=True)
            if not isinstance(error, CommitsLost | RunBusy):  # unsealed, the next opening reports lost commits again
                self.seal()

    def _write_behind(self, behind: WriteBehind | None) -> None:
        self._behind = behind
        for database in self.databases():
            database.behind = behind

    def _clean(self, *, rewind: bool) -> None:
        """Delete what a crash left: temporary files, unreferenced models; ``rewind``: notes of uncommitted rounds."""
        with storage_errors(self.path):
            for name in (*Door(self.path).names(TEMPORARY), *Door(self.path).names(TEMPORARY + JOURNAL)):
                leftover = self.path / name
                if leftover.is_symlink() or not leftover.is_dir():  # FedForget never creates such a directory
                    leftover.unlink()
        self.inbox.clean()
        if rewind:
            self.server.models.keep_only(self.server.kept().values())
            rounds_done = self.server.stored_rounds_done()
            self.part.rewind(rounds_done, self.server.steps_of(rounds_done))

    def before_book(self) -> None:
        """Prepare for replacing a client's book: every earlier write is on disk, and the seals are broken."""
        self.begin_writing()
        if self._behind is not None:
            self._behind.flush()

    def close(self) -> None:
        self.part.close()
        for database in self.databases():
            database.close()


def is_run(path: Path) -> bool:
    with storage_errors(path):
        return os.path.lexists(path / plan_file.NAME)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[OpenRun]:
    """Lock a run and open it. The first write breaks its seals; at the end it is canonical and sealed again."""
    plan_file.require_plan(path)
    with RunLock(path):
        with shared_lock(path):
            run = _open(path)
        try:
            run.inbox.names()  # raises if the inbox is not one
            for database in run.databases():
                Door(path).require_own(database.path.name)
                database.before_first_write = run.begin_writing
            run.part.before_replacing(run.before_book)
            if run.crashed:
                run.begin_writing()
            yield run
            if run.is_writing:
                run.seal()
        except BaseException as error:
            if run.is_writing:
                run._abandon(error)  # noqa: SLF001
            raise
        finally:
            run.close()


@contextlib.contextmanager
def reading(
    path: Path, *, only_idle: bool = True, skip_seed_check: bool = False, unfinished: bool = False
) -> Iterator[OpenRun]:
    """Open a run for reading. Writes nothing.

    ``only_idle``: raise RunBusy if a process writes the run, UnfinishedRequest if a request was interrupted. Callers
    that only describe a run pass False; nothing relies on the seeds then, so they are not checked.
    ``unfinished``: the caller relies on nothing that an interrupted request may have changed.
    ``skip_seed_check``: the caller checks the seeds itself and reports every mismatch. No file is trusted unread then.
    """
    plan_file.require_plan(path)
    with require_idle(path) if only_idle else contextlib.nullcontext(), shared_lock(path):
        skipped = (SEEDS, AFTER_CRASH) if skip_seed_check or not only_idle else ()
        run = _open(path, skipped, trusting=not skip_seed_check, describing=not only_idle)
        try:
            if only_idle and not unfinished and run.record.batches.are_unfinished:
                raise unfinished_error(path)
            if only_idle and run.crashed:
                _rewind_privately(run)
            yield run
        finally:
            run.close()


def unfinished_error(path: Path) -> UnfinishedRequest:
    return UnfinishedRequest(
        f"a request on {path} was interrupted and is not finished",
        hint=f"finish it with {hints.train(path)}, or give the same request again",
    )


def _rewind_privately(run: OpenRun) -> None:
    """Drop, in memory only, the first uses of an uncommitted round. The next writer drops them on disk."""
    done = run.server.rounds_done
    run.part.rewind_privately(done, run.server.steps_of(done))


def _open(path: Path, skip: Collection[str] = (), *, trusting: bool = True, describing: bool = False) -> OpenRun:
    """Open and check every part of a run. The caller holds ``shared_lock``."""
    with contextlib.ExitStack() as opened, storage_errors(path):
        parts = Parts(path, opened, trusting=trusting, describing=describing)
        for fact in parts.facts():
            if fact.name not in skip:
                fact.check()
        file, server, clients, found, trail = parts.file, parts.server, parts.clients, parts.metrics, parts.record
        if file is None or server is None or clients is None or found is None or trail is None:
            raise AssertionError("a part is missing although every fact holds")
        sealing = Sealing(path, clients, trail, parts.files.seals, parts.files.read_whole)
        run = OpenRun(path, file, server, clients, found, trail, Inbox(path), sealing)
        run.crashed = not parts.sealed
        trail.derived.append(found)
        server.commit_to = run.commit_to
        opened.pop_all()
    return run
