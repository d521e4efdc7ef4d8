"""The state directory of one client: create it, open it, recover it after a crash, close it in canonical form.

client.toml   function: the client's id and the key of its samples' labels; written last when the directory is made
client.book   function: its seed, its sample ids with content digests
uses.db       function: first uses and witnesses
plan.toml     function: the run's plan, once the server has sent it
record.db, record.keys   record: requests of this client, pending additions, events, environments
receipt-key.pem, receipt-key.pub.pem   sign answers and receipts
inbox/        requests submitted while another process has the directory open
lock          held by the process at work
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.seeds import Seed
from fedforget.client_side.identity import CLIENT, Identity, require_client
from fedforget.client_side.own_book import BOOK, OwnBook
from fedforget.client_side.own_memory import OwnMemory
from fedforget.client_side.own_record import SCHEMA, OwnRecord
from fedforget.disk.database import Database
from fedforget.disk.door import Door
from fedforget.disk.files import TEMPORARY, storage_errors, sync_directory
from fedforget.disk.lock import RunLock, exclusive_section, shared_lock
from fedforget.disk.read_only import JOURNAL
from fedforget.errors import InvalidInput
from fedforget.evidence.receipts import receipt_key
from fedforget.requests import inbox
from fedforget.requests.inbox import Inbox
from fedforget.requests.lifecycle import Stage
from fedforget.store import plan_file, uses
from fedforget.store.names import KEYS, PRIVATE_KEY, PUBLIC_KEY, RECORD, USES
from fedforget.store.plan_file import PlanFile
from fedforget.store.uses import Uses

_LOG = "-wal"
_OURS = {CLIENT, BOOK, USES, RECORD, KEYS, PRIVATE_KEY, PUBLIC_KEY, plan_file.NAME, inbox.NAME, "lock"}


@dataclass(slots=True)
class OpenDirectory:
    """The open parts of a state directory."""

    path: Path
    who: Identity
    memory: OwnMemory
    record: OwnRecord
    inbox: Inbox
    dirty: bool = False  # something was written since it was last closed, or the last process crashed
    _clean: bool = field(default=True)

    @property
    def client(self) -> Id:
        return self.who.client

    @property
    def book(self) -> OwnBook:
        return self.memory.book

    @property
    def uses(self) -> Uses:
        return self.memory.uses

    def has(self, target: Request) -> bool:
        """Return whether a target is this client or one of its samples."""
        if target.client != self.client or self.book.is_empty:
            return False
        return target.sample is None or target.sample in self.book.samples

    def plan(self) -> PlanFile | None:
        """Return the run's plan; None if the server has not sent it yet."""
        return None if Door(self.path).status(plan_file.NAME) is None else PlanFile.read(self.path)

    def key(self) -> Ed25519PrivateKey:
        """Return the signing key."""
        return receipt_key.known_key(self.path, self.record.value("receipt_key"))

    def begin_writing(self) -> None:
        """Clean up before the first change."""
        if not self.dirty:
            self.dirty = True
            self.record.vault.begin()

    def recover(self) -> None:
        """Delete what a crash left, and bring the databases into use, so that closing makes them canonical."""
        with storage_errors(self.path), exclusive_section(self.path):
            for name in (*Door(self.path).names(TEMPORARY), *Door(self.path).names(TEMPORARY + JOURNAL)):
                (self.path / name).unlink()
            for database in (self.uses.database, self.record.database):
                database.begin_writing()
        self.dirty = self.uses.database.changed = True

    def close_canonical(self) -> None:
        """Rewrite what changed of the function from its content alone, drop keys, and finish purging."""
        if not self.dirty:
            return
        if self.uses.database.changed:
            self.uses.store_digest()
        with exclusive_section(self.path):
            if self.uses.database.changed:
                self.uses.database.close_canonical()
            elif self.uses.database.is_writing:
                self.uses.database.close()
            self._close_record()
        self.dirty = False

    def _close_record(self) -> None:
        batches, database = self.record.batches, self.record.database
        finished = batches.unfinished()

        def note_purged() -> None:
            for intent in finished:
                batches.purged(intent)

        purges = bool(finished) and all(batches.stage(each) == Stage.COMPLETED for each in finished)
        self.record.vault.purge(note_purged if purges else None)
        if database.is_writing:
            database.close_folded()

    def close(self) -> None:
        for database in (self.uses.database, self.record.database):
            database.close()


