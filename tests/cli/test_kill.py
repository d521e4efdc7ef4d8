"""kill -9 at any moment: the same command again ends in the same bytes, with one receipt per request.

Two ways to choose the moment. Inside the process: before the n-th call that touches the disk (SQLite's statements,
fsync, rename, unlink), in whichever thread. From outside: strace ends the process at the n-th system call of a kind,
which reaches into the middle of SQLite's commits; it looks at one thread, so there the work of the writer and of the
pool is done by that.
"""

from __future__ import annotations

import bisect
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedforget.requests.lifecycle import Stage
from fedforget.store import run_directory
from tests.cli.commandline import (
    FUNCTION,
    WORLD,
    Zygote,
    copy,
    function_of,
    good,
    good_json,
    requests_file,
    state,
)
from tests.tally import exhaustive, tally

PLAN = (*WORLD, "--rounds", "3", "--keep", "2")
KILLED = -signal.SIGKILL
SYSTEM_CALLS = ("fsync", "fdatasync", "rename", "unlink", "ftruncate", "pwrite64", "write")


STAGES = [stage.value for stage in Stage]
SCENARIOS = {
    "train": "train",
    "sample": "forget a used sample",
    "client": "forget a client",
    "batch": "forget a batch",
    "resume": "go on forgetting after a kill",
    "purge": "purge",
    "defer": "accept requests for later",
    "pending": "run what is pending",
    "add": "add clients",
    "return": "take back what was erased",
    "cancel": "cancel a request",
    "forget record": "forget the record",
}
EVERYWHERE = ("train", "sample", "client", "batch", "resume", "purge")
EVERY = sys.maxsize


class Work:
    """A command to be killed in: how to begin, what to call, and what must come out."""

    def __init__(
        self, tmp_path: Path, start: Path | None, *command: str | Path, receipts: int = 0, ends: str = "purged"
    ) -> None:
        self._tmp_path, self._start, self._command = tmp_path, start, command
        self._receipts, self._ends = receipts, ends
        self._runs = 0
        self.name = ""
        undisturbed = self.fresh()
        good(*self.on(undisturbed))
        self.expected, self.function = state(undisturbed), function_of(undisturbed)

    def in_one_process(self) -> Work:
        self._command = (*self._command, "--federation", "inline")
        return self

    def fresh(self) -> Path:
        self._runs += 1
        run = self.latest()
        return run if self._start is None else copy(self._start, run)

    def latest(self) -> Path:
        return self._tmp_path / f"run{self._runs}"

    def on(self, run: Path) -> tuple[str | Path, ...]:
        if self._start is None:
            return (self._command[0], *self._command[1:], "--out", run)
        return (self._command[0], run, *self._command[1:])

    def require_recovery(self, run: Path) -> None:
        """The same command again, and everything is as if nothing had happened."""
        good(*self.on(run))
        assert state(run) == self.expected
        assert function_of(run) == self.function
        status = good_json("status", run)
        assert (status["requests"], status["pending"]) == (self._receipts, False)
        assert all(receipt["state"] == self._ends for receipt in status["receipts"])
        assert {path.name for path in run.iterdir()} == {
            *FUNCTION, "metrics.db", "record.db", "record.keys", "seals", "lock",
        }  # fmt: skip
        shutil.rmtree(run)
        tally(f"kills/{self.name}")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("small") / "run"
    good("train", *PLAN, "--out", run)
    return run


