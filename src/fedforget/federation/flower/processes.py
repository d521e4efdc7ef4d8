"""The processes of a Flower simulation: a SuperLink of our own, what it starts, and the end of them all.

Each has a mark in its environment, so that all of them are found again, also those that others of them started. If the
command is killed, Linux ends the SuperLink with it, and the relay ends the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from fedforget.errors import InvalidInput, TrainingFailed, shown
from fedforget.federation.flower.trainer import MOST_NODES

MARK = "FLWR_HOME"  # the variable whose value is the directory of one simulation
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "NO_COLOR": "1",
}
_NAME = "fedforget"  # of the connection in Flower's configuration
_GRACE = 5.0  # seconds that processes have to end
_LOOK_EVERY = 15.0  # seconds, while a run starts
_SHORT = 0.2
_LONGEST_PATH = 20  # characters of the directory for temporary files; sockets have 107 in all
_FRAMES = re.compile("[\u2500-\u257f]+")  # drawn around messages
_LAUNCH = (  # Linux ends a process whose parent has ended; the mark of it survives exec
    "import ctypes, os, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class NotStarted(Exception):
    """Flower did not start, but may start if it is tried again: what happened, and what Flower says of it."""

    def __init__(self, what: str, said: str) -> None:
        super().__init__(what)
        self.said = said


class Home:
    """A directory for everything that one simulation writes, and the processes that have it in their environment."""

    def __init__(self) -> None:
        _require_short(tempfile.gettempdir())
        self.path = Path(tempfile.mkdtemp(prefix="ff-flwr-"))
        self._port = _free_port()
        self._superlink: subprocess.Popen[bytes] | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path / "relay"))
        self._listener.listen(1)
        (self.path / "config.toml").write_text(
            f'[superlink]\ndefault = "{_NAME}"\n\n'
            f'[superlink.{_NAME}]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n'
        )

    @property
    def _environment(self) -> dict[str, str]:
        here = Path(sys.executable).parent
        return {
            **os.environ,
            **QUIET,
            MARK: str(self.path),
            "RAY_TMPDIR": str(self.path),
            "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def start_superlink(self, patience: float) -> None:
        """Start Flower's server process and wait until it listens."""
        command = [
            program("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess",
            "--host", "127.0.0.1", "--port", str(self._port),
        ]  # fmt: skip
        with (self.path / "superlink.log").open("wb") as said:
            self._superlink = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, str(os.getpid()), *command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the command, which ends them
            )
        self._wait_for(self._listens, patience, "Flower's SuperLink does not listen")

    def submit(self, app: str, processes: int | None, patience: float) -> None:
        """Submit a run of an app without code."""
        folder = self.path / "app"
        folder.mkdir()
        (folder / "pyproject.toml").write_text(app)
        cores = "" if processes is None else f" init-args-num-cpus={processes}"
        command = [
            program("flwr"), "run", str(folder), _NAME,
            "--run-config", f"socket='{self.path / 'relay'}'",
            "--federation-config", f"num-supernodes={MOST_NODES} client-resources-num-cpus=1{cores}",
        ]  # fmt: skip
        try:
            done = self._called(command, patience)
        except subprocess.TimeoutExpired as error:
            raise NotStarted("Flower did not accept a run in time", self.hint()) from error
        if done.returncode:
            said = " ".join(_FRAMES.sub(" ", done.stdout + done.stderr).split())
            raise TrainingFailed(f"Flower refused the run: {said[-400:]}", hint="see docs/flower.md")

    def accept(self, patience: float) -> Connection:
        """Return the connection of the relay, when it has started. Raise TrainingFailed if its run has failed."""
        found: list[Connection] = []
        look_at = time.monotonic() + _LOOK_EVERY

        def come() -> bool:
            nonlocal look_at
            self._listener.settimeout(_SHORT)
            with contextlib.suppress(TimeoutError):
                found.append(Connection(self._listener.accept()[0].detach()))
            if not found and time.monotonic() > look_at:
                if outcome := self.outcome():
                    raise TrainingFailed("Flower's run ended before it began", hint=outcome)
                look_at = time.monotonic() + _LOOK_EVERY
            return bool(found)

        self._wait_for(come, patience, "Flower did not start the ServerApp")
        return found[0]

    def outcome(self) -> str:
        """Return how the run has ended, from Flower itself; an empty string while it is under way."""
        command = [program("flwr"), "list", _NAME, "--format", "json"]
        with contextlib.suppress(subprocess.TimeoutExpired, OSError, ValueError, LookupError, TypeError):
            (run, *_) = json.loads(self._called(command, _LOOK_EVERY).stdout)["runs"]
            if str(run["status"]).startswith("finished"):
                return f"Flower says: {run['status']}, {run['status-details']}"
        return ""

    def hint(self) -> str:
        """Return what Flower says of the run, or else the last error in its log."""
        if outcome := self.outcome():
            return outcome
        with contextlib.suppress(OSError):
            lines = (self.path / "superlink.log").read_text(errors="replace").splitlines()
            errors = [line.strip() for line in lines if "Error" in line or "ERROR" in line]
            if errors:
                return f"Flower's log says: {errors[-1][-300:]}"
        return "Flower's log has no error"

    def _called(self, command: list[str], patience: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )

    def close(self) -> None:
        """End every process of this simulation, and remove its directory."""
        self._listener.close()
        end_all(f"{MARK}={self.path}")
        if self._superlink is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._superlink.pid, signal.SIGKILL)
            self._superlink.wait()
        shutil.rmtree(self.path, ignore_errors=True)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), _SHORT):
            return True
        return False

    def _wait_for(self, ready: Callable[[], bool], patience: float, what: str) -> None:
        until = time.monotonic() + patience
        while not ready():
            if self._superlink is not None and self._superlink.poll() is not None:
                raise NotStarted("Flower's SuperLink has ended", self.hint())
            if time.monotonic() > until:
                raise NotStarted(f"{what} within {patience:g} s", self.hint())
            time.sleep(_SHORT / 4)


def end_simulation_of_this_process() -> None:
    """End all processes of the simulation that this one belongs to: the command that started it has ended."""
    with contextlib.suppress(KeyError):
        end_all(f"{MARK}={os.environ[MARK]}")
        shutil.rmtree(os.environ[MARK], ignore_errors=True)
    os._exit(0)


def end_all(mark: str) -> None:
    """End every process but this one that has the mark in its environment, first politely."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _GRACE
        while found := marked(mark):
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, how)
            if time.monotonic() > until:
                break
            time.sleep(_SHORT / 2)
        else:
            return


def marked(mark: str) -> list[int]:
    """Return the other processes that have this in the environment they were started with; zombies have none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [process for process in found if process != os.getpid()]


def _require_short(directory: str) -> None:
    """Refuse a directory below which the paths of Ray's sockets would be too long for the system."""
    if len(directory) > _LONGEST_PATH:
        raise InvalidInput(
            f"{shown(directory)} is too long a path for Ray's sockets", hint="name a shorter directory: TMPDIR=/tmp"
        )


def program(name: str) -> str:
    """Return the path of a program, preferably that of this Python environment."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or name


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
