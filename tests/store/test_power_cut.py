"""A power cut at any moment: what was not synced is gone, there, or there in another order. The same command again
ends in the same bytes, and nothing that was promised is lost.

Our own files: every operation on them is logged, and every directory that a cut may leave is laid out from the log.
SQLite's: every commit is cut at and inside each of its frames.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fedforget import LocalOptimizer, Plan, Request
from fedforget.disk import connections, database, files
from fedforget.disk.write_behind import WriteBehind
from fedforget.errors import FedForgetError
from fedforget.requests import inbox, intake
from fedforget.requests.lifecycle import Submission
from fedforget.store import creation, model_files
from fedforget.store.books import books
from tests.helpers import function_files, hand_in, scratch
from tests.requests.world import opened
from tests.tally import tally

pytestmark = pytest.mark.slow  # a minute of it in all

PLAN = Plan(3, 3, 2, 3, LocalOptimizer(lr=0.1, momentum=0.5), keep=2)
USED, OTHER = 1, 2
PARTS = [Request(OTHER, sample) for sample in range(3)]  # entered by two transactions
DATABASES = ("run/server.db", "run/uses.db", "run/metrics.db", "run/record.db")  # a book is a file of our own

Disk = Mapping[str, bytes | None]  # path → content; None: a directory


def read_disk(root: Path) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for path in sorted(root.rglob("*")):
        if not path.name.endswith("-shm"):  # memory, not a file
            found[str(path.relative_to(root))] = None if path.is_dir() else path.read_bytes()
    return found


def lay_out(disk: Disk, root: Path) -> None:
    for name, content in sorted(disk.items()):
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


# ---------------------------------------------------------------------------------------------------------- scenarios


@dataclass(frozen=True)
class Scenario:
    """Something that is done to a run; how to do it again after a cut; how many requests that makes.

    ``act`` says when it has promised something. ``again`` is told whether it had.
    """

    trained: bool
    act: Callable[[Path, Callable[[], None]], Any]
    again: Callable[[Path, bool], Any]
    requests: int = 0


def _train(path: Path) -> None:
    opened(path, PLAN).train()


def _forget(path: Path) -> None:
    opened(path, None).forget(client=USED)


def _renew(path: Path) -> None:
    opened(path, None).forget(client=USED, new_seed=True)


def _hand_in_and_meet(path: Path, promise: Callable[[], None]) -> None:
    hand_in(path, Submission.of((Request(OTHER),), "unknown"))
    promise()
    opened(path, None).run_pending(everything=True)


def _meet_what_was_handed_in(path: Path, promised: bool) -> None:
    run = opened(path, None)
    if not promised:
        run.forget(client=OTHER, defer=True)
    run.run_pending(everything=True)


def _accept_in_parts(path: Path, promise: Callable[[], None]) -> None:
    opened(path, None).forget(PARTS, basis="exogenous", defer=True)
    promise()
    opened(path, None).run_pending()


def _accept_again(path: Path, promised: bool) -> None:
    run = opened(path, None)
    if not promised:
        run.forget(PARTS, basis="exogenous", defer=True)
    run.run_pending()


SCENARIOS = {
    "train": Scenario(False, lambda path, _: _train(path), lambda path, _: _train(path)),
    "forget": Scenario(True, lambda path, _: _forget(path), lambda path, _: _forget(path), 1),
    "new seeds": Scenario(True, lambda path, _: _renew(path), lambda path, _: _renew_again(path), 1),
    "hand in": Scenario(True, _hand_in_and_meet, _meet_what_was_handed_in, 1),
    "accept in parts": Scenario(True, _accept_in_parts, _accept_again, len(PARTS)),
}


def _renew_again(path: Path) -> None:
    """New seeds twice would be other seeds: only if the request is not on its way yet."""
    run = opened(path, None)
    run.train()
    if USED in run.clients():
        _renew(path)


@pytest.fixture(scope="module")
def trained() -> Iterator[Disk]:
    with scratch() as root:
        _train(root / "run")
        yield read_disk(root)


@pytest.fixture(autouse=True)
def the_same_new_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """New seeds are drawn from the system. Here every draw is the same, so that results can be compared."""
    monkeypatch.setattr("fedforget.requests.processor.token_bytes", lambda size: b"\x5e" * size)


@pytest.fixture(autouse=True)
def two_requests_in_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "AT_ONCE", 2)


def begin(scenario: Scenario, trained: Disk, root: Path) -> Path:
    if scenario.trained:
        lay_out(trained, root)
    return root / "run"


def undisturbed(scenario: Scenario, trained: Disk) -> dict[str, bytes]:
    with scratch() as root:
        path = begin(scenario, trained, root)
        scenario.act(path, lambda: None)
        return function_files(path)


def complaint(
    disk: Disk, scenario: Scenario, promised: bool, expected: Mapping[str, bytes], kind: str = "power/files"
) -> str:
    """What is wrong after the same command again; empty if nothing is."""
    with scratch() as root:
        lay_out(disk, root)
        path = root / "run"
        try:
            scenario.again(path, promised)
            status = opened(path, None).status()
        except FedForgetError as error:
            return f"{type(error).__name__}: {error}"
        if function_files(path) != expected:
            return "another function"
        if status.pending or status.requests != scenario.requests:
            return f"{status.requests} requests, pending: {status.pending}"
        leftover = [entry.name for entry in path.iterdir() if entry.name.endswith((".tmp", "-wal"))]
        if leftover:
            return f"{leftover} left over"
        tally(kind)
        return ""


# ------------------------------------------------------------------------------------------------------ our own files

FILE, FOUND, WRITE, RENAME, UNLINK, MKDIR, RMDIR, SYNC_FILE, SYNC_DIRECTORY, PROMISE = (
    "file", "found", "write", "rename", "unlink", "mkdir", "rmdir", "sync file", "sync directory", "promise",
)  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One step on disk. A file is a number: its name can change. ``before``: the databases just before it."""

    kind: str
    path: str
    before: Disk
    file: int = -1
    target: str = ""
    data: bytes = b""

    @property
    def directory(self) -> str:
        return str(Path(self.path).parent)