@pytest.fixture
def make_work(tmp_path: Path, small: Path, zygote: Zygote) -> Callable[[str], Work]:
    early, sample, late = drawn_in(small)
    client = ("forget", "--client", str(early))
    batch = requests_file(tmp_path / "batch.jsonl", [(early, sample), (late, None)])
    targets = requests_file(tmp_path / "targets.jsonl", [(early, None), (late, None)])

    def begun(name: str, *commands: tuple[str | Path, ...]) -> Path:
        run = copy(small, tmp_path / name)
        for command, *options in commands:
            good(command, run, *options)
        return run

    def without_some() -> Path:
        good("train", *PLAN, "--without", targets, "--out", tmp_path / "without")
        return tmp_path / "without"

    def crashed(name: str, leaving: str) -> Path:
        """As a kill left it in the course of forgetting a client, at the last moment at which it looked like this."""
        whole = Work(tmp_path / name, small, *client, receipts=1)

        def stage_at(moment: int) -> int:
            run = whole.fresh()
            assert zygote.run(*whole.on(run), kill_at=moment).code == KILLED
            found = good_json("status", run)["receipts"]
            return STAGES.index(found[0]["state"]) if found else -1

        moments = range(1, count_touches(zygote, whole, tmp_path) + 1)
        after = bisect.bisect_right(moments, STAGES.index(leaving), key=stage_at)
        assert stage_at(moments[after - 1]) == STAGES.index(leaving)
        return whole.latest()

    works: dict[str, Callable[[], Work]] = {
        "train": lambda: Work(tmp_path, None, "train", *PLAN),
        "sample": lambda: Work(tmp_path, small, *client, "--sample", str(sample), receipts=1),
        "client": lambda: Work(tmp_path, small, *client, receipts=1),
        "resume": lambda: Work(tmp_path, crashed("crashed", "removed"), *client, receipts=1),
        "purge": lambda: Work(tmp_path, crashed("unpurged", "completed"), *client, receipts=1),
        "batch": lambda: Work(tmp_path, small, "forget", "--batch", batch, receipts=2),
        "defer": lambda: Work(tmp_path, small, "forget", "--batch", batch, "--defer", receipts=2, ends="accepted"),
        "pending": lambda: Work(
            tmp_path, begun("deferred", ("forget", "--batch", batch, "--defer")), "run-pending", receipts=2
        ),
        "cancel": lambda: Work(
            tmp_path,
            waiting := begun("waiting", (*client, "--defer")),
            "cancel",
            only_request(waiting),
            receipts=1,
            ends="cancelled",
        ),
        "forget record": lambda: Work(tmp_path, begun("erased", client), "forget-record", "--yes", receipts=1),
        "add": lambda: Work(tmp_path, without_some(), "add", "--from", targets, "--seed", "7"),
        "return": lambda: Work(
            tmp_path,
            begun("gone", ("forget", "--batch", batch)),
            "add",
            "--from",
            batch,
            "--returning",
            "--seed",
            "7",
            receipts=2,
        ),
    }

    def make(name: str) -> Work:
        work = works[name]()
        work.name = SCENARIOS[name]
        return work

    return make


def drawn_in(run: Path) -> tuple[int, int, int]:
    """A client of the first round with a sample of its first step, and a client that came later."""
    with run_directory.reading(run) as found:
        first = found.server.first_rounds()
        early = min(first, key=lambda client: first[client])
        steps = found.clients.first_steps(early)
    late = next(client for client in first if first[client] > 1)
    sample = min(steps, key=lambda each: steps[each])
    assert (first[early], steps[sample]) == (1, 1)
    return int(early), int(sample), int(late)


def only_request(run: Path) -> str:
    [receipt] = good_json("requests", run)["receipts"]
    return str(receipt["id"])


def count_touches(zygote: Zygote, work: Work, tmp_path: Path) -> int:
    run = work.fresh()
    result = zygote.run(*work.on(run), kill_at=0, count_to=str(tmp_path / "count"))
    assert result.code == 0, result
    shutil.rmtree(run)
    return int((tmp_path / "count").read_text())


def kill_at(zygote: Zygote, work: Work, moments: list[int]) -> None:
    """The last moment may come after the end: how often a file is asked for its signature depends on the clock."""
    for moment in moments:
        run = work.fresh()
        result = zygote.run(*work.on(run), kill_at=moment)
        is_over = result.code == 0 and moment == moments[-1]
        assert result.code == KILLED or is_over, f"moment {moment}: {result}"
        assert "Traceback" not in result.err
        work.require_recovery(run)


def spread(count: int, points: int) -> list[int]:
    """So many moments from the first to the last."""
    if points >= count:
        return list(range(1, count + 1))
    return sorted({1 + round(place * (count - 1) / max(points - 1, 1)) for place in range(points)})


@pytest.mark.parametrize("what", ["train", "sample"])
def test_killed_at_a_few_moments(zygote: Zygote, tmp_path: Path, make_work: Callable[[str], Work], what: str) -> None:
    work = make_work(what)
    count = count_touches(zygote, work, tmp_path)
    assert count > 30
    kill_at(zygote, work, spread(count, 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "points"),
    [
        ("train", 50),
        ("sample", 60),
        ("client", 30),
        ("batch", 25),
        ("resume", 30),
        ("purge", 20),
        ("defer", 20),
        ("pending", 50),
        ("add", 40),
        ("return", 30),
        ("cancel", 20),
        ("forget record", 20),
    ],
)
def test_killed_at_many_moments(
    zygote: Zygote, tmp_path: Path, make_work: Callable[[str], Work], what: str, points: int
) -> None:
    work = make_work(what)
    kill_at(zygote, work, spread(count_touches(zygote, work, tmp_path), points))


