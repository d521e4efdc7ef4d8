"""The ``fedforget`` program: runs a command and turns errors into messages and exit codes."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import click
import typer

from fedforget import __version__
from fedforget.errors import FedForgetError, OutOfMemory
from fedforget.federation import shortage

EXIT_VERIFICATION_FAILED = 1
EXIT_USAGE = 2
EXIT_UNEXPECTED = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

_STOPS = {
    signal.SIGINT: ("interrupted", "stopped", EXIT_INTERRUPTED),
    signal.SIGTERM: ("terminated", "terminated", EXIT_TERMINATED),
}

_MODULES = (
    "planning", "learning", "enrolling", "datasets", "requests", "managing", "reading", "proving", "receipts",
    "reproduce", "client", "client_audit",
)  # fmt: skip

typer.core.HAS_RICH = False  # else typer escapes brackets for rich, which does not print our help

app = typer.Typer(
    name="fedforget",
    help="Exact federated unlearning: train a federation, forget samples and clients exactly, and prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class _Stopped(BaseException):
    """Raised by Ctrl-C or SIGTERM for a clean stop. A KeyboardInterrupt would be swallowed by click."""


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    log_file: Annotated[Path | None, typer.Option(help="Append a log of what was done to this file.")] = None,
) -> None:
    if version:
        print(f"fedforget {__version__}")
        raise typer.Exit
    if log_file is not None:
        try:
            handler = logging.FileHandler(log_file, encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"cannot write the log file {log_file}: {error.strerror}") from error
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger = logging.getLogger("fedforget")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def main(arguments: list[str] | None = None) -> None:
    """Run one command. Every error becomes one line (or one JSON object) on stderr and a documented exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in given
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    if given == ["--version"]:  # click wants a command; this needs none
        print(f"fedforget {__version__}")
        sys.exit(0)
    try:
        outcome = commands().main(given, prog_name="fedforget", standalone_mode=False)
        code = outcome if isinstance(outcome, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        code = EXIT_USAGE
    except click.ClickException as error:
        _complain(as_json, "usage", error.format_message(), "see `fedforget --help`")
        code = EXIT_USAGE
    except FedForgetError as error:
        logging.getLogger("fedforget").warning("%s: %s", error.code, error.message)
        _complain(as_json, error.code, error.message, error.hint)
        code = error.exit_code
    except _Stopped as stop:
        name, word, code = _STOPS[stop.args[0]]
        _complain(as_json, name, word, "committed work is kept; give the same command again to resume")
    except Exception as error:
        logging.getLogger("fedforget").exception("unexpected")
        if shortage.is_lack_of_memory(error):
            _complain(
                as_json, OutOfMemory.code, f"there is not enough memory: {str(error) or type(error).__name__}",
                f"{shortage.REMEDY} and give the same command again: committed work is kept",
            )  # fmt: skip
            sys.exit(OutOfMemory.exit_code)
        what = f"{type(error).__name__}: {error}"
        _complain(as_json, "unexpected", what, "please report this, with --log-file for the details")
        code = EXIT_UNEXPECTED
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.exit(code)


@functools.cache
def commands() -> click.Command:
    """Import every module that defines commands, and return the program."""
    for module in _MODULES:
        importlib.import_module(f"fedforget.cli.{module}")
    return typer.main.get_command(app)


def _stop(number: int, _: object) -> None:
    raise _Stopped(number)


def _complain(as_json: bool, code: str, message: str, hint: str) -> None:
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message, "hint": hint}}), file=sys.stderr)
    else:
        print(f"error: {message}" + (f" ({hint})" if hint else ""), file=sys.stderr)
