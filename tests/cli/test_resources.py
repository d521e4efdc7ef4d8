"""What the system refuses, in every phase: a sync, space, writing at all, open files, memory.

Each time an error of ours says so with a hint, and the same command again ends in the same bytes, with one receipt per
request. The command line shows such an error as one line; ``test_interruptions`` has that, and a disk that is full
indeed. Here it is ``Run``, and the n-th call fails, for many n.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import resource
import shutil
import sqlite3
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedforget import LocalOptimizer, Plan, Run
from fedforget.disk import connections
from fedforget.disk.write_behind import WriteBehind
from fedforget.errors import FedForgetError, StorageFailed, TrainingFailed
from fedforget.session import engine as engine_module
from fedforget.session.status import status_of
from fedforget.store import run_directory
from tests.helpers import function_files, scratch
from tests.requests.world import CLASSES, DATA, FEATURES, opened
from tests.tally import tally

pytestmark = pytest.mark.slow  # a minute of it in all

PLAN = Plan(3, 3, 2, 4, LocalOptimizer(lr=0.1, momentum=0.5), keep=2)
USED = 1

Command = Callable[[Path], Any]


def _train(path: Path) -> None:
    opened(path, PLAN).train()


def _forget(path: Path) -> None:
    opened(path, None).forget(client=USED)


COMMANDS: dict[str, Command] = {"train": _train, "forget": _forget}


@dataclass(frozen=True)
class Work:
    """A command, the run to begin with (None: none), and what must come out."""

    start: Path | None
    command: Command
    function: Mapping[str, bytes]
    requests: int

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Path]:
        with scratch() as root:
            if self.start is not None:
                shutil.copytree(self.start, root / "run")
            yield root / "run"

    def complaint(self, path: Path, failure: BaseException | None) -> str:
        """What is wrong with how it ended, or after the same command again; empty if nothing is."""
        if failure is not None and not isinstance(failure, FedForgetError):
            return f"{type(failure).__name__}: {failure}"
        if isinstance(failure, FedForgetError) and not failure.hint:
            return f"no hint: {failure}"
        if failure is not None:
            try:
                self.command(path)
            except FedForgetError as error:
                return f"after {failure}: {error}"
        if function_files(path) != self.function:
            return f"another function after {failure}"
        with run_directory.reading(path, only_idle=False) as run:
            status = status_of(run)
        if status.pending or status.requests != self.requests:
            return f"{status.requests} requests, pending: {status.pending}"
        return ""


@pytest.fixture(scope="module")
def works() -> Iterator[dict[str, Work]]:
    with scratch() as root:
        _train(root / "trained")
        shutil.copytree(root / "trained", root / "forgot")
        _forget(root / "forgot")
        yield {
            "train": Work(None, _train, function_files(root / "trained"), 0),
            "forget": Work(root / "trained", _forget, function_files(root / "forgot"), 1),
        }


# ------------------------------------------------------------------------------------------------ the n-th call fails


@dataclass
class Trouble:
    """From the n-th call of these kinds on, or at the n-th only, the system refuses."""

    number: int
    text: str  # SQLite's words for it
    kinds: frozenset[str]
    lasting: bool
    first: int = 0
    calls: list[str] = field(default_factory=list)

    def meet(self, kind: str) -> bool:
        if kind not in self.kinds or not self.first:
            return False
        self.calls.append(kind)
        return len(self.calls) >= self.first if self.lasting else len(self.calls) == self.first

    def raise_at(self, kind: str) -> None:
        if self.meet(kind):
            raise OSError(self.number, os.strerror(self.number))


NAMES = frozenset({"open", "replace", "mkdir", "rmdir"})
READ_ONLY = "attempt to write a readonly database"
TROUBLES = {
    "sync error": (errno.EIO, "disk I/O error", frozenset({"fsync", "commit"}), False),
    "lasting sync error": (errno.EIO, "disk I/O error", frozenset({"fsync", "commit"}), True),
    "disk full": (
        errno.ENOSPC, "database or disk is full", frozenset({"open", "write", "fsync", "mkdir", "sql", "commit"}), True,
    ),
    "no new files": (errno.EROFS, READ_ONLY, NAMES | {"sql", "commit"}, True),
    "one name refused": (errno.EACCES, "", NAMES, False),
    "one unlink refused": (errno.EACCES, "", frozenset({"unlink"}), False),
    "read-only": (errno.EROFS, READ_ONLY, NAMES | {"unlink", "sql", "commit"}, True),
}  # fmt: skip
SOUND = ("sync error", "lasting sync error", "disk full", "no new files", "one name refused")


class HalfWritten:
    """A file that takes only half of what is written, if there is trouble."""

    def __init__(self, file: Any, trouble: Trouble) -> None:
        self._file, self._trouble = file, trouble

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> None:
        if self._trouble.meet("write"):
            self._file.write(data[: len(data) // 2])
            raise OSError(self._trouble.number, os.strerror(self._trouble.number))
        self._file.write(data)


def connecting(trouble: Trouble) -> Callable[[Path], sqlite3.Connection]:
    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "COMMIT" or sql.startswith(("PRAGMA journal_mode", "PRAGMA wal_checkpoint", "VACUUM")):
                self._meet("commit")
            elif not sql.startswith(("SELECT", "ROLLBACK", "PRAGMA")):
                self._meet("sql")
            return super().execute(sql, *values)

        def _meet(self, kind: str) -> None:
            if trouble.meet(kind):
                raise sqlite3.OperationalError(trouble.text)

    def connect(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False, factory=Connection)

    return connect


@contextlib.contextmanager
def in_trouble(trouble: Trouble, root: Path) -> Iterator[None]:
    """Calls that concern the files below ``root``."""

    def refusing(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **more: Any) -> Any:
            inside = Path(f"/proc/self/fd/{more['dir_fd']}").resolve() if "dir_fd" in more else Path()
            ours = kind == "fsync" or (inside / os.fspath(path)).is_relative_to(root)
            writes = kind != "open" or bool(arguments[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if ours and writes:
                trouble.raise_at(kind)
            return real(path, *arguments, **more)

        return call

    real_fdopen = os.fdopen
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "fsync", "replace", "unlink", "mkdir", "rmdir"):
            patch.setattr(os, name, refusing(name, getattr(os, name)))
        patch.setattr(os, "fdopen", lambda *arguments: HalfWritten(real_fdopen(*arguments), trouble))
        patch.setattr(connections, "_opened", connecting(trouble))
        yield


def complaints(work: Work, kind: str, every: int) -> list[str]:
    """Where every ``every``-th call fails, or from there on all do."""
    found, first = [], 1
    while True:
        trouble = Trouble(*TROUBLES[kind], first=first)
        failure: BaseException | None = None
        with work.fresh() as path:
            with in_trouble(trouble, path.parent):
                try:
                    work.command(path)
                except Exception as error:  # noqa: BLE001 (whatever comes is told)
                    failure = error
            if len(trouble.calls) < first:
                break
            if wrong := work.complaint(path, failure):
                found.append(f"call {first} ({trouble.calls[first - 1]}): {wrong}")
            else:
                tally(f"refusals/{kind}")
        first += every
    assert first > 5
    return found


SHORT = ("sync error", "lasting sync error", "one name refused")  # few enough calls to try each
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        *((kind, 9) for kind in SOUND),
        ("one unlink refused", 1),
        *(pytest.param(kind, 1 if kind in SHORT else 2, marks=SLOW) for kind in SOUND),
        pytest.param("read-only", 2, marks=SLOW),
    ],
)
@pytest.mark.parametrize("name", COMMANDS)
def test_refused_system_call_is_reported(works: dict[str, Work], name: str, kind: str, every: int) -> None:
    assert complaints(works[name], kind, every) == []


def test_swallowed_failure_is_caught(works: dict[str, Work], monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the write-behind queue continues after a failure and reports nothing."""

    def quietly(self: WriteBehind, write: Callable[[], None]) -> None:
        self._writer = threading.get_ident()
        with contextlib.suppress(FedForgetError):
            write()

    monkeypatch.setattr(WriteBehind, "_write", quietly)
    assert complaints(works["train"], "sync error", 3)


