"""What the benchmarks have in common: figures, repetitions, scratch directories, peak memory. Without torch."""

from __future__ import annotations

import argparse
import contextlib
import gc
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

MB = 1e6
SCRATCH = "FEDFORGET_BENCH_DIR"
T = TypeVar("T")
CALM = 0.1  # of one processor, taken by others


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number; the median where there were repetitions, with the lowest and the highest."""

    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if there is none."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least


def median_figure(name: str, values: Sequence[float], unit: str, **others: Any) -> Figure:
    """The median of repetitions, and their range."""
    return Figure(name, statistics.median(values), unit, min(values), max(values), **others)


def seconds(action: Callable[[], object], repetitions: int, setup: Callable[[], object] | None = None) -> list[float]:
    """How long each repetition took, after one that doesn't count; the collector waits outside."""
    times = []
    for repetition in range(repetitions + 1):
        if setup is not None:
            setup()
        gc.collect()
        start = time.perf_counter()
        action()
        if repetition:
            times.append(time.perf_counter() - start)
    return times


def processors() -> float:
    """Seconds of processors that this process took, and its children that have ended."""
    return sum(os.times()[:4])


def family(process: int) -> list[Path]:
    """The directories in /proc of a process and its children."""
    here = Path("/proc") / str(process)
    children = [child for task in here.glob("task/*/children") for child in task.read_text().split()]
    return [here, *(Path("/proc") / child for child in children)]


def processors_with_children() -> float:
    """Seconds of processors that this process took, and its children, also those that are at work."""
    ticks = 0
    for process in family(os.getpid())[1:]:
        with contextlib.suppress(OSError):  # a process that has just ended
            ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return processors() + ticks / os.sysconf("SC_CLK_TCK")


class Watch:
    """Called after each round. Leaves out the first rounds, which start processes and import libraries."""

    def __init__(self, skipped: int, rounds: int) -> None:
        self._ends = {skipped, rounds}
        self._count = rounds - skipped
        self._found: list[tuple[float, float]] = []

    def __call__(self, round_: int) -> None:
        if round_ in self._ends:
            self._found.append((time.perf_counter(), processors_with_children()))

    def of_a_round(self) -> tuple[float, float]:
        """Seconds of a round, by the clock and of all processors."""
        (start, before), (end, after) = self._found
        return (end - start) / self._count, (after - before) / self._count


def taken_by_others() -> float:
    """Processor seconds that other processes took since the machine started; only differences are meaningful.

    The machine's owner, if it is a virtual one, is among them.
    """
    ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = 3, 4
    return (sum(ticks) - ticks[idle] - ticks[waiting]) / os.sysconf("SC_CLK_TCK") - processors()


def calmest(turn: Callable[[int], T], repetitions: int) -> list[T]:
    """Turns that nothing else disturbed; after twice as many as wanted, those that were disturbed least.

    How much others took decides, never what was measured.
    """
    found: list[tuple[float, int, T]] = []
    for number in range(2 * repetitions):
        start, before = time.perf_counter(), taken_by_others()
        result = turn(number)
        share = (taken_by_others() - before) / (time.perf_counter() - start)
        found.append((share, number, result))
        if sum(each[0] <= CALM for each in found) == repetitions:
            break
    chosen = sorted(found, key=lambda each: each[:2])[:repetitions]
    return [result for _, _, result in sorted(chosen, key=lambda each: each[1])]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty directory on the disk that is measured."""
    with tempfile.TemporaryDirectory(prefix="fedforget-bench-", dir=os.environ.get(SCRATCH)) as directory:
        yield Path(directory)


def own_peak() -> float:
    """The most memory this process ever held, in MB of 10^6 bytes.

    Not from getrusage: its maximum survives exec, so that a child starts with its parent's.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / MB
    raise SystemExit("peak memory is read from /proc, which this system lacks")


def in_own_process(module: str, *arguments: object) -> dict[str, Any]:
    """What a benchmark module, run with arguments, prints as JSON: memory is measured where nothing else was.

    glibc raises the size above which blocks go back to the system at once when it sees larger ones freed; from then on
    the peak is of holes between blocks, and chance. There it stays as it is.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**17)},
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def options(description: str | None) -> argparse.Namespace:
    """The command line of a benchmark module."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller repetitions")
    parser.add_argument("--turns", type=int, help="repetitions, where whole runs take turns")
    parser.add_argument("--long", action="store_true", help="also what takes an hour")
    parser.add_argument("--child", nargs="*", default=[], help=argparse.SUPPRESS)
    return parser.parse_args()


def give(title: str, how: str | None, figures: Sequence[Figure], data: Any = None) -> None:
    """Hand the figures to ``run.py``, and the data of a plot if there is one."""
    made = [{**asdict(figure), "met": figure.met} for figure in figures]
    answer = {"title": title, "how": inspect.cleandoc(how or ""), "figures": made}
    print(json.dumps(answer if data is None else {**answer, "data": data}))
