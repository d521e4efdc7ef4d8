"""Commands about clients on other machines: ``enroll``, and ``superlink-purge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedforget.cli.app import app
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import RunPath
from fedforget.cli.output import Output, pairs
from fedforget.disk.purge import purge_database


@app.command(short_help="Enroll clients on other machines.")
@grouped
def enroll(
    run: RunPath,
    files: Annotated[list[Path], typer.Argument(help="Enrolment files, made by `fedforget client init`.")],
    returning: Annotated[bool, typer.Option("--returning", help="Also clients that were erased before.")] = False,
    *,
    output: Output,
) -> None:
    """Enroll clients on other machines, with their keys and commitments. They join at the next contact."""
    from fedforget.client_side.enrolment_files import read_enrolments  # noqa: PLC0415 (torch)
    from fedforget.session.enrolling import enroll as enter  # noqa: PLC0415

    new = [each.client for each in enter(run, read_enrolments(files), returning=returning)]
    output.emit({"enrolled": new}, lambda: f"{len(new)} clients enrolled; they join at the next contact")


@app.command("superlink-purge", short_help="Remove deleted messages from a SuperLink's database.")
@grouped
def superlink_purge(
    database: Annotated[Path, typer.Argument(help="The file that `flower-superlink --database` names.")],
    output: Output,
) -> None:
    """Rewrite the database of Flower's SuperLink, so that deleted messages cannot be read from its files."""
    before, after = purge_database(database)
    facts = {"database": str(database), "bytes_before": before, "bytes_after": after}
    output.emit(facts, lambda: pairs(facts))
