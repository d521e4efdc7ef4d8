"""A real Flower deployment on this machine's loopback: SuperLink, SuperNodes, TLS and node authentication.

Every process has a mark in its environment and is ended with the block, whatever happens.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
NAME = "there"  # of the SuperLink in Flower's configuration
FAULTY = Path(__file__).with_name("faulty")  # makes the processes of nodes misbehave
_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0", "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip
_END_WITH_PARENT = (  # Linux ends the process if this one is killed
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9) if sys.platform == 'linux' else None; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Deployment:
    """The processes of a deployment. ``folder`` holds everything that Flower writes."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ff-dep-"))
        self.port = free_port()
        self._ports: dict[str, int] = {}
        self.superlink: subprocess.Popen[bytes] | None = None
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        (self.folder / "tmp").mkdir()
        self._certificates()
        (self.folder / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder / "ca.crt"}"\n'
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **_SETTINGS,
            "FLWR_HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def _certificates(self) -> None:
        """A certificate authority of our own, and a certificate for 127.0.0.1."""
        key, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)

        def name(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        def made(subject: str, public: ec.EllipticCurvePublicKey, *, authority: bool) -> x509.Certificate:
            builder = (
                x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name("ff-ca")).public_key(public)
                .serial_number(x509.random_serial_number()).not_valid_before(now - dt.timedelta(days=1))
                .not_valid_after(now + dt.timedelta(days=2))
                .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            )  # fmt: skip
            if not authority:
                alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
                builder = builder.add_extension(alternative, critical=False)
            return builder.sign(key, hashes.SHA256())

        pem = serialization.Encoding.PEM
        (self.folder / "ca.crt").write_bytes(made("ff-ca", key.public_key(), authority=True).public_bytes(pem))
        (self.folder / "server.pem").write_bytes(made("ff", server.public_key(), authority=False).public_bytes(pem))
        (self.folder / "server.key").write_bytes(
            server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )

    # Processes

    def start_superlink(self) -> None:
        self.superlink = self._started(
            "superlink",
            "flower-superlink", "--ssl-ca-certfile", str(self.folder / "ca.crt"),
            "--ssl-certfile", str(self.folder / "server.pem"), "--ssl-keyfile", str(self.folder / "server.key"),
            "--enable-supernode-auth", "--host", "127.0.0.1", "--port", str(self.port),
            "--database", str(self.folder / "state.db"),
        )  # fmt: skip
        wait_for(self._listens, 180)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
            return True
        return False

    def register(self, node: str) -> None:
        """Make a key for a node, and register its public half."""
        private = ec.generate_private_key(ec.SECP384R1())
        openssh = serialization.PublicFormat.OpenSSH
        (self.folder / node).write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            )
        )
        (self.folder / f"{node}.pub").write_bytes(
            private.public_key().public_bytes(serialization.Encoding.OpenSSH, openssh) + b"\n"
        )
        done = self.flwr("supernode", "register", str(self.folder / f"{node}.pub"), NAME)
        assert done.returncode == 0, done.stdout + done.stderr

    def make_key(self, node: str) -> None:
        """Make a key, and do not register it."""
        private = ec.generate_private_key(ec.SECP384R1())
        (self.folder / node).write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            )
        )

    def start_node(self, node: str, state_dir: Path) -> subprocess.Popen[bytes]:
        self._ports[node] = self._ports.get(node) or free_port()
        path = os.pathsep.join(filter(None, (str(FAULTY), os.environ.get("PYTHONPATH"))))
        self.nodes[node] = self._started(
            node,
            "flower-supernode", "--root-certificates", str(self.folder / "ca.crt"),
            "--auth-supernode-private-key", str(self.folder / node), "--superlink", f"127.0.0.1:{self.port}",
            "--host", "127.0.0.1", "--port", str(self._ports[node]),
            "--node-config", f"state-dir='{state_dir}'",
            changes={"PYTHONPATH": path, "FF_FAULT": str(self.fault(node))},
        )  # fmt: skip
        return self.nodes[node]

    def fault(self, node: str) -> Path:
        """Return the file that says how a node misbehaves (``faulty``). Without it the node is in order."""
        return self.folder / f"{node}.fault"

    def _started(
        self, log: str, program: str, *arguments: str, changes: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{log}.log").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-c", _END_WITH_PARENT, str(BIN / program), *arguments],
                env={**self.environment, **(changes or {})}, stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def flwr(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "flwr"), *arguments], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=timeout, check=False, cwd=self.folder,
        )  # fmt: skip

    def fedforget(
        self, *arguments: object, timeout: float = 1500, changes: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fedforget", *map(str, arguments)], env={**self.environment, **(changes or {})},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False, cwd=self.folder,
        )  # fmt: skip

    def begin(self, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a command of FedForget without waiting for it."""
        return self._started("command", "python", "-m", "fedforget", *map(str, arguments))

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process and what it started, at once."""
        mine = self._marked()
        for each in [process.pid, *(pid for pid in mine if session_of(pid) == process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.wait()

    def pause(self, process: subprocess.Popen[bytes], *, on: bool = True) -> None:
        """Stop a process and what it started, or let them go on: a machine that is away, and is back."""
        for each in [pid for pid in self._marked() if session_of(pid) == process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP if on else signal.SIGCONT)

    def kill_pid(self, pid: int) -> None:
        """End one process of this deployment at once."""
        if pid in self._marked():
            os.kill(pid, signal.SIGKILL)

    def processes(self, part: str) -> list[int]:
        """Return the processes of this deployment whose command line holds a text."""
        return [pid for pid in self._marked() if part.encode() in command_line(pid)]

    def _marked(self) -> list[int]:
        mark, found = f"FLWR_HOME={self.folder}".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return [pid for pid in found if pid != os.getpid()]

    def close(self) -> None:
        """End every process of this deployment, and remove what they wrote."""
        for how, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
            until = time.monotonic() + seconds
            while (found := self._marked()) and time.monotonic() < until:
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)  # a paused one ends only then
                        os.kill(pid, how)
                time.sleep(0.2)
        for process in (self.superlink, *self.nodes.values()):
            if process is not None:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return -1


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def wait_for(ready: object, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < until, f"not ready within {seconds} s"
        time.sleep(0.2)


@contextlib.contextmanager
def deployment() -> Iterator[Deployment]:
    there = Deployment()
    try:
        yield there
    finally:
        there.close()
