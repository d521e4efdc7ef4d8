"""The processes of a simulation end with the command, however it ends. The slow test runs a real one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedforget.errors import InvalidInput, TrainingFailed
from fedforget.federation import local_rounds
from fedforget.federation.flower import simulation as module
from fedforget.federation.flower.processes import Home, end_all, marked
from fedforget.federation.flower.simulation import Simulation
from fedforget.session.workforce import FLOWER_SIMULATION, Workforce
from fedforget.store import run_directory
from tests.cli.commandline import good, good_json

MARK = "FLWR_HOME=/nowhere/of-the-test"
SLEEPS = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('asleep', flush=True); time.sleep(60)"
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the mark that does not end when it is asked to."""
    command, variables = [sys.executable, "-c", SLEEPS], {**os.environ, "FLWR_HOME": "/nowhere/of-the-test"}
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asleep\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "in vain"
        time.sleep(0.05)


def test_processes_are_found_by_their_mark_and_ended(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedforget.federation.flower.processes._GRACE", 0.5)
    wait_for(lambda: marked(MARK) == [sleeper.pid])
    end_all(MARK)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert marked(MARK) == []


def test_a_home_that_closes_leaves_nothing() -> None:
    home = Home()
    assert home.path.exists()
    home.close()
    assert not home.path.exists()


def test_flower_that_cannot_start_is_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedforget.federation.flower.processes._program", lambda _: "/bin/false")
    homes: list[Home] = []

    def new_home() -> Home:
        homes.append(Home())
        return homes[-1]

    monkeypatch.setattr(module, "Home", new_home)
    with (
        contextlib.closing(Simulation(None, 5)) as simulation,
        pytest.raises(TrainingFailed, match="Flower's SuperLink has ended"),
    ):
        next(simulation.exchange([], iter(())), None)
    assert len(homes) == 2  # it is tried twice
    assert not any(home.path.exists() for home in homes)


def test_the_superlink_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    """Its place is taken by a program that only sleeps."""
    fake = tmp_path / "fake"
    fake.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    fake.chmod(0o700)
    program = textwrap.dedent(f"""
        from fedforget.federation.flower import processes as flower
        flower._program = lambda _: {str(fake)!r}
        flower.Home._listens = lambda self: print(self.path, flush=True) or False
        flower.Home().start_superlink(60)
    """)
    command = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    path = ""
    try:
        assert command.stdout is not None
        path = command.stdout.readline().strip()
        wait_for(lambda: len(marked(f"FLWR_HOME={path}")) == 1)
        command.kill()
        command.wait()
        wait_for(lambda: marked(f"FLWR_HOME={path}") == [])
    finally:
        command.kill()
        command.communicate()
        if path:
            end_all(f"FLWR_HOME={path}")
            shutil.rmtree(path, ignore_errors=True)


def test_a_directory_that_is_too_deep_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InvalidInput, match="too long a path for Ray's sockets") as caught:
        Home()
    assert "TMPDIR=/tmp" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_flower_that_is_not_installed_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match="Flower's simulation is not installed") as caught:
        Workforce(FLOWER_SIMULATION)
    assert "fedforget[simulation]" in caught.value.hint


def test_trainings_share_one_simulation_which_ends_with_the_block() -> None:
    with Workforce(FLOWER_SIMULATION).shared() as workforce:
        assert workforce.nodes is not None
        with workforce.shared() as again:
            assert again.nodes is workforce.nodes
    with Workforce("pool").shared() as workforce:
        assert workforce.nodes is None


# ---------------------------------------------------------------------------------------------------- a real simulation

PLAN = ("--clients", "6", "--clients-per-round", "3", "--batch-size", "3", "--local-steps", "2", "--seed", "7")
PATIENCE = 400.0  # seconds for one command; 40 are usual


def in_flower(*arguments: str | Path) -> str:
    """Run a command in its own session with a timeout; end what is left of it."""
    command = [sys.executable, "-m", "fedforget", *map(str, arguments), "--federation", "flower-simulation", "--json"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **pipes)
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)  # the command ends its simulation
        process.wait(60)
    assert process.returncode == 0, err
    return out


def simulations() -> set[str]:
    return {
        entry.split(b"=", 1)[1].decode()
        for process in Path("/proc").iterdir() if process.name.isdecimal()
        for entry in _environment(process) if entry.startswith(b"FLWR_HOME=")
    }  # fmt: skip


def _environment(process: Path) -> list[bytes]:
    with contextlib.suppress(OSError):
        return (process / "environ").read_bytes().split(b"\0")
    return []


@pytest.fixture
def own() -> Iterator[Path]:
    """A directory for temporary files with a short path: Ray puts sockets into it."""
    with tempfile.TemporaryDirectory(prefix="ff-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.mark.slow
def test_a_real_simulation_trains_and_forgets_to_the_state_of_one_process(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life with a forgotten sample and a forgotten client; its processes are gone after every command."""
    monkeypatch.setenv("TMPDIR", str(own))
    flower, inline = tmp_path / "flower", tmp_path / "inline"
    found = json.loads(in_flower("train", "--out", flower, *PLAN, "--rounds", "5", "--eval-every", "2"))
    good("train", "--out", inline, *PLAN, "--rounds", "5", "--federation", "inline", "--eval-every", "2")
    models = 5 * 3 * 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert 0.5 * models < found["bytes_up"] < 1.1 * models
    assert 0.5 * models < found["bytes_down"] < 1.3 * models
    assert good_json("state", flower) == good_json("state", inline)
    with run_directory.reading(inline) as run:
        client, sample = next((c, s) for c in run.server.roster for s in run.clients.first_steps(c))
    for target in (("--client", client, "--sample", sample), ("--client", next(c for c in range(6) if c != client))):
        receipt = json.loads(in_flower("forget", flower, *map(str, target), "--basis", "exogenous"))
        good("forget", inline, *map(str, target), "--basis", "exogenous", "--federation", "inline")
        assert receipt["receipts"][0]["state"] == "purged"
        assert good_json("state", flower) == good_json("state", inline)
    assert good_json("verify", flower, "--federation", "inline")["ok"]
    assert [home for home in simulations() if home.startswith(str(own))] == []
    assert list(own.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_flower_cannot_begin_is_an_error_with_flowers_own_words(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what `flwr run` returns: it succeeds also where the run fails."""
    monkeypatch.setattr("tempfile.tempdir", str(own))
    no_app = module.APP.replace(
        "fedforget.flower.relays:simulation_relay", "fedforget.federation.flower.processes:MARK"
    )
    monkeypatch.setattr(module, "APP", no_app)
    with (
        contextlib.closing(Simulation(1, 5)) as simulation,
        pytest.raises(TrainingFailed, match="Flower's run ended before it began") as caught,
    ):
        next(simulation.exchange([local_rounds.introduction()], iter(())))
    assert "finished:failed" in caught.value.hint
    assert list(own.iterdir()) == []
