"""Files that are not read as a whole again, because the file system says that they have not changed."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedforget import Policy, Request, Run
from fedforget.disk import read_only, seen
from fedforget.disk.door import Door
from fedforget.disk.seen import settled_signature
from fedforget.errors import RunDamaged
from fedforget.health.doctor import examine
from fedforget.store import run_directory
from fedforget.store.names import BOOKS, BROKEN_SEALS, METRICS, RECORD
from fedforget.store.seals import SEALED, Seals
from tests.requests.world import opened

DATABASES = set(SEALED) - set(BOOKS)

pytestmark = pytest.mark.skipif(seen.boot() is None, reason="the system does not number its starts")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = opened(tmp_path / "run")
    made.train(2)
    made.forget(Request(3, 1), defer=True)
    return made


@pytest.fixture
def read_whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the databases that are read as a whole."""
    names, real = list[str](), read_only._check_content

    def check(path: Path, *rest: object) -> None:
        names.append(path.name)
        real(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(read_only, "_check_content", check)
    return names


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with path.open("r+b") as file:
        file.write(data)


def hide(run: Path, name: str) -> None:
    """As if the file system had not noticed the last change of a file."""
    seals = Seals(run).all()
    seals[name] = replace(seals[name], seen=settled_signature(Door(run), name))
    Seals(run).set(seals)


def test_run_that_did_not_change_is_not_read_as_a_whole(run: Run, read_whole: list[str]) -> None:
    run.status()
    run.forget(Request(2, 1), defer=True)
    run.state_digest()
    run.forget(Request(1, 1), basis="exogenous")
    assert read_whole == []
    with run_directory.reading(run.path) as found:
        found.clients.sizes()
    assert read_whole == []


def test_run_at_work_is_described_without_reading_unchanged_files_as_a_whole(run: Run, read_whole: list[str]) -> None:
    """The process at work has moved the seals aside; its commits are in logs."""
    with run_directory.writing(run.path) as writer:
        writer.record.set_policy(Policy())
        read_whole.clear()
        assert run.status().clients == 5
        assert run.forget(Request(2, 1), defer=True)[0].state == "received"
        assert read_whole == []
        (run.path / BROKEN_SEALS).write_bytes(b"damaged")
        assert run.status().clients == 5
        assert set(read_whole) == DATABASES


def test_run_at_work_has_a_rewritten_file_read_as_a_whole(run: Run, read_whole: list[str]) -> None:
    with run_directory.writing(run.path) as writer:
        writer.record.set_policy(Policy())
        (run.path / METRICS).write_bytes((run.path / METRICS).read_bytes())
        read_whole.clear()
        run.status()
        assert read_whole == [METRICS]


def test_copy_is_read_as_a_whole_and_once_by_a_writer(run: Run, tmp_path: Path, read_whole: list[str]) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    again = opened(copy, plan=None, seed=None)
    read_whole.clear()
    with run_directory.reading(copy) as found:
        found.clients.sizes()
    assert set(read_whole) == DATABASES
    again.forget(Request(2, 1), defer=True)
    read_whole.clear()
    again.forget(Request(2, 2), defer=True)
    assert read_whole == []
    again.status()
    assert read_whole == []


def test_restart_of_the_system_has_everything_read(
    run: Run, monkeypatch: pytest.MonkeyPatch, read_whole: list[str]
) -> None:
    monkeypatch.setattr("fedforget.store.seals.boot", lambda: "another")
    with run_directory.reading(run.path) as found:
        found.clients.sizes()
    assert set(read_whole) == DATABASES


@pytest.mark.parametrize("who", ["another owner", "the group may write", "all may write"])
def test_seals_that_another_account_can_have_written_have_everything_read(
    run: Run, monkeypatch: pytest.MonkeyPatch, read_whole: list[str], who: str
) -> None:
    """Every account of this system can note the signature of a file that they made."""
    if who == "another owner":
        account = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: account + 1)
    else:
        (run.path / "seals").chmod(0o620 if "group" in who else 0o602)
    with run_directory.reading(run.path) as found:
        found.clients.sizes()
    assert set(read_whole) == DATABASES


@pytest.mark.parametrize("name", SEALED)
def test_damage_is_found_at_once_although_its_time_is_set_back(run: Run, name: str) -> None:
    path = run.path / name
    times = path.stat()
    flip(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(RunDamaged, match=f"{name} is damaged"), run_directory.reading(run.path) as found:
        found.clients.sizes()


@pytest.mark.parametrize("name", SEALED)
def test_damage_that_the_file_system_does_not_notice_is_found_by_doctor_and_verify(run: Run, name: str) -> None:
    flip(run.path / name)
    hide(run.path, name)
    assert name in {check.name for check in examine(run.path) if not check.ok}
    with pytest.raises(RunDamaged, match=f"{name} is damaged"):
        run.verify()


def test_sealing_does_not_vouch_for_a_damaged_file_that_nothing_read(run: Run) -> None:
    """A signature is noted for what was read or written, not for what is there."""
    with run_directory.reading(run.path) as found:
        name = found.clients.books.path_of(0).name
        assert name != found.clients.books.path_of(2).name
    flip(run.path / name)
    run.forget(Request(2, 1), defer=True)
    with pytest.raises(RunDamaged, match=f"{name} is damaged"), run_directory.reading(run.path) as found:
        found.clients.samples(0)


def test_older_record_keys_or_seals_alone_are_refused(run: Run, tmp_path: Path) -> None:
    before = Path(shutil.copytree(run.path, tmp_path / "before"))
    run.run_pending()
    after = Path(shutil.copytree(run.path, tmp_path / "after"))
    for name in (RECORD, "record.keys", "seals"):
        shutil.copytree(after, tmp_path / name)
        shutil.copy(before / name, tmp_path / name / name)
        older = opened(tmp_path / name, plan=None, seed=None)
        with pytest.raises(RunDamaged):
            older.forget(Request(2, 1))
        assert not all(check.ok for check in examine(tmp_path / name)), name
