"""Commands that manage a run beside its requests: ``policy``, ``add`` and ``forget-record``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from fedforget.algorithm.seeds import SeedSource
from fedforget.cli.app import app
from fedforget.cli.guarantee import LAW_LOST, has_law
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import BasisOption, RoundsOptions, RunPath
from fedforget.cli.output import Output, pairs
from fedforget.cli.sessions import session_on, traffic_of
from fedforget.errors import InvalidInput
from fedforget.requests.lifecycle import Basis, require_basis
from fedforget.requests.policy import BATCH, Policy
from fedforget.requests.request_file import requests_in
from fedforget.session import deferral
from fedforget.store import run_directory


@app.command(short_help="Show or set when requests are carried out.")
@grouped
def policy(
    run: RunPath,
    name: Annotated[str | None, typer.Argument(help="immediate, or batch.", show_default="only show it")] = None,
    window: Annotated[float | None, typer.Option(help="Days to collect requests for, with batch.")] = None,
    *,
    output: Output,
) -> None:
    """Show or set when requests are carried out: immediately, or collected for a window and carried out together."""
    if name is None and window is not None:
        raise InvalidInput("a window needs a policy", hint=f"give its name: {BATCH}")
    if name is None:
        with run_directory.reading(run, only_idle=False) as opened:
            chosen = opened.record.policy
    else:
        chosen = Policy.of_days(name, window)
        with run_directory.writing(run) as opened:
            opened.record.set_policy(chosen)
    days = chosen.window / timedelta(days=1)
    facts = {"policy": chosen.name, "window_days": days}
    output.emit(facts, lambda: f"{chosen.name}, window of {days:g} days" if chosen.collects else chosen.name)


@app.command(short_help="Add samples and clients exactly.")
@grouped
def add(
    run: RunPath,
    file: Annotated[Path, typer.Option("--from", help="Samples and clients to add: lines like those of --batch.")],
    returning: Annotated[bool, typer.Option("--returning", help="Also add data that were erased before.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="The run's seed, for the seeds of new clients.", show_default="from the system")
    ] = None,
    basis: BasisOption = None,
    *,
    how: RoundsOptions,
    output: Output,
) -> None:
    """Add samples and clients of the dataset, exactly: as if they had been there from the beginning."""
    targets = requests_in(file)
    require_basis(basis or Basis.UNKNOWN)
    with run_directory.writing(run) as opened:
        before = has_law(opened)
        with session_on(opened, "learning", how, output, all_data=True) as session:
            seeds, chosen = SeedSource.of_person(seed), basis or Basis.UNKNOWN
            status = session.add(targets, returning=returning, seeds=seeds, basis=chosen)
            traffic = traffic_of(session, how)
        law_lost = basis is None and before and not has_law(opened)
    facts = {key: getattr(status, key) for key in ("run", "rounds_done", "clients", "samples", "model_digest")}
    output.emit({**facts, **traffic}, lambda: pairs(facts))
    if law_lost:
        output.warn(LAW_LOST)


@app.command("forget-record", short_help="Destroy the key of the record.")
@grouped
def forget_record(
    run: RunPath,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm. This cannot be undone.")] = False,
    *,
    output: Output,
) -> None:
    """Destroy the key of the record: afterwards no request can be linked to a client or sample."""
    if not yes:
        raise InvalidInput(
            "a repeated request for erased data will no longer find its receipt, and this cannot be undone",
            hint="confirm with --yes",
        )
    with run_directory.writing(run) as opened:
        deferral.forget_record(opened)
    output.emit({"record_forgotten": True}, lambda: "the record's key is destroyed")