@dataclass
class Log:
    """What was done to the files below ``root``, in order."""

    root: Path
    operations: list[Operation] = field(default_factory=list)
    born_as: dict[int, bytes] = field(default_factory=dict)  # what was in a file when it was given its name,
    last_content: dict[int, bytes] = field(default_factory=dict)  # and when another one was given that name
    at_the_end: Disk = field(default_factory=dict)
    _files: dict[str, int] = field(default_factory=dict)
    _written: dict[int, bytes] = field(default_factory=dict)
    _open: dict[int, str] = field(default_factory=dict)
    _count: int = 0

    def name(self, path: Any) -> str | None:
        """Relative to the root; None if it is none of ours."""
        whole = Path(os.fspath(path)).absolute()
        if not whole.is_relative_to(self.root) or whole.name == "lock":
            return None
        return str(whole.relative_to(self.root))

    def databases(self) -> Disk:
        found: dict[str, bytes | None] = {}
        for name in DATABASES:
            for path in (self.root / name, self.root / (name + "-wal")):
                if path.exists():
                    found[str(path.relative_to(self.root))] = path.read_bytes()
        return found

    def note(self, kind: str, path: str, *, file: int = -1, target: str = "", data: bytes = b"") -> None:
        self.operations.append(Operation(kind, path, self.databases(), file, target, data))

    def _file(self, name: str, kind: str = FOUND, data: bytes = b"") -> int:
        """The number of the file that has this name now. ``data``: what is known to be in it, and durable."""
        if name not in self._files or kind == FILE:
            self._count += 1
            self._files[name] = self._count
            self.note(kind, name, file=self._count, data=data)
        return self._files[name]

    def _note_writes(self, name: str) -> int:
        file, content = self._file(name), (self.root / name).read_bytes()
        if self._written.get(file) != content:
            self._written[file] = content
            self.note(WRITE, name, file=file, data=content)
        return file

    def describe(self, moment: int) -> str:
        if moment == len(self.operations):
            return "the end"
        return f"{self.operations[moment].kind} {self.operations[moment].path}"

    # What the operating system is asked for

    def opened(self, descriptor: int, path: Any, *, new: bool) -> None:
        self._open.pop(descriptor, None)
        name = self.name(path)
        if name is not None:
            self._open[descriptor] = name
            if new:
                self._file(name, FILE)

    def synced(self, descriptor: int) -> None:
        name = self._open.get(descriptor)
        if name is None:
            return
        if (self.root / name).is_dir():
            self.note(SYNC_DIRECTORY, name)
        else:
            self.note(SYNC_FILE, name, file=self._note_writes(name))

    def renames(self, source: Any, target: Any) -> None:
        old, new = self.name(source), self.name(target)
        assert old is not None
        assert new is not None
        if old not in self._files and not old.endswith(files.TEMPORARY):  # it was there before, and durable
            content = (self.root / old).read_bytes()
            self._written[self._file(old, data=content)] = content
        file = self._note_writes(old)
        self.born_as[file] = self._written[file]
        if (self.root / new).exists():
            content = (self.root / new).read_bytes()
            self.last_content[self._file(new, data=content)] = content
        self.note(RENAME, old, file=file, target=new)
        self._files[new] = self._files.pop(old)

    def unlinks(self, path: Any) -> None:
        name = self.name(path)
        if name is not None and Path(path).exists():
            self.note(UNLINK, name, file=self._note_writes(name) if name in self._files else -1)
            self._files.pop(name, None)

    def directory(self, kind: str, path: Any) -> None:
        name = self.name(path)
        if name is not None:
            self.note(kind, name)