@pytest.mark.slow
def test_killed_twice(zygote: Zygote, tmp_path: Path, make_work: Callable[[str], Work]) -> None:
    """In the work, and again while finishing it."""
    work = make_work("client")
    count = count_touches(zygote, work, tmp_path)
    for first in spread(count, 5):
        for second in (5, 40, 80):
            run = work.fresh()
            assert zygote.run(*work.on(run), kill_at=first).code == KILLED
            assert zygote.run(*work.on(run), kill_at=second).code in {KILLED, 0}
            work.require_recovery(run)


@pytest.mark.slow
def test_reader_after_a_killed_round_sees_only_committed_rounds(
    zygote: Zygote, tmp_path: Path, make_work: Callable[[str], Work]
) -> None:
    """A reader before the resume does not see the uncommitted round."""
    work = make_work("train")
    clean = {}
    for rounds in range(4):
        good("train", *PLAN, "--until-round", str(rounds), "--out", tmp_path / f"clean{rounds}")
        clean[rounds] = state(tmp_path / f"clean{rounds}")
    wrong = []
    count = count_touches(zygote, work, tmp_path)
    for moment in spread(count, 60)[42:54:2]:
        run = work.fresh()
        zygote.run(*work.on(run), kill_at=moment)
        done = good_json("status", run)["rounds_done"]
        if state(run) != clean[done]:
            wrong.append(f"moment {moment} of {count}: the state of round {done} is another")
        if not good("verify", run, "--json").json["ok"]:
            wrong.append(f"moment {moment} of {count}: verify is not ok")
    assert wrong == []


# strace


@pytest.fixture(scope="module")
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([found, "-o", "/dev/null", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this system does not allow strace")
    return found


def traced(zygote: Zygote, strace: str, command: tuple[str | Path, ...], *options: str) -> int:
    """Run a command under strace; returns its exit code."""
    child = zygote.start(*command, gated=True, write_at_once=True)
    with subprocess.Popen(
        [strace, "-p", str(child.pid), *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as tracer:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        child.go()
        code = child.wait().code
        tracer.stderr.read()
    return code


def count_calls(zygote: Zygote, strace: str, work: Work, tmp_path: Path) -> dict[str, int]:
    run, log = work.fresh(), tmp_path / "calls"
    calls = ",".join(SYSTEM_CALLS)
    assert traced(zygote, strace, work.on(run), "-o", str(log), "-e", f"trace={calls}") == 0
    names = [line.partition("(")[0].split()[-1] for line in log.read_text().splitlines() if "(" in line]
    shutil.rmtree(run)
    return {name: names.count(name) for name in SYSTEM_CALLS if name in names}


def kill_in_calls(zygote: Zygote, strace: str, work: Work, tmp_path: Path, points: dict[str, int]) -> None:
    for name, count in count_calls(zygote, strace, work, tmp_path).items():
        for moment in spread(count, points[name]) if name in points else ():
            run = work.fresh()
            inject = f"inject={name}:signal=SIGKILL:when={moment}"
            code = traced(zygote, strace, work.on(run), "-o", "/dev/null", "-e", f"trace={name}", "-e", inject)
            assert code == KILLED, f"{name} {moment} of {count}"
            work.require_recovery(run)


@pytest.mark.parametrize("what", ["train", "client"])
def test_killed_in_a_system_call(
    zygote: Zygote, tmp_path: Path, make_work: Callable[[str], Work], strace: str, what: str
) -> None:
    kill_in_calls(zygote, strace, make_work(what).in_one_process(), tmp_path, {"fdatasync": 2, "rename": 2})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "points"),
    [
        ("train", 9),
        ("sample", 9),
        ("client", 4),
        ("batch", 4),
        ("resume", 4),
        ("purge", 4),
        ("pending", 4),
        ("add", 4),
    ],
)
def test_killed_in_many_system_calls(
    zygote: Zygote, tmp_path: Path, make_work: Callable[[str], Work], strace: str, what: str, points: int
) -> None:
    tried = EVERY if exhaustive() and what in EVERYWHERE else points
    kill_in_calls(zygote, strace, make_work(what).in_one_process(), tmp_path, dict.fromkeys(SYSTEM_CALLS, tried))