# -------------------------------------------------------------------------------------------------- limits in a child


@dataclass(frozen=True)
class Ended:
    """How a command ended in a process of its own."""

    kind: str  # empty: well
    ours: bool = True
    hint: str = ""
    text: str = ""


def in_a_child(action: Callable[[], Any]) -> Ended:
    """Fork, act, and tell how it ended."""
    inside, outside = os.pipe()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)
        child = os.fork()
    if child == 0:
        ended = Ended("")
        try:
            action()
        except BaseException as error:  # noqa: BLE001 (told to the parent)
            hint = error.hint if isinstance(error, FedForgetError) else ""
            ended = Ended(type(error).__name__, isinstance(error, FedForgetError), hint, str(error))
        os.write(outside, pickle.dumps(ended))
        os._exit(0)
    os.close(outside)
    with os.fdopen(inside, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(told) if told else Ended("death", ours=False)


# Open files


def limit_open_files(more: int) -> None:
    """Only so many more than are open now."""
    highest = max(int(name.name) for name in Path("/proc/self/fd").iterdir())
    while os.open(os.devnull, os.O_RDONLY) <= highest:
        pass  # fills the gaps
    limit = highest + 2 + more
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _train_pooled(path: Path) -> None:
    opened(path, PLAN, federation="pool", workers=2).train()


def _forget_pooled(path: Path) -> None:
    opened(path, None, federation="pool", workers=2).forget(client=USED)


POOLED: dict[str, Command] = {"train": _train_pooled, "forget": _forget_pooled}


def with_few_open_files(work: Work, command: Command, every: int) -> Iterator[tuple[int, Ended, str]]:
    """With 0 and more, until it is enough: how it ended, and what is wrong after the same command again."""
    for more in range(0, 100, every):
        with work.fresh() as path:

            def limited(path: Path = path, more: int = more) -> None:
                limit_open_files(more)
                command(path)

            ended = in_a_child(limited)
            if not ended.kind:
                return
            yield more, ended, work.complaint(path, StorageFailed(ended.text, hint="-"))
    raise AssertionError("it is never enough")


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=SLOW)])
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_too_few_open_files(
    works: dict[str, Work], capfd: pytest.CaptureFixture[str], name: str, federation: str, every: int
) -> None:
    """Done or untouched: the same command again, without the limit, ends where it should."""
    command = (COMMANDS if federation == "inline" else POOLED)[name]
    found = list(with_few_open_files(works[name], command, every))
    assert len(found) > 2
    assert [(more, wrong) for more, _, wrong in found if wrong] == []
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_too_few_open_files_are_reported_as_such(works: dict[str, Work], name: str, federation: str) -> None:
    command = (COMMANDS if federation == "inline" else POOLED)[name]
    for more, ended, _ in with_few_open_files(works[name], command, 1):
        assert ended.ours, (more, ended)
        assert ended.hint, (more, ended)
        assert ended.kind != "RunDamaged", (more, ended)