@contextlib.contextmanager
def writing(state: Path) -> Iterator[OpenDirectory]:
    """Lock a state directory and open it; close it in canonical form at the end. Raises RunBusy if it is locked."""
    require_client(state)
    with RunLock(state):
        with shared_lock(state):
            crashed = _has_leftovers(state)
            found = _open(state)
        try:
            for database in (found.uses.database, found.record.database):
                Door(state).require_own(database.path.name)
                database.before_first_write = found.begin_writing
            found.book.before_write = found.begin_writing
            if crashed:
                found.recover()
            try:
                yield found
            except InvalidInput:  # a rejected request, which may have been recorded
                found.close_canonical()
                raise
            found.close_canonical()
        finally:
            found.close()


@contextlib.contextmanager
def reading(state: Path) -> Iterator[OpenDirectory]:
    """Open a state directory for reading, also while another process has it open. Writes nothing."""
    require_client(state)
    with shared_lock(state):
        found = _open(state)
        try:
            yield found
        finally:
            found.close()


def _has_leftovers(state: Path) -> bool:
    door = Door(state)
    return any(door.names(suffix) for suffix in (_LOG, TEMPORARY, TEMPORARY + JOURNAL))


def _open(state: Path) -> OpenDirectory:
    who = Identity.read(state)
    with contextlib.ExitStack() as opened:
        notes, trail = Database(state / USES, uses.SCHEMA), None
        opened.callback(notes.close)
        trail = Database(state / RECORD, SCHEMA)
        opened.callback(trail.close)
        record = OwnRecord(trail)
        record.vault.require_keys()
        found = Uses(notes)
        found.require_digest()
        book = OwnBook(state, who.client, who.sample_key)
        memory = OwnMemory(who.client, book, found, record.environments)
        opened.pop_all()
        return OpenDirectory(state, who, memory, record, Inbox(state))


@dataclass(frozen=True)
class NewClient:
    """The initial content of a state directory."""

    who: Identity
    seed: Seed
    contents: Mapping[Id, bytes]

    @cached_property
    def key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.generate()


def create(state: Path, new: NewClient) -> None:
    """Create a state directory; start over if that was interrupted. Refuse one that exists."""
    with storage_errors(state):
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_used(state)
    with storage_errors(state):
        state.chmod(0o700)
    with RunLock(state):
        _refuse_used(state)
        _wipe(state)
        OwnBook(state, new.who.client, new.who.sample_key).create(new.seed, new.contents)
        receipt_key.write_pair(state, new.key)
        notes = Database(state / USES, uses.SCHEMA, create=True)
        trail = Database(state / RECORD, SCHEMA, create=True)
        Uses(notes).store_digest()
        OwnRecord(trail).create(new.who.seed_origin, receipt_key.key_id(new.key.public_key()), new.seed.commitment)
        for database in (notes, trail):
            database.close_canonical()
        with storage_errors(state):
            sync_directory(state.absolute().parent)
        new.who.write(state)


def _refuse_used(state: Path) -> None:
    with storage_errors(state):
        names = {entry.name for entry in state.iterdir()}
    if CLIENT in names:
        raise InvalidInput(f"{state} is already the state directory of a client", hint="choose another --state-dir")
    foreign = [name for name in names - _OURS if not name.endswith((TEMPORARY, TEMPORARY + JOURNAL, _LOG))]
    if foreign:
        raise InvalidInput(f"{state} holds {min(foreign)}", hint="choose a new or empty directory for --state-dir")


def _wipe(state: Path) -> None:
    """Delete what an interrupted creation left."""
    with storage_errors(state):
        for entry in state.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