Recording = Callable[[Path, Callable[[Callable[[], None]], Any]], Log]


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Do something below a directory and log it. Writes behind the computation are waited for, to be in one order."""

    def record(root: Path, act: Callable[[Callable[[], None]], Any]) -> Log:
        log = Log(root)
        real_open, real_fsync, real_submit = os.open, os.fsync, WriteBehind.submit

        def open_(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
            descriptor = real_open(path, flags, mode, **more)
            log.opened(descriptor, path, new=bool(flags & os.O_EXCL))
            return descriptor

        def fsync(descriptor: int) -> None:
            real_fsync(descriptor)
            log.synced(descriptor)

        def first(note: Callable[..., None], real: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any, **more: Any) -> None:
                note(*arguments)
                real(*arguments, **more)

            return call

        def after(kind: str, real: Callable[..., None]) -> Callable[..., None]:
            def call(path: Any, *arguments: Any, **more: Any) -> None:
                real(path, *arguments, **more)
                log.directory(kind, path)

            return call

        def submit(self: WriteBehind, owner: object, write: Callable[[], None]) -> None:
            real_submit(self, owner, write)
            self.flush(owner)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", open_)
            patch.setattr(os, "fsync", fsync)
            patch.setattr(os, "replace", first(log.renames, os.replace))
            patch.setattr(os, "unlink", first(log.unlinks, os.unlink))
            patch.setattr(os, "mkdir", after(MKDIR, os.mkdir))
            patch.setattr(os, "rmdir", after(RMDIR, os.rmdir))
            patch.setattr(WriteBehind, "submit", submit)
            act(lambda: log.note(PROMISE, ""))
        log.at_the_end = log.databases()
        return log

    return record


@dataclass(frozen=True)
class Cut:
    """The power fails after so many operations, and these are on disk."""

    log: Log
    start: Disk
    moment: int

    def is_durable(self, place: int) -> bool:
        done = self.log.operations[place]
        for later in self.log.operations[place + 1 : self.moment]:
            if done.kind == WRITE and later.kind == SYNC_FILE and later.file == done.file:
                return True
            if done.kind != WRITE and later.kind == SYNC_DIRECTORY and later.path == done.directory:
                return True
        return done.kind in {FOUND, SYNC_FILE, SYNC_DIRECTORY, PROMISE}

    @property
    def promised(self) -> bool:
        return any(operation.kind == PROMISE for operation in self.log.operations[: self.moment])

    def choices(self) -> Iterator[tuple[set[int], bool]]:
        """Which of the operations are on disk, and whether the unsynced writes among them are torn."""
        everything = set(range(self.moment))
        unsynced = [place for place in range(self.moment) if not self.is_durable(place)]
        durable = everything - set(unsynced)
        yield everything, False
        if unsynced:
            yield durable, False
            yield everything, True
        if len(unsynced) > 1:
            for place in unsynced:
                yield durable | {place}, False
                yield everything - {place}, False

    def disks(self) -> Iterator[Disk]:
        operations = self.log.operations
        lives = [operations[self.moment].before if self.moment < len(operations) else self.log.at_the_end]
        if 0 < self.moment < len(operations) and operations[self.moment - 1].target not in DATABASES:
            lives.append(operations[self.moment - 1].before)
        for chosen, torn in self.choices():
            for live in lives:
                yield self._disk(chosen, live, torn=torn)

    def _disk(self, chosen: set[int], live: Disk, *, torn: bool) -> Disk:
        """``live``: the databases. What SQLite commits is durable."""
        operations = self.log.operations
        names: dict[str, int | bytes | None] = dict(self.start)  # path → file, or its content, or None: a directory
        contents: dict[int, bytes] = {}
        replaced: dict[str, int] = {}  # the databases that were, whether it is on disk or not, and by what
        for place, operation in enumerate(operations[: self.moment]):
            if operation.kind == RENAME and operation.target in DATABASES:
                replaced[operation.target] = operation.file
            if place in chosen:
                _apply(operation, names, contents, torn=torn and not self.is_durable(place))
        disk: dict[str, bytes | None] = {}
        for path, file in names.items():
            disk[path] = contents.get(file, b"") if isinstance(file, int) else file
        for path in DATABASES:
            new = replaced.get(path)
            if new is not None and names[path] != new:
                old = names[path]
                assert isinstance(old, int)
                disk[path] = self.log.last_content[old]
            elif new is None or disk[path] == self.log.born_as[new]:
                disk |= {name: live[name] for name in (path, path + "-wal") if name in live}
        return {path: content for path, content in disk.items() if _can_be_reached(path, disk)}


def _apply(
    operation: Operation, names: dict[str, int | bytes | None], contents: dict[int, bytes], *, torn: bool
) -> None:
    match operation.kind:
        case "file" | "found":
            names[operation.path] = operation.file
            if operation.data:
                contents[operation.file] = operation.data
        case "write":
            contents[operation.file] = operation.data[: len(operation.data) // 2] if torn else operation.data
        case "rename":
            if names.get(operation.path) == operation.file:
                del names[operation.path]
            names[operation.target] = operation.file
        case "mkdir":
            names[operation.path] = None
        case "unlink" | "rmdir":
            names.pop(operation.path, None)


def _can_be_reached(path: str, disk: Disk) -> bool:
    """Files in a directory whose own name is not on disk are lost."""
    return all(str(parent) in disk and disk[str(parent)] is None for parent in list(Path(path).parents)[:-1])


def disks_of(log: Log, start: Disk) -> list[tuple[int, bool, Disk]]:
    """Every disk that a cut may leave, once: the moment, whether something was promised by then, what is there."""
    found, seen = [], set()
    for moment in range(len(log.operations) + 1):
        cut = Cut(log, start, moment)
        for disk in cut.disks():
            key = (cut.promised, frozenset(disk.items()))
            if key not in seen:
                seen.add(key)
                found.append((moment, cut.promised, disk))
    return found


def recorded(scenario: Scenario, trained: Disk, recording: Recording) -> Log:
    with scratch() as root:
        path = begin(scenario, trained, root)
        return recording(root, lambda promise: scenario.act(path, promise))


def complaints(
    scenario: Scenario, trained: Disk, log: Log, expected: Mapping[str, bytes], order: slice
) -> Iterator[str]:
    disks = disks_of(log, trained if scenario.trained else {})
    assert min(len(disks), len(log.operations)) > 30  # else too little was recorded to mean anything
    for moment, promised, disk in disks[order]:
        if wrong := complaint(disk, scenario, promised, expected):
            yield f"before {log.describe(moment)}: {wrong}"


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cut_between_writes_loses_nothing(trained: Disk, recording: Recording, name: str, every: int) -> None:
    scenario = SCENARIOS[name]
    log = recorded(scenario, trained, recording)
    found = complaints(scenario, trained, log, undisturbed(scenario, trained), slice(None, None, every))
    assert list(found) == []


def require_nothing_to_be_done_again(scenario: Scenario, trained: Disk, recording: Recording) -> None:
    log, expected = recorded(scenario, trained, recording), undisturbed(scenario, trained)
    for disk in Cut(log, trained if scenario.trained else {}, len(log.operations)).disks():
        with scratch() as root:
            lay_out(disk, root)
            assert function_files(root / "run") == expected


@pytest.mark.parametrize("name", SCENARIOS)
def test_finished_command_survives_power_cut(trained: Disk, recording: Recording, name: str) -> None:
    """The power fails after the command has ended: it need not be repeated."""
    require_nothing_to_be_done_again(SCENARIOS[name], trained, recording)


def test_deleted_model_does_not_return_after_power_cut(recording: Recording) -> None:
    """The round before the last is the last one that is dropped: nothing is written to ``models/`` afterwards."""
    plan = replace(PLAN, rounds=4)

    def train(path: Path, _: object) -> None:
        opened(path, plan).train()

    require_nothing_to_be_done_again(Scenario(False, train, train), {}, recording)


# Wrong variants


def write_without_sync(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    temporary = path.with_name(path.name + files.TEMPORARY)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    temporary.replace(path)
    files.sync_directory(path.parent)


def write_without_sync_of_the_directory(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    temporary = path.with_name(path.name + files.TEMPORARY)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_in_place(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    files.sync_directory(path.parent)


def do_not_sync(_: Path) -> None:
    pass


WRITERS = [(module, "write_durably") for module in (inbox, model_files, creation, books)]
BOOK_WRITER = [(books, "write_durably")]
WRONG = {
    "data not synced": (WRITERS, write_without_sync, "train"),
    "data of a request not synced": (WRITERS, write_without_sync, "hand in"),
    "names not synced": (WRITERS, write_without_sync_of_the_directory, "train"),
    "the name of a request not synced": (WRITERS, write_without_sync_of_the_directory, "hand in"),
    "the plan written in place": (WRITERS, write_in_place, "train"),
    "a book not synced": (BOOK_WRITER, write_without_sync, "forget"),
    "the name of a book not synced": (BOOK_WRITER, write_without_sync_of_the_directory, "forget"),
    "a database not synced": ([(database, "sync_file")], do_not_sync, "forget"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_variants_are_caught(
    trained: Disk, recording: Recording, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    places, wrong, scenario_name = WRONG[name]
    scenario = SCENARIOS[scenario_name]
    expected = undisturbed(scenario, trained)
    with monkeypatch.context() as patch:
        for module, attribute in places:
            patch.setattr(module, attribute, wrong)
        log = recorded(scenario, trained, recording)
    last_first = slice(None, None, -1)
    assert next(complaints(scenario, trained, log, expected, last_first), ""), "nothing went wrong"


# ------------------------------------------------------------------------------------------------------------- SQLite

WAL_HEADER, FRAME_HEADER, PAGE = 32, 24, 4096
FRAME = FRAME_HEADER + PAGE


@dataclass(frozen=True)
class Commit:
    """A commit that the power cut came into: the disk before it, and what it appended to which log."""

    before: Disk
    wal: str
    after: bytes
    promised: bool

    def disks(self) -> Iterator[tuple[str, Disk]]:
        old = self.before.get(self.wal) or b""
        assert self.after.startswith(old), "appended"
        assert (len(self.after) - WAL_HEADER) % FRAME == 0
        for how, log in self._logs(max(len(old), WAL_HEADER)):
            yield f"{self.wal} {how}", {**self.before, self.wal: log}

    def _logs(self, start: int) -> Iterator[tuple[str, bytes]]:
        whole = self.after
        if start == WAL_HEADER:
            yield "without a frame", whole[:WAL_HEADER]
            yield "cut in its header", whole[: WAL_HEADER // 2]
        for frame in range(start, len(whole), FRAME):
            name, end = f"frame {(frame - WAL_HEADER) // FRAME}", frame + FRAME
            yield f"cut in the header of {name}", whole[: frame + FRAME_HEADER // 2]
            yield f"cut in {name}", whole[: frame + FRAME // 2]
            yield f"cut after {name}", whole[:end]
            yield f"with {name} lost", whole[:frame] + bytes(FRAME) + whole[end:]
            for place in (frame + 2, frame + FRAME_HEADER + PAGE - 1):
                yield f"with a byte of {name} altered", _altered(whole, place)


def _altered(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


@dataclass(frozen=True)
class Folding:
    """A log that was being folded into its database: some pages are there already, one is torn."""

    before: Disk
    name: str
    after: bytes
    promised: bool

    def disks(self) -> Iterator[tuple[str, Disk]]:
        old = self.before[self.name] or b""
        length = max(len(old), len(self.after))
        old, new = old.ljust(length, b"\0"), self.after.ljust(length, b"\0")
        new = new[:18] + old[18:20] + new[20:]  # the mode is changed only after the log is gone
        for end in range(PAGE // 2, length + 1, PAGE // 2):
            yield f"{self.name} folded up to {end}", {**self.before, self.name: new[:end] + old[end:]}
            yield f"{self.name} folded from {end}", {**self.before, self.name: old[:end] + new[end:]}


Commits = Callable[[Scenario, Disk], list[Commit | Folding]]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    """All commits of a scenario, and all foldings."""

    def record(scenario: Scenario, trained: Disk) -> list[Commit | Folding]:
        found: list[Commit | Folding] = []
        promised: list[bool] = []
        with scratch() as root, monkeypatch.context() as patch:
            path = begin(scenario, trained, root)

            class Connection(sqlite3.Connection):
                file = ""

                def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                    if sql.startswith(("SELECT", "BEGIN")) or (self.in_transaction and sql != "COMMIT"):
                        return super().execute(sql, *values)
                    before = read_disk(root)
                    cursor = super().execute(sql, *values)
                    name = self.file
                    wal, log = name + "-wal", root / (name + "-wal")
                    old, new = before.get(wal) or b"", log.read_bytes() if log.exists() else b""
                    if old and not new:
                        found.append(Folding(before, name, (root / name).read_bytes(), bool(promised)))
                    elif new != old:
                        found.append(Commit(before, wal, new, bool(promised)))
                    return cursor

            def connect(place: Path, script: str = "") -> sqlite3.Connection:
                if script:  # a new database: without a plan it is not yet part of a run
                    return real_connect(place, script)
                made = sqlite3.connect(
                    place, isolation_level=None, timeout=10, check_same_thread=False, factory=Connection
                )
                made.file = str(place.relative_to(root))
                return made

            def submit(self: WriteBehind, owner: object, write: Callable[[], None]) -> None:
                real_submit(self, owner, write)
                self.flush(owner)

            real_submit, real_connect = WriteBehind.submit, connections.connect
            patch.setattr(WriteBehind, "submit", submit)
            patch.setattr(connections, "connect", connect)
            scenario.act(path, lambda: promised.append(True))
        return found

    return record


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cut_in_a_sqlite_commit_loses_nothing(trained: Disk, commits: Commits, name: str, every: int) -> None:
    scenario = SCENARIOS[name]
    expected = undisturbed(scenario, trained)
    cuts = [(how, each.promised, disk) for each in commits(scenario, trained) for how, disk in each.disks()]
    assert len(cuts) > 150
    found = [
        (how, complaint(disk, scenario, promised, expected, "power/commits")) for how, promised, disk in cuts[::every]
    ]
    assert [(how, wrong) for how, wrong in found if wrong] == []


@pytest.mark.parametrize("name", ["train", "forget"])
def test_lost_synced_commit_is_caught(trained: Disk, commits: Commits, name: str) -> None:
    """The wrong variant: a commit that was synced is gone although later ones of other databases are there."""
    scenario = SCENARIOS[name]
    expected = undisturbed(scenario, trained)
    wal = "run/uses.db-wal"
    disks = [{**each.before, wal: b""} for each in commits(scenario, trained) if each.before.get(wal)]
    assert any(complaint(disk, scenario, False, expected) for disk in disks)
