"""Ctrl-C, SIGTERM, a run in use, a full disk: a clean stop, and the same command again ends where it should."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import (
    PLAN,
    WORLD,
    Child,
    Result,
    Zygote,
    call,
    copy,
    function_of,
    good,
    good_json,
    models_in,
    refused,
    state,
    wait_until,
)

LONG = (*WORLD, "--rounds", "100")


def slowly(*values: int) -> list[Any]:
    """Cases for the slow part."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained without a disturbance."""
    run = tmp_path_factory.mktemp("long") / "run"
    good("train", *LONG, "--out", run)
    return run


@pytest.fixture(scope="module")
def long_forgot(long_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forgot without a disturbance."""
    run = copy(long_run, tmp_path_factory.mktemp("long") / "run")
    good("forget", run, "--client", "1")
    return run


def require_one_clear_line(result: Result, word: str) -> None:
    assert "Traceback" not in result.err
    assert result.out == ""
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.err
    assert result.err.splitlines()[-1] == errors[0]
    assert word in errors[0]
    assert "same command again" in errors[0]


def stop_in_training(zygote: Zygote, run: Path, number: int) -> Result:
    child = zygote.start("train", *LONG, "--out", run)
    wait_until(lambda: models_in(run) > 20, "a few rounds are done")
    child.signal(number)
    return child.wait()


SIGNALS = [(signal.SIGINT, 130, "stopped"), (signal.SIGTERM, 143, "terminated")]


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_a_stop_in_training(zygote: Zygote, tmp_path: Path, long_run: Path, number: int, code: int, word: str) -> None:
    run = tmp_path / "run"
    result = stop_in_training(zygote, run, number)
    assert result.code == code, result
    require_one_clear_line(result, word)
    done = good_json("status", run)["rounds_done"]
    assert 0 < done < 100
    assert not list(run.glob("*-wal")), "what is left is at rest"
    other = tmp_path / "other"
    good("train", *LONG, "--until-round", str(done), "--out", other)
    assert state(run) == state(other), "the round that was interrupted left no trace in the state"
    assert good_json("verify", run)["ok"]
    good("train", *LONG, "--out", run)
    assert state(run) == state(long_run)
    assert function_of(run) == function_of(long_run)


@pytest.mark.parametrize(("number", "code", "word"), SIGNALS)
def test_a_stop_in_forgetting(
    zygote: Zygote, tmp_path: Path, long_run: Path, long_forgot: Path, number: int, code: int, word: str
) -> None:
    run = copy(long_run, tmp_path / "run")
    child = zygote.start("forget", run, "--client", "1")
    wait_until(lambda: models_in(run) < 70, "the run is rewound")
    wait_until(lambda: models_in(run) > 20, "a few rounds are learnt again")
    child.signal(number)
    result = child.wait()
    assert result.code == code, result
    require_one_clear_line(result, word)
    assert good_json("status", run)["pending"] is True
    for command in (("state", run), ("verify", run), ("export", run, tmp_path / "model.pt")):
        assert "finish it" in refused(12, "unfinished-request", *command)["hint"]
    (receipt,) = good_json("forget", run, "--client", "1")["receipts"]
    assert receipt["state"] == "purged"
    assert good_json("status", run)["requests"] == 1
    assert function_of(run) == function_of(long_forgot)
    assert good_json("doctor", run)["ok"]


def test_an_interrupted_request_is_finished_by_train_too(
    zygote: Zygote, tmp_path: Path, long_run: Path, long_forgot: Path
) -> None:
    run = copy(long_run, tmp_path / "run")
    child = zygote.start("forget", run, "--client", "1")
    wait_until(lambda: models_in(run) < 70, "the run is rewound")
    child.signal(signal.SIGKILL)
    assert child.wait().code == -signal.SIGKILL
    assert "interrupted" in call("doctor", run).err
    good("train", run)
    assert function_of(run) == function_of(long_forgot)
    assert good_json("status", run)["requests"] == 1


# In use


@pytest.fixture
def busy(zygote: Zygote, tmp_path: Path) -> Iterator[tuple[Path, Child]]:
    run = tmp_path / "busy"
    child = zygote.start("train", *WORLD, "--rounds", "100000", "--out", run)
    wait_until(lambda: models_in(run) > 3, "a few rounds are done")
    yield run, child
    child.signal(signal.SIGKILL)
    child.wait()


def test_commands_on_busy_run_exit_with_run_busy(busy: tuple[Path, Child]) -> None:
    run, child = busy
    for command in (
        ("train", run), ("forget", run, "--client", "1"), ("state", run), ("verify", run),
        ("train", *WORLD, "--rounds", "100000", "--out", run), ("export", run, run.parent / "model.pt"),
    ):  # fmt: skip
        error = refused(5, "run-busy", *command)
        assert str(run) in error["message"]
        assert f"process {child.pid}" in error["message"]
        assert "wait" in error["hint"]
    assert good_json("status", run)["rounds_done"] > 0, "looking is allowed"
    assert len(good_json("clients", run)["clients"]) == 6
    assert f"process {child.pid}" in call("doctor", run).err


def test_readers_do_not_disturb_the_writer(zygote: Zygote, tmp_path: Path, long_run: Path) -> None:
    run = tmp_path / "run"
    child = zygote.start("train", *LONG, "--out", run)
    wait_until(lambda: models_in(run) > 3, "a few rounds are done")
    before = 0
    while models_in(run) < 90:
        done = good_json("status", run)["rounds_done"]
        assert done >= before
        before = done
    result = child.wait()
    assert result.code == 0, result
    assert function_of(run) == function_of(long_run)


# A full disk


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of its own, small enough to fill."""
    with tempfile.TemporaryDirectory(prefix="fedforget-disk-") as name:
        mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", name]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small file system needs root")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Leave this many bytes free."""
    filler = disk / "filler"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with filler.open("wb") as file:
        file.write(bytes(max(0, free - leave)))
    return filler


@pytest.fixture
def ext4_disk(tmp_path: Path) -> Iterator[Path]:
    """ext4 with blocks of 1 KB: a page of a shared-memory file may find no room when it is touched, not before."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    image.touch()
    os.truncate(image, 6 * 2**20)
    for command in (f"mkfs.ext4 -q -F -b 1024 {image}".split(), f"mount -o loop {image} {place}".split()):
        if not shutil.which(command[0]) or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a loop device needs root, mkfs.ext4 and a kernel that has them")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("leave", [20, *slowly(0, 4, 12, 40, 80)])
