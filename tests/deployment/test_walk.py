"""The walk through a deployment in docs/flower.md runs as it is written, but for the ports."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.deployment.superlink import BIN, Deployment, deployment, free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "flower.md"


def lines_of_the_walk() -> str:
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("### On one machine, from the beginning\n")[2].partition("\n### ")[0]
    return "".join(line[4:] + "\n" for line in section.splitlines() if line.startswith("    "))


def test_walk_names_every_step() -> None:
    walk = lines_of_the_walk()
    for step in (
        "openssl", "ssh-keygen", "[superlink.home]", "supernode register", "client init", "enroll", "train",
        "client forget", "client sync", "run-pending", "forget run", "verify", "receipt show", "client receipt",
        "superlink-purge",
    ):  # fmt: skip
        assert step in walk


@pytest.mark.slow
def test_walk_runs_as_it_is_written() -> None:
    with deployment() as there:
        ports = {"8000": str(free_port()), "910$k": f"{free_port()}"}
        walk = lines_of_the_walk().replace("127.0.0.1:8000", f"127.0.0.1:{ports['8000']}")
        walk = walk.replace("--port 8000", f"--port {ports['8000']}")
        walk = walk.replace("--port 910$k", f"--port $(({free_port()} + k))")
        done = run(there, walk)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        assert "purged" in done.stdout


def run(there: Deployment, script: str) -> subprocess.CompletedProcess[str]:
    """Every process keeps the mark of the deployment: its home is the one that the walk sets."""
    there.folder.joinpath("flwr").mkdir(exist_ok=True)
    script = script.replace("FLWR_HOME=$PWD/flwr", f"FLWR_HOME={there.folder}").replace('mkdir "$FLWR_HOME"', "true")
    return subprocess.run(
        ["bash", "-e", "-c", script], env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        cwd=there.folder, capture_output=True, text=True, timeout=1500, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
