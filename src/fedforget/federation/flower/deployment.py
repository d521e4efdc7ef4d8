"""Reaching the clients of a deployment from a command: a run of Flower whose ServerApp hands on parcels.

The command submits an app without code to a SuperLink that the user's Flower configuration names. What computes is on
the nodes: the ClientApp of FedForget, or the one of the user's own app.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from fedforget.errors import InvalidInput, TrainingFailed, quoted
from fedforget.federation.flower.app_text import app_text
from fedforget.federation.post_relay import RelayedPost

PREFIX = "flower:"
_START = 180.0  # seconds that Flower has to start the ServerApp
_SUBMIT = 120.0
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
APP = app_text(
    "fedforget-deployment",
    "Hands parcels on to the clients of a deployment",
    dependency="flwr",
    serverapp="deployment_relay",
)


def superlink_of(federation: str | None) -> str | None:
    """Return the name of the SuperLink in ``flower:NAME``; None for any other federation."""
    if federation is None or not federation.startswith(PREFIX):
        return None
    name = federation.removeprefix(PREFIX)
    if not name:
        raise InvalidInput("--federation flower: lacks a name", hint="name a SuperLink of Flower's configuration")
    return name


@contextlib.contextmanager
def deployed(superlink: str, patience: float = _START) -> Iterator[RelayedPost]:
    """Start a run of Flower, and yield the post that reaches its nodes. The run ends with the block."""
    if importlib.util.find_spec("flwr") is None:
        raise InvalidInput("Flower is not installed", hint="pip install 'fedforget[flower]'")
    folder = Path(tempfile.mkdtemp(prefix="ff-flwr-"))  # short: a socket's name is
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(folder / "relay"))
            listener.listen(1)
            _submit(folder, superlink)
            with contextlib.closing(_accepted(listener, superlink, patience)) as connection:
                _require_ready(connection, patience)
                yield RelayedPost(connection)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _submit(folder: Path, superlink: str) -> None:
    app = folder / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(APP)
    beside = Path(sys.executable).with_name("flwr")
    command = [
        str(beside) if beside.exists() else shutil.which("flwr") or "flwr",
        "run", str(app), superlink, "--run-config", f"socket='{folder / 'relay'}'",
    ]  # fmt: skip
    environment = {**os.environ, **_QUIET}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SUBMIT,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise TrainingFailed(
            f"the SuperLink {quoted(superlink)} did not accept a run within {_SUBMIT:g} s", hint="see its log"
        ) from error
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())[-400:]
        raise TrainingFailed(
            f"Flower did not accept a run on the SuperLink {quoted(superlink)}: {said}",
            hint="start it, and name it in Flower's configuration; see docs/flower.md",
        )


def _accepted(listener: socket.socket, superlink: str, patience: float) -> Connection:
    listener.settimeout(patience)
    try:
        return Connection(listener.accept()[0].detach())
    except TimeoutError as error:
        raise TrainingFailed(
            f"the SuperLink {quoted(superlink)} did not start the ServerApp within {patience:g} s",
            hint="give this command on the SuperLink's machine, where FedForget is installed too, and see its log",
        ) from error


def _require_ready(connection: Connection, patience: float) -> None:
    with contextlib.suppress(OSError, EOFError):
        if connection.poll(patience) and connection.recv() == "ready":
            return
    raise TrainingFailed("Flower's ServerApp has ended at its start", hint="see the SuperLink's log")