def test_no_signal_on_a_disk_that_is_really_full(
    zygote: Zygote, ext4_disk: Path, trained_once: Path, leave: int
) -> None:
    """SQLite's index of a log in shared memory killed the process with SIGBUS; there is none any more."""
    run = copy(trained_once, ext4_disk / "run")
    good("forget", run, "--client", "1", "--defer")
    with contextlib.suppress(OSError), (ext4_disk / "filler").open("wb", 0) as file:
        while True:
            file.write(bytes(1024))
    os.truncate(ext4_disk / "filler", (ext4_disk / "filler").stat().st_size - leave * 1024)
    require_refused_for_space(zygote.run("run-pending", run, "--all", "--federation", "inline"))
    (ext4_disk / "filler").unlink()
    assert zygote.run("run-pending", run, "--all", "--federation", "inline").code == 0


def require_refused_for_space(result: Result) -> None:
    assert result.code == 10, result
    require_one_clear_line(result, "space")


@pytest.mark.parametrize("leave", [0, 81_920, 163_840, *slowly(4096, 40_960, 122_880, 143_360, 184_320, 204_800)])
def test_a_full_disk_in_training(small_disk: Path, trained_once: Path, leave: int) -> None:
    run, command = small_disk / "run", ("train", *PLAN, "--out", small_disk / "run")
    filler = fill(small_disk, leave)
    result = call(*command)
    require_refused_for_space(result)
    again = call(*command)
    require_refused_for_space(again)
    filler.unlink()
    good(*command)
    assert function_of(run) == function_of(trained_once)
    assert good_json("verify", run)["ok"]
    assert good_json("doctor", run)["ok"]