# Memory


class Hungry(nn.Module):
    """Asks for a quarter of a gigabyte with every batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        asked_for = torch.empty(2**26)
        output: torch.Tensor = self.layer(x) + asked_for[:0].sum()
        return output


def hungry(path: Path, plan: Plan | None) -> Run:
    return Run(path, plan, model=Hungry(), data=DATA, seed=1, federation="pool", workers=2)


HUNGRY: dict[str, Command] = {
    "train": lambda path: hungry(path, PLAN).train(),
    "forget": lambda path: hungry(path, None).forget(client=USED),
}


def limit_memory(more: int) -> None:
    """Only so many bytes more than are mapped now."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _scarce() -> None:
    torch.set_num_threads(1)
    limit_memory(2**24)


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are Linux's")
@pytest.mark.parametrize("name", COMMANDS)
def test_too_little_memory_in_a_worker(
    scratch_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start, undisturbed = scratch_path / "start", scratch_path / "undisturbed"
    if name == "forget":
        HUNGRY["train"](start)
        shutil.copytree(start, undisturbed)
    HUNGRY[name](undisturbed)
    work = Work(
        start if start.exists() else None, HUNGRY[name], function_files(undisturbed), 1 if name == "forget" else 0
    )
    with work.fresh() as path:

        def limited() -> None:
            monkeypatch.setattr(engine_module, "_one_thread", _scarce)  # in the child only
            work.command(path)

        ended = in_a_child(limited)
        assert ended.kind == TrainingFailed.__name__
        assert "memory" in ended.text
        assert "same command again" in ended.hint
        assert "Traceback" not in capfd.readouterr().err
        assert work.complaint(path, TrainingFailed(ended.text, hint=ended.hint)) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are Linux's")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_too_little_memory_for_the_run(works: dict[str, Work], name: str, federation: str) -> None:
    """SQLite cannot map its index: an error of ours, or it was enough."""
    work, command = works[name], (COMMANDS if federation == "inline" else POOLED)[name]
    for more in (0, 2**15, 2**16):
        with work.fresh() as path:

            def limited(path: Path = path, more: int = more) -> None:
                limit_memory(more)
                command(path)

            ended = in_a_child(limited)
            assert ended.ours, ended
            assert bool(ended.hint) == bool(ended.kind)
            assert work.complaint(path, StorageFailed(ended.text, hint="-") if ended.kind else None) == ""
