"""Under umask 000, nothing of a run is readable to others; exports and receipts follow the umask."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedforget.disk.lock import RunLock
from fedforget.store.names import BOOKS
from fedforget.store.run_directory import writing
from tests.cli.commandline import good, good_json, train

OTHERS = 0o077


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def readable(path: Path) -> list[str]:
    """What others may read, write or search, at or below a path."""
    return [str(each) for each in (path, *path.rglob("*")) if each.lstat().st_mode & OTHERS]


def test_no_file_of_a_run_is_readable_by_others(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run)
    assert readable(run) == []
    (receipt,) = good_json("forget", run, "--client", "1")["receipts"]
    good("forget", run, "--client", "2", "--defer")
    with RunLock(run):
        good("forget", run, "--client", "3", "--defer")
    assert (run / "inbox").is_dir()
    assert readable(run) == []
    good("receipt", "show", run, receipt["id"], "--out", tmp_path / "receipt.json")
    good("export", run, tmp_path / "model.pt")
    assert (run / "receipt-key.pub.pem").exists()
    assert readable(run) == []
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.glob("*.*")} == {"0o666"}, "as the umask says"
    good("forget", run, "--new-seed")
    assert readable(run) == []


def test_no_file_is_readable_in_a_directory_that_was_there(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    train(run)
    assert readable(run) == [str(run)], "whose mode is the user's own"


def test_logs_and_half_written_files_are_not_readable_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = tmp_path / "run", set[str]()
    real_replace, real_connect = os.replace, sqlite3.connect

    def look() -> None:
        seen.update(path.name for path in run.rglob("*"))
        assert readable(run) == [] if run.exists() else True

    def replace(*arguments: object, **options: object) -> None:
        look()
        real_replace(*arguments, **options)  # type: ignore[arg-type]

    def connect(*arguments: object, **options: object) -> sqlite3.Connection:
        made = real_connect(*arguments, **options)  # type: ignore[call-overload]
        look()
        return made

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(sqlite3, "connect", connect)
    train(run)
    with writing(run):
        look()
    assert {"record.db-wal", "server.db.tmp", "plan.toml.tmp", *(f"{book}.tmp" for book in BOOKS)} <= seen


def test_the_runs_of_the_demonstration_are_not_readable_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace  # noqa: PLC0415

    from fedforget.demo import comparison  # noqa: PLC0415

    monkeypatch.setattr(comparison, "PLAN", replace(comparison.PLAN, rounds=8))
    good("demo", "--out", tmp_path / "demo", "--federation", "inline")
    assert readable(tmp_path / "demo") == []