@pytest.mark.parametrize("leave", [0, 16_384, 81_920, *slowly(4096, 40_960, 61_440, 102_400, 122_880)])
def test_a_full_disk_in_forgetting(small_disk: Path, trained_once: Path, tmp_path: Path, leave: int) -> None:
    run, undisturbed = copy(trained_once, small_disk / "run"), copy(trained_once, tmp_path / "undisturbed")
    good("forget", undisturbed, "--client", "1")
    filler = fill(small_disk, leave)
    result = call("forget", run, "--client", "1")
    require_refused_for_space(result)
    assert call("status", run).code in {0, 10}, "looking says where it stands, or that there is no space"
    filler.unlink()
    good("forget", run, "--client", "1")
    assert good_json("status", run)["requests"] == 1
    assert function_of(run) == function_of(undisturbed)
    assert good_json("verify", run)["ok"]


@pytest.mark.parametrize("limit", [10_000, *slowly(0, 30_000, 45_000)])
def test_a_limit_on_file_sizes_in_training(zygote: Zygote, tmp_path: Path, trained_once: Path, limit: int) -> None:
    command = ("train", *PLAN, "--out", tmp_path / "run")
    result = zygote.run(*command, file_limit=limit)
    assert result.code == 10 or limit == 0, result  # with 0 it cannot even say so
    assert "Traceback" not in result.err
    good(*command)
    assert function_of(tmp_path / "run") == function_of(trained_once)


@pytest.mark.parametrize("limit", [20_000, *slowly(10_000, 45_000)])
def test_a_limit_on_file_sizes_in_forgetting(zygote: Zygote, tmp_path: Path, trained_once: Path, limit: int) -> None:
    run, undisturbed = copy(trained_once, tmp_path / "run"), copy(trained_once, tmp_path / "undisturbed")
    good("forget", undisturbed, "--client", "1")
    result = zygote.run("forget", run, "--client", "1", file_limit=limit)
    assert result.code == 10, result
    assert "Traceback" not in result.err
    good("forget", run, "--client", "1")
    assert good_json("status", run)["requests"] == 1
    assert function_of(run) == function_of(undisturbed)


def test_export_on_a_full_disk(small_disk: Path, trained_once: Path) -> None:
    fill(small_disk, 4096)
    result = call("export", trained_once, small_disk / "model.pt")
    assert result.code == 10
    assert "no space left" in result.err
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_directory_that_cannot_be_written(tmp_path: Path, trained: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    trained.chmod(0o500)
    try:
        refused(10, "storage-failed", "train", trained)
        good("status", trained)
    finally:
        trained.chmod(0o700)


def bad_checks(run: Path) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in call("doctor", run, "--json").json["checks"] if not check["ok"]}


@pytest.mark.parametrize("killed", [False, True])
def test_the_doctor_on_a_full_disk(zygote: Zygote, small_disk: Path, trained_once: Path, killed: bool) -> None:
    """Looking writes nothing, so it needs no space: no damage is seen where there is none."""
    run = copy(trained_once, small_disk / "run")
    if killed:
        assert zygote.run("forget", run, "--client", "1", kill_at=60).code == -signal.SIGKILL
    filler = fill(small_disk, 0)
    assert set(bad_checks(run)) <= {"requests"}
    filler.unlink()
    assert set(bad_checks(run)) <= {"requests"}


def test_the_doctor_where_nothing_can_be_written(small_disk: Path, trained_once: Path) -> None:
    """No process can write there, so no lock is needed."""
    run = copy(trained_once, small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert good_json("doctor", run)["ok"]
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    (run / "server.db").unlink()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert set(bad_checks(run)) == {"server.db"}
