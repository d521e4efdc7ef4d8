"""The command ``enroll``: clients on other machines join a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedforget.cli.app import app
from fedforget.cli.option_groups import grouped
from fedforget.cli.output import Output
from fedforget.client_side import enrolment
from fedforget.disk.door import read_named
from fedforget.errors import InvalidInput, shown
from fedforget.store.contacts import Enrolment

_MOST = 2**16  # bytes of a file


@app.command(short_help="Enroll clients on other machines.")
@grouped
def enroll(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    files: Annotated[list[Path], typer.Argument(help="Enrolment files, made by `fedforget client init`.")],
    returning: Annotated[bool, typer.Option("--returning", help="Also clients that were erased before.")] = False,
    *,
    output: Output,
) -> None:
    """Enter clients on other machines into a run, with their keys and commitments. They join with the next contact."""
    from fedforget.session.enrolling import enroll as enter  # noqa: PLC0415

    new = [each.client for each in enter(run, read_enrolments(files), returning=returning)]
    output.emit({"enrolled": new}, lambda: f"{len(new)} clients enrolled; they join with the next contact")


def read_enrolments(files: Sequence[Path]) -> list[Enrolment]:
    """Read enrolment files, and verify their signatures. Refuse two of one client."""
    found = [_read(file) for file in files]
    clients = [each.client for each in found]
    twice = next((client for client in clients if clients.count(client) > 1), None)
    if twice is not None:
        raise InvalidInput(f"two of the files enroll client {shown(twice)}", hint="give each client once")
    return found


def _read(file: Path) -> Enrolment:
    try:
        data = read_named(file, _MOST)
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}", hint="check the path") from error
    found = enrolment.Enrolment.parsed(data)
    return Enrolment(found.client, found.commitment, found.root, found.public_key.public_bytes_raw())
