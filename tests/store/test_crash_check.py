"""Write-ahead logs that were altered, cut or lost after a crash: refused by name, or nothing is lost."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedforget import Request
from fedforget.disk import wal
from fedforget.disk.database import Database
from fedforget.disk.lock import RunLock
from fedforget.errors import CommitsLost, FedForgetError, RunDamaged
from fedforget.health.doctor import examine
from fedforget.requests.batches import Batches
from fedforget.requests.inbox import Inbox
from fedforget.session.work import RunWork
from fedforget.store import run_directory
from fedforget.store.server_store import ServerStore
from fedforget.store.uses import Uses
from tests.helpers import function_files
from tests.requests.world import DATA, opened
from tests.tally import exhaustive, tally

DATABASES = ("server.db", "uses.db", "record.db")
TARGETS = {"sample": Request(4, 5), "client": Request(3)}


# ---------------------------------------------------------------------------------------------------- crashes to damage


def copied_after(patch: pytest.MonkeyPatch, owner: type, name: str, run: Path, copy: Path, call: int = 1) -> None:
    """Copy the run after the n-th call, as if the process were killed then, logs included."""
    calls, method = [0], getattr(owner, name)

    def spied(self: Any, *given: Any, **named: Any) -> Any:
        result = method(self, *given, **named)
        calls[0] += 1
        if calls[0] == call:
            shutil.copytree(run, copy)
            (copy / "lock").unlink(missing_ok=True)
        return result

    patch.setattr(owner, name, spied)


CRASHES: dict[str, tuple[type, str, int]] = {
    "begun": (ServerStore, "begin", 1),
    "removed": (Batches, "removed", 1),
    "recomputing": (ServerStore, "_commit", 2),
    "recomputed": (RunWork, "outcome", 1),
    "completed": (Batches, "completed", 1),
}


@pytest.fixture(scope="module", params=[(target, crash) for target in TARGETS for crash in CRASHES], ids="-".join)
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that was killed while it forgot something that was used, and what it should become."""
    target, crash = request.param
    path = tmp_path_factory.mktemp("crashed")
    run = opened(path / "run")
    run.train()
    with pytest.MonkeyPatch.context() as patch:
        owner, name, call = CRASHES[crash]
        copied_after(patch, owner, name, run.path, path / "crashed", call)
        run.forget(TARGETS[target])
    never = opened(path / "never", without=[TARGETS[target]])
    never.train()
    assert function_files(run.path) == function_files(never.path)
    return path / "crashed", TARGETS[target], function_files(never.path)


def test_intact_crashed_run_is_resumed(crashed: Any, tmp_path: Path) -> None:
    path, target, wanted = crashed
    shutil.copytree(path, tmp_path / "run")
    assert went_on(tmp_path / "run", target, wanted)


# --------------------------------------------------------------------------------------------------------------- damage


def frames(log: Path) -> Iterator[int]:
    data = log.read_bytes()
    if len(data) > 32:
        size = 24 + struct.unpack_from(">I", data, 8)[0]
        yield from range(32, len(data), size)


