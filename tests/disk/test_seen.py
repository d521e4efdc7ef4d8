"""Signatures of files: any change shows, also one that sets a time back; where that is not certain there is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fedforget.disk import seen
from fedforget.disk.door import Door
from fedforget.disk.seen import settled_signature, signature

pytestmark = pytest.mark.skipif(seen.boot() is None, reason="the system does not number its starts")


@pytest.fixture
def door(tmp_path: Path) -> Door:
    (tmp_path / "file").write_bytes(b"abc")
    return Door(tmp_path)


def test_unchanged_file_keeps_its_signature(door: Door) -> None:
    first = settled_signature(door, "file")
    assert first is not None
    (door.path / "file").read_bytes()
    assert signature(door, "file") == first


@pytest.mark.parametrize("how", ["bit", "bit and time", "copy", "rename", "permissions", "link"])
def test_changed_file_has_another_signature_at_once(door: Door, how: str) -> None:
    path = door.path / "file"
    first, times = settled_signature(door, "file"), path.stat()
    if how.startswith("bit"):
        with path.open("r+b") as file:
            file.write(b"b")
        if how == "bit and time":
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif how == "copy":
        shutil.copy2(path, door.path / "copy")
        (door.path / "copy").replace(path)
    elif how == "rename":
        path.rename(door.path / "other")
        (door.path / "other").rename(path)
    elif how == "permissions":
        path.chmod(0o600)
    else:
        os.link(path, door.path / "link")
    assert signature(door, "file") != first
    assert settled_signature(door, "file") != first


def test_file_that_just_changed_has_no_signature_yet(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second change within the same tick of the clock would look the same."""
    changed = (door.path / "file").stat().st_ctime_ns
    monkeypatch.setattr(seen, "_tick", lambda: changed)
    assert signature(door, "file") is None
    monkeypatch.setattr(seen, "_tick", lambda: changed + 1)
    assert signature(door, "file") is not None


def test_missing_file_and_system_without_starts_have_no_signature(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert signature(door, "nothing") is None
    monkeypatch.setattr(seen, "boot", lambda: None)
    assert signature(door, "file") is None
    assert settled_signature(door, "file") is None


def test_waiting_for_the_clock_does_not_poll_the_file(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that kill at every touch of the disk need a number of touches that does not depend on the time."""
    changed, looks, really = (door.path / "file").stat().st_ctime_ns, list[str](), Door.status
    ticks = iter([changed] * 5 + [changed + 1] * 5)

    def status(self: Door, name: str) -> os.stat_result | None:
        looks.append(name)
        return really(self, name)

    monkeypatch.setattr(seen, "_tick", lambda: next(ticks))
    monkeypatch.setattr(Door, "status", status)
    assert settled_signature(door, "file") is not None
    assert looks == ["file"] * 2
