"""The run directory of a run whose clients are on other machines: read through the door, whole or refused by name."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fedforget import Request
from fedforget.errors import FedForgetError, RunDamaged
from fedforget.health.doctor import examine
from fedforget.store import run_directory
from fedforget.store.state_digest import state_digest
from tests.helpers import take_off_seals
from tests.session.deployed import Deployed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = Deployed(tmp_path_factory.mktemp("remote") / "run")
    there.train(2)
    there.silence(3)
    with run_directory.writing(there.path) as run:
        run.remote.contacts.fell_silent(3, 3)
        run.remote.contacts.undelivered.add("gone")
        run.remote.contacts.asked(4, "a" * 32, "withdrawal")
    return there.path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def altered(run: Path, name: str, sql: str) -> None:
    take_off_seals(run)
    with contextlib.closing(sqlite3.connect(run / name)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(sql)


def refusal(run: Path) -> str:
    with pytest.raises(FedForgetError) as refused, run_directory.reading(run):
        pass
    return refused.value.message


def test_doctor_finds_every_file_whole(run: Path) -> None:
    checks = {check.name: check for check in examine(run)}
    assert [check.name for check in checks.values() if not check.ok] == []
    assert checks["contacts.db"].ok
    assert not any(name.endswith(".book") or name == "uses.db" for name in checks)


def test_equal_content_is_equal_bytes(run: Path) -> None:
    before = (run / "contacts.db").read_bytes()
    with run_directory.writing(run) as opened:
        opened.remote.contacts.undelivered.add("passing")
    assert (run / "contacts.db").read_bytes() != before
    with run_directory.writing(run) as opened:
        opened.remote.contacts.undelivered.discard("passing")
    assert (run / "contacts.db").read_bytes() == before
    assert b"passing" not in b"".join(path.read_bytes() for path in run.iterdir() if path.is_file())


BAD = [
    ("contacts.db", "UPDATE epoch SET epoch = -1"),
    ("contacts.db", "UPDATE epoch SET epoch = 'soon'"),
    ("contacts.db", "DELETE FROM epoch"),
    ("contacts.db", "UPDATE enrolled SET public_key = x'00'"),
    ("contacts.db", "UPDATE enrolled SET commitment = 'text'"),
    ("contacts.db", "UPDATE enrolled SET root = zeroblob(31)"),
    ("contacts.db", "UPDATE enrolled SET time = 'yesterday'"),
    ("contacts.db", "UPDATE enrolled SET joins = 2"),
    ("contacts.db", "UPDATE nodes SET node = '-1'"),
    ("contacts.db", "UPDATE nodes SET node = '1; DROP'"),
    ("contacts.db", "UPDATE nodes SET client = '3' WHERE client = 3"),
    ("contacts.db", "UPDATE untold SET kind = 'all'"),
    ("contacts.db", "UPDATE silent SET since = 'long'"),
    ("contacts.db", "UPDATE silent SET round = -3"),
    ("contacts.db", "CREATE TABLE more (x)"),
    ("contacts.db", "CREATE TRIGGER t AFTER INSERT ON nodes BEGIN DELETE FROM enrolled; END"),
    ("server.db", "UPDATE held SET root = x'00' WHERE client = 3"),
    ("server.db", "UPDATE held SET notes = NULL WHERE client = 3"),
    ("server.db", "DELETE FROM held WHERE client = 3"),
    ("server.db", "UPDATE held SET client = 99 WHERE client = 3"),
    ("server.db", "DROP TABLE held"),
]


@pytest.mark.parametrize(("name", "sql"), BAD)
def test_impossible_content_is_refused_with_the_name_of_its_file(run: Path, name: str, sql: str) -> None:
    with contextlib.suppress(sqlite3.IntegrityError):
        altered(run, name, sql)
        assert str(run / name) in refusal(run)
        return
    pytest.skip("SQLite itself refuses this value")


@pytest.mark.parametrize("name", ["contacts.db", "server.db"])
def test_byte_that_flipped_is_not_as_sealed(run: Path, name: str) -> None:
    data = bytearray((run / name).read_bytes())
    data[-1] ^= 1
    (run / name).write_bytes(data)
    assert refusal(run) == f"{run / name} is damaged: it is not what it was when the run was last closed"


STRANGE: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "pipe": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "empty": lambda path: path.touch(),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_strange_file_in_the_place_of_the_contacts_is_refused(run: Path, kind: str) -> None:
    (run / "contacts.db").unlink()
    STRANGE[kind](run / "contacts.db")
    assert "contacts.db" in refusal(run)


def test_lost_contacts_are_no_run_with_books(run: Path) -> None:
    (run / "contacts.db").unlink()
    assert "seals" in refusal(run)
    take_off_seals(run)
    assert "server.db" in refusal(run)
    failed = {check.name for check in examine(run) if not check.ok}
    assert "server.db" in failed


def test_older_digests_beside_newer_rounds_are_noticed_by_their_seal(made: Path, tmp_path: Path) -> None:
    """The digests are in the same file as the rounds, so no older one can stand beside them."""
    with run_directory.reading(made) as run:
        before = state_digest(run)
        assert set(run.remote.held.all()) == set(run.server.roster)
    run_copy = Path(shutil.copytree(made, tmp_path / "copy"))
    with run_directory.writing(run_copy) as opened:
        opened.remote.held.hear(3, (bytes(32), bytes(32)))
        opened.server.rewind(opened.server.rounds_done, ())
    with run_directory.reading(run_copy) as run:
        assert state_digest(run) != before


def test_erased_client_leaves_no_trace_in_any_file(tmp_path: Path) -> None:
    there = Deployed(tmp_path / "run")
    there.train(3)
    key = there.keys[3].public_key().public_bytes_raw()
    node = str(there.node_of(3)).encode()
    assert any(key in path.read_bytes() for path in there.path.iterdir() if path.is_file())
    there.forget(Request(3))
    files = [path for path in there.path.rglob("*") if path.is_file()]
    assert not any(key in path.read_bytes() for path in files)
    assert node not in (there.path / "contacts.db").read_bytes()


def test_damage_is_an_error_and_never_an_empty_run(run: Path) -> None:
    take_off_seals(run)
    (run / "contacts.db").write_bytes((run / "contacts.db").read_bytes()[:4096])
    with pytest.raises(RunDamaged), run_directory.reading(run):
        pass