def flips(log: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """One bit of the header, and of the header and the page of every frame."""
    data = log.read_bytes()
    places = [5, 17, 27, *(start + offset for start in frames(log) for offset in (6, 10, 20, 1000))]
    for place in places:
        if place < len(data):
            yield f"bit flipped at {place}", lambda at=place: altered(log, at)  # type: ignore[misc]


def cuts(log: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    for place in (0, 20, *(start + offset for start in frames(log) for offset in (0, 300))):
        yield f"cut at {place}", lambda at=place: log.write_bytes(log.read_bytes()[:at])  # type: ignore[misc]
    yield "deleted", log.unlink


def altered(log: Path, place: int) -> None:
    data = bytearray(log.read_bytes())
    data[place] ^= 0x10
    log.write_bytes(bytes(data))


def logs(path: Path) -> dict[str, bytes]:
    return {name: (path / (name + wal.SUFFIX)).read_bytes() for name in DATABASES if wal.has_content(path / name)}


def went_on(path: Path, target: Request, wanted: dict[str, bytes]) -> bool:
    """Go on: refused by name (False), or finished with everything as it must be (True)."""
    run = opened(path, plan=None, seed=None)
    refusal: RunDamaged | None = None
    before, damaged = logs(path), any(wal.find_problem(path / name) for name in DATABASES)
    with contextlib.suppress(RunDamaged):
        run.status()
    assert not damaged or logs(path) == before, "who looks folds in what is damaged"
    try:
        run.train()
        run.forget(target)  # the same command again returns the existing receipt
    except RunDamaged as damaged:
        refusal = damaged
    if refusal is not None:
        assert str(path) in refusal.message
        assert refusal.hint
        assert not all(check.ok or check.name == "requests" for check in examine(path)), "the doctor notices"
        with pytest.raises(FedForgetError):  # nothing is served, and it is found again
            run.export(path.with_name("model.safetensors"))
        return False
    assert function_files(path) == wanted
    assert [receipt.state for receipt in run.receipts()] == ["purged"]
    assert run.verify().ok
    return True


@pytest.mark.parametrize("name", DATABASES)
@pytest.mark.parametrize("how", [flips, cuts])
def test_damaged_log_is_refused_or_loses_nothing(crashed: Any, tmp_path: Path, name: str, how: Any) -> None:
    path, target, wanted = crashed
    original = path / (name + wal.SUFFIX)
    if not original.is_file():
        pytest.skip(f"{name} has no log here")
    ways = list(how(original))
    tried = ways if exhaustive() else ways[:: max(1, len(ways) // 4)]
    for what, _ in tried:
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        dict(how(copy / original.name))[what]()
        try:
            went_on(copy, target, wanted)
        except AssertionError as error:
            raise AssertionError(f"{original.name}, {what}: {error}") from error
        shutil.rmtree(copy)
        tally("damage/write-ahead logs after a crash")


@pytest.mark.parametrize("crash", ["removed", "recomputing", "recomputed", "completed"])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_book_from_before_the_removal_raises_commits_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Request, crash: str
) -> None:
    """The receipt would call erased what is there again."""
    run = opened(tmp_path / "run")
    run.train()
    with run_directory.reading(run.path) as found:
        book = found.clients.books.path_of(target.client).name
    before = (run.path / book).read_bytes()
    owner, name, call = CRASHES[crash]
    copied_after(monkeypatch, owner, name, run.path, tmp_path / "crashed", call)
    run.forget(target)
    left = tmp_path / "crashed" / book
    assert left.read_bytes() != before
    left.write_bytes(before)
    again = opened(left.parent, plan=None, seed=None)
    for _ in range(2):
        with pytest.raises(CommitsLost, match="it holds data that were removed") as lost:
            again.train()
        assert str(left) in lost.value.message
    assert left.read_bytes() == before


@pytest.fixture(scope="module")
def taken_in(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that was killed when it had taken in what was handed in while it was busy, and acknowledged."""
    path = tmp_path_factory.mktemp("taken-in")
    run = opened(path / "run")
    run.train()
    with RunLock(run.path):
        for target in TARGETS.values():
            assert [receipt.state for receipt in run.forget(target, defer=True)] == ["received"]
    with pytest.MonkeyPatch.context() as patch:
        copied_after(patch, Inbox, "take_away", run.path, path / "crashed", len(TARGETS))
        run.run_pending()
    assert not list((path / "crashed").glob("inbox/*"))
    return path / "crashed"


@pytest.mark.parametrize("how", [flips, cuts])
def test_damaged_record_log_loses_no_acknowledged_request(taken_in: Path, tmp_path: Path, how: Any) -> None:
    """The first process after the crash may be a reader or a writer."""
    ways = [what for what, _ in how(taken_in / "record.db-wal")]
    for what in ways:
        for first in ("status", "run_pending"):
            copy = tmp_path / "copy"
            shutil.copytree(taken_in, copy)
            dict(how(copy / "record.db-wal"))[what]()
            run = opened(copy, plan=None, seed=None)
            try:
                getattr(run, first)()
                run.run_pending()
                assert [receipt.state for receipt in run.receipts()] == ["purged"] * len(TARGETS), what
            except RunDamaged as refusal:
                assert "record.db" in refusal.message, what  # noqa: PT017 (which of the two it is, is up to the log)
            shutil.rmtree(copy)
            tally("damage/write-ahead logs after a crash")


def test_mutant_without_checkpoint_loses_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "fold", lambda self: None)
    run = opened(tmp_path / "run")
    run.train()
    with RunLock(run.path):
        run.forget(TARGETS["client"], defer=True)
    copied_after(monkeypatch, Inbox, "take_away", run.path, tmp_path / "crashed")
    run.run_pending()
    lost = 0
    for place in frames(tmp_path / "crashed" / "record.db-wal"):
        shutil.copytree(tmp_path / "crashed", tmp_path / "copy")
        log = tmp_path / "copy" / "record.db-wal"
        log.write_bytes(log.read_bytes()[:place])
        with contextlib.suppress(RunDamaged):
            lost += opened(tmp_path / "copy", plan=None, seed=None).receipts() == []
        shutil.rmtree(tmp_path / "copy")
    assert lost


def test_logs_written_by_sqlite_have_no_problem(tmp_path: Path) -> None:
    """Also where a checkpoint has begun the log anew over older frames."""
    path = tmp_path / "a.db"
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (x)")
        for number in range(40):
            connection.execute("INSERT INTO t VALUES (?)", (bytes(number * 100),))
            assert wal.find_problem(path) is None
            if number == 25:
                connection.execute("PRAGMA wal_checkpoint(RESTART)")
        log = path.with_name("a.db-wal")
        whole = log.read_bytes()
        for start in list(frames(log))[:5]:
            log.write_bytes(whole)
            altered(log, start + 30)
            assert "damaged" in (wal.find_problem(path) or "")
        log.write_bytes(whole)
    connection.close()


# -------------------------------------------------------------------------------------------------------- lost training


def test_lost_first_uses_raise_commits_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a sample that was used would be forgotten for nothing, and stay in the model."""
    run = opened(tmp_path / "run")
    copied_after(monkeypatch, ServerStore, "_commit", run.path, tmp_path / "crashed", call=4)
    run.train()
    lost = tmp_path / "crashed" / "uses.db-wal"
    for start in list(frames(lost)):
        shutil.copytree(tmp_path / "crashed", tmp_path / "copy")
        cut = tmp_path / "copy" / "uses.db-wal"
        cut.write_bytes(cut.read_bytes()[:start])
        again = opened(tmp_path / "copy", plan=None, seed=None)
        with pytest.raises(RunDamaged, match=r"uses\.db has lost commits"):
            again.forget(Request(4, next(iter(DATA[4]))))
        with pytest.raises(RunDamaged, match=r"uses\.db has lost commits"):
            again.train()
        shutil.rmtree(tmp_path / "copy")


def test_mutant_without_crash_check_forgets_too_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(tmp_path / "run")
    copied_after(monkeypatch, ServerStore, "_commit", run.path, tmp_path / "crashed", call=4)
    run.train()
    (tmp_path / "crashed" / "uses.db-wal").unlink()
    monkeypatch.setattr("fedforget.store.crash_check.require_whole", lambda *parts: None)
    again = opened(tmp_path / "crashed", plan=None, seed=None)
    receipts = again.forget([Request(4, sample) for sample in DATA[4]])
    assert {receipt.recomputed_steps for receipt in receipts} == {0} or not again.verify().ok


def test_server_behind_its_clients_raises_commits_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(tmp_path / "run")
    copied_after(monkeypatch, ServerStore, "_commit", run.path, tmp_path / "crashed", call=4)
    run.train()
    (tmp_path / "crashed" / "server.db-wal").unlink()
    with pytest.raises(RunDamaged, match=r"server\.db has lost commits"):
        opened(tmp_path / "crashed", plan=None, seed=None).train()


def test_first_uses_one_round_ahead_of_the_commit_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the clients' first uses and the server's commit is not damage."""
    run = opened(tmp_path / "run")
    copied_after(monkeypatch, Uses, "_note", run.path, tmp_path / "crashed", call=3)
    run.train()
    again = opened(tmp_path / "crashed", plan=None, seed=None)
    again.train()
    assert function_files(again.path) == function_files(run.path)
