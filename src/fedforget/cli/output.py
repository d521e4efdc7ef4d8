"""Output of the commands: tables for people, JSON for scripts, progress on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedforget.errors import StorageFailed, escaped

if TYPE_CHECKING:
    from fedforget.session.status import Status

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout (errors as JSON on stderr).")]
_PLAIN_EVERY = 5.0  # seconds between progress lines when stderr is not a terminal


def emit(value: Mapping[str, Any], as_json: bool, text: Callable[[], str]) -> None:
    """Print a result to stdout, as JSON or as text."""
    try:
        print(json.dumps(value, indent=2) if as_json else text(), flush=True)
    except BrokenPipeError:  # the reader closed the pipe: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else closing stdout fails again
        raise StorageFailed(
            f"cannot write the result: {error.strerror}", hint="fix the cause and give the same command again"
        ) from error


def say(message: str) -> None:
    """Print a message for people, on stderr."""
    print(message, file=sys.stderr)


def warn(message: str) -> None:
    say(f"warning: {message}")


def say_recomputed(status: Status, as_json: bool) -> None:
    """Announce the cost of ``--recompute-all`` before it starts."""
    if status.rounds_done and not as_json:
        say(f"recomputing all {status.rounds_done} rounds ({status.steps_done} steps)")


def pairs(rows: Mapping[str, object]) -> str:
    """Format names and values in two columns."""
    width = max(map(len, rows), default=0)
    return "\n".join(f"{name:<{width}}  {_cell(value)}" for name, value in rows.items())


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format rows under a header; numbers are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [all(isinstance(row[n], (int, float)) or row[n] is None for row in rows) for n in range(len(header))]

    def line(values: Sequence[str]) -> str:
        return "  ".join(
            v.rjust(w) if right else v.ljust(w) for v, w, right in zip(values, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, cells)])


def standing(facts: Mapping[str, Any]) -> str:
    """Format the status of a run for people, with one line per pending request."""
    trained = [f"{each['first_round']} to {each['last_round']}" for each in facts["environments"]]
    facts = {**facts, "environments": f"rounds {', '.join(trained)}"}
    if not facts["mixed_environments"]:
        facts = {name: value for name, value in facts.items() if "environments" not in name}
    waiting = facts["open_requests"]
    if not waiting:
        return pairs({name: value for name, value in facts.items() if name not in ("open_requests", "overdue")})
    header = ("open request", "level", "state", "deadline", "days left")
    rows = [(r["id"], r["level"], r["state"], r["deadline"], days_left(r)) for r in waiting]
    counted = {**facts, "open_requests": len(waiting), "overdue": len(facts["overdue"])}
    return f"{pairs(counted)}\n\n{table(header, rows)}"


def days_left(request: Mapping[str, Any]) -> str:
    """Format the days left of an open request, or since when it is overdue."""
    if request["days_left"] is None:
        return ""
    return f"overdue since {request['deadline']}" if request["overdue"] else f"{request['days_left']:,.1f}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_cell(held)}" for key, held in value.items()) or "-"
    return f"{value:.4g}" if isinstance(value, float) else escaped(str(value))


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
            say(f"{title}: {unit} {done}{of}{pace.text(', ')}")

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
