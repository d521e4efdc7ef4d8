"""What the tests of the command line have in common: calling it here, and in processes of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.cli import main
from fedforget.store import run_directory
from fedforget.store.names import BOOKS, SERVER, USES

WORLD = ("--clients", "6", "--clients-per-round", "2", "--batch-size", "3", "--local-steps", "2", "--seed", "7")
ROUNDS = 5
PLAN = (*WORLD, "--rounds", str(ROUNDS))
FUNCTION = ("plan.toml", SERVER, USES, *BOOKS, "models")
COMMANDS = (
    "data", "demo", "plan", "train", "forget", "run-pending", "cancel", "policy", "add", "forget-record", "requests",
    "status", "clients", "state", "verify", "prove", "export", "receipt", "doctor", "reproduce", "client",
    "enroll", "superlink-purge",
)  # fmt: skip
PATIENCE = 60.0


@dataclass(frozen=True)
class Result:
    """What a command gave back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The error object, which stands on the last line of stderr."""
        found: dict[str, str] = json.loads(self.err.splitlines()[-1])["error"]
        return found


def call(*arguments: str | Path) -> Result:
    """Run a command in this process. Anything but a clean exit is an error of the test."""
    out, err, before = io.StringIO(), io.StringIO(), {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    code: Any = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert isinstance(code, int), f"the exit code is {code!r}"
    return Result(code, out.getvalue(), err.getvalue())


def good(*arguments: str | Path) -> Result:
    result = call(*arguments)
    assert result.code == 0, f"{arguments}: {result}"
    return result


def good_json(*arguments: str | Path) -> Any:
    return good(*arguments, "--json").json


def refused(code: int, name: str, *arguments: str | Path) -> dict[str, str]:
    """A command that must fail: one line for people, the same as an object for scripts, nothing on stdout."""
    plain, scripted = call(*arguments), call(*arguments, "--json")
    for result in (plain, scripted):
        assert result.code == code, f"{arguments}: {result}"
        assert result.out == ""
        assert "Traceback" not in result.err
    error = scripted.error
    assert error["code"] == name
    assert error["message"]
    assert error["hint"]
    last = plain.err.splitlines()[-1]
    assert last == f"error: {error['message']} ({error['hint']})"
    others = plain.err.splitlines()[:-1]
    assert all(line.startswith(("warning: ", "keeping ")) for line in others), plain.err
    return error


def train(run: Path, *more: str | Path) -> dict[str, Any]:
    made: dict[str, Any] = good_json("train", *PLAN, "--out", run, *more)
    return made


def state(run: Path) -> str:
    return str(good_json("state", run)["digest"])


def function_of(run: Path) -> dict[str, bytes]:
    """Every byte of the part that must equal a run that never had the data."""
    files = [run / name for name in FUNCTION if name != "models"] + sorted((run / "models").iterdir())
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def everything_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def samples_of(run: Path, client: int) -> list[int]:
    ids: list[int] = good_json("clients", run, "--client", str(client))["ids"]
    return ids


def book_of(run: Path, client: int) -> str:
    """The name of the file that holds a client's book. The run must be whole."""
    with run_directory.reading(run, only_idle=False) as found:
        return found.clients.books.path_of(client).name


def empty_book(run: Path) -> str:
    """The name of a file that holds no client's book. The run must be whole."""
    with run_directory.reading(run, only_idle=False) as found:
        books = found.clients.books
        return next(name for name in BOOKS if name not in {books.path_of(client).name for client in books.clients()})


def requests_file(path: Path, requests: Sequence[tuple[int, int | None]]) -> Path:
    lines = [{"client": c} if s is None else {"client": c, "sample": s} for c, s in requests]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def copy(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


def wait_until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.002)


def models_in(run: Path) -> int:
    return len(list((run / "models").glob("*.safetensors"))) if (run / "models").is_dir() else 0


@dataclass
class Child:
    """A command in a process of its own."""

    pid: int
    _zygote: Zygote

    def go(self) -> None:
        self._zygote.tell("go")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Result:
        return self._zygote.wait()


class Zygote:
    """A process that has imported everything and forks a child for each command: a real process without the wait."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = (directory / "stdout", directory / "stderr")
        program = Path(__file__).with_name("zygote.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=directory
        )

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def start(self, *arguments: str | Path, **settings: Any) -> Child:
        """``gated``: wait for go(). ``kill_at``: SIGKILL at the n-th touch of the disk. ``file_limit``: in bytes."""
        out, err = map(str, self._files)
        self.tell(json.dumps({"arguments": [str(a) for a in arguments], "out": out, "err": err, **settings}))
        return Child(self._hear(), self)

    def wait(self) -> Result:
        code = self._hear()
        out, err = (path.read_text() for path in self._files)
        return Result(code, out, err)

    def run(self, *arguments: str | Path, **settings: Any) -> Result:
        return self.start(*arguments, **settings).wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def zygote_in(directory: Path) -> Iterator[Zygote]:
    made = Zygote(directory)
    try:
        yield made
    finally:
        made.close()
