"""Progress on stderr, with rate and time left: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_PLAIN_EVERY = 5.0  # seconds between progress lines when stderr is not a terminal


@contextlib.contextmanager
def progress(title: str, total: int | None, unit: str = "round", start: int = 0) -> Iterator[Callable[[int], None]]:
    """Show progress with rate and time left: a bar on a terminal, else a line every few seconds.

    Yields a function to call with the number of finished units.
    """
    if sys.stderr.isatty():
        with _bar(title, total, unit, start) as advance:
            yield advance
        return
    last = time.monotonic()
    pace = Pace(unit, total)

    def line(done: int) -> None:
        nonlocal last
        pace.reach(done)
        if time.monotonic() - last >= _PLAIN_EVERY:
            last = time.monotonic()
            of = f" of {total}" if total else ""
            print(f"{title}: {unit} {done}{of}{pace.text(', ')}", file=sys.stderr)

    yield line


class Pace:
    """The rate of progress, measured from the first reported unit: a recomputation starts at any round."""

    def __init__(self, unit: str, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit, self._total, self._clock = unit, total, clock
        self._began: tuple[int, float] | None = None
        self._now: tuple[int, float] = (0, 0.0)

    def reach(self, done: int) -> None:
        self._now = done, self._clock()
        if self._began is None or done < self._began[0]:
            self._began = self._now

    def text(self, before: str = "") -> str:
        """Format the rate and the time left; empty until the rate is known."""
        if self._began is None or self._now[0] <= self._began[0] or self._now[1] <= self._began[1]:
            return ""
        rate = (self._now[0] - self._began[0]) / (self._now[1] - self._began[1])
        speed = f"{rate:.3g} {self._unit}s/s" if rate >= 1 else f"{1 / rate:.3g} s/{self._unit}"
        left = "" if self._total is None else f", {_duration((self._total - self._now[0]) / rate)} left"
        return f"{before}{speed}{left}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextlib.contextmanager
def _bar(title: str, total: int | None, unit: str, start: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console  # noqa: PLC0415 (only a terminal needs it)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit + "s"),
        TextColumn("{task.fields[pace]}"),
    )  # fmt: skip
    pace = Pace(unit, total)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, completed=start, pace="")

        def advance(done: int) -> None:
            pace.reach(done)
            bar.update(task, completed=done, pace=pace.text())

        yield advance
