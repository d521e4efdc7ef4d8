"""Output of the commands: tables for people, JSON for scripts, progress on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fedforget.cli.progress import progress
from fedforget.errors import StorageFailed, escaped


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a command: results on stdout, everything else on stderr."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout (errors as JSON on stderr).")] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only results, warnings and errors: no progress, no notes.")
    ] = False

    def emit(self, value: Mapping[str, Any], text: Callable[[], str]) -> None:
        """Print a result to stdout, as JSON or as text."""
        printed(json.dumps(value, indent=2) if self.as_json else text())

    def say(self, message: str) -> None:
        """Print a note for people."""
        if not self.quiet:
            print(message, file=sys.stderr)

    def announce(self, message: str) -> None:
        """Print a note about the work ahead, for people only."""
        if not self.as_json:
            self.say(message)

    def warn_of_clients(self, problems: Sequence[Mapping[str, Any]]) -> None:
        """Name the clients of a deployment that are not in order, each with what helps."""
        for each in problems:
            self.warn(f"{escaped(each['problem'])}: {escaped(each['remedy'])}")

    def warn(self, message: str) -> None:
        print(f"warning: {message}", file=sys.stderr)

    @contextlib.contextmanager
    def progress(
        self, title: str, total: int | None, unit: str = "round", start: int = 0
    ) -> Iterator[Callable[[int], None]]:
        """Show progress. Yields a function to call with the number of finished units."""
        if self.quiet:
            yield lambda _: None
            return
        with progress(title, total, unit, start) as advance:
            yield advance


def printed(text: str) -> None:
    """Print to stdout. A reader that closes the pipe early is not an error; a full disk is."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else closing stdout fails again
        raise StorageFailed(
            f"cannot write the result: {error.strerror}", hint="fix the cause and give the same command again"
        ) from error


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
    facts = {
        "silent": [],
        "problems": [],
        "enrolled": 0,
        "undelivered": 0,
        **facts,
        "environments": f"rounds {', '.join(trained)}",
    }
    if not facts["mixed_environments"]:
        facts = {name: value for name, value in facts.items() if "environments" not in name}
    for name in ("silent", "problems", "enrolled", "undelivered"):  # of clients on other machines
        if not facts[name]:
            del facts[name]
    if "silent" in facts:
        facts["silent"] = "; ".join(
            f"client {each['client']} since {each['since']}, round {each['round']} is blocked"
            for each in facts["silent"]
        )
    if "problems" in facts:
        facts["problems"] = "; ".join(f"{each['problem']} (since {each['since']})" for each in facts["problems"])
    waiting, count = facts["open_requests"], facts["open_count"]
    facts = {name: value for name, value in facts.items() if name != "open_count"}
    if not waiting:
        return pairs({name: value for name, value in facts.items() if name not in ("open_requests", "overdue")})
    header = ("open request", "level", "state", "deadline", "days left")
    rows = [(r["id"], r["level"], r["state"], r["deadline"], days_left(r)) for r in waiting]
    counted = {**facts, "open_requests": count, "overdue": len(facts["overdue"])}
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
