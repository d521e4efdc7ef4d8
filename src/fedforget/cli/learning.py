"""The command ``train``: create a run or go on with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedforget.algorithm.plan import goal_of
from fedforget.cli.app import app
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import PlanOptions, RoundsOptions
from fedforget.cli.output import Output, standing
from fedforget.cli.planning import rho_warnings
from fedforget.cli.room import room_for
from fedforget.cli.sessions import session_on, traffic_of
from fedforget.data.check import doubt_about
from fedforget.errors import InvalidInput, quoted
from fedforget.planner.storage import kept_bytes
from fedforget.requests.request_file import read_requests
from fedforget.store import hints, run_directory
from fedforget.store.run_directory import OpenRun, is_run


@app.command()
@grouped
def train(
    run: Annotated[Path | None, typer.Argument(help="A run to resume.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of a new run (or of the same run, to resume it).")] = None,
    enrolled: Annotated[
        list[Path] | None,
        typer.Option(help="The enrolment file of a client on another machine; may be given several times."),
    ] = None,
    *,
    plan: PlanOptions,
    until_round: Annotated[int | None, typer.Option(help="Stop after this round.")] = None,
    without: Annotated[
        Path | None, typer.Option(help="Leave out the samples and clients of this request file.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device of the tensors: cpu.")] = "cpu",
    how: RoundsOptions,
    output: Output,
) -> None:
    """Train a federation, or resume one. The same command again continues where it stopped."""
    _require_supported(device)
    path, created = _started(run, out, plan.with_file().with_preset(), until_round, without, how, enrolled or [])
    with run_directory.writing(path) as opened:
        doubts = _doubts(opened, how.data_dir) if created else []
        for doubt in doubts:
            output.warn(doubt)
        goal = goal_of(opened.file.plan.rounds, until_round)
        if opened.server.rounds_done == 0 < goal and len(opened.server.roster):
            output.announce(_storage_needed(opened, goal))
        with session_on(
            opened, "training", how, output, goal=goal, data_checked=created,
            instead=lambda: f"resume it with {hints.train(path)}",
        ) as session:  # fmt: skip
            status = session.train(goal)
            traffic = traffic_of(session, how)
    warnings = [] if status.rho_s is None else rho_warnings(status.rho_s, status.rho_c)
    output.emit({**asdict(status), **traffic, "warnings": [*doubts, *warnings]}, lambda: standing(asdict(status)))
    output.warn_of_clients(status.problems)
    for warning in warnings:
        output.warn(warning)


def _doubts(run: OpenRun, data_dir: Path | None) -> list[str]:
    """Whether a new run has data that are not the published ones; the plan holds their checksum."""
    said = run.file.dataset
    if "checksum" not in said:
        return []
    place = str(data_dir) if data_dir is not None else "the data directory"
    doubt = doubt_about(str(said["name"]), str(said["checksum"]), str(said["which"]), place)
    return [] if doubt is None else [doubt]


def _require_supported(device: str) -> None:
    if device != "cpu":
        raise InvalidInput(
            f"cannot train on {quoted(device)}", hint="use cpu: only there are results bitwise repeatable"
        )


def _started(
    run: Path | None,
    out: Path | None,
    options: PlanOptions,
    until_round: int | None,
    without: Path | None,
    how: RoundsOptions,
    enrolled: Sequence[Path],
) -> tuple[Path, bool]:
    """Return the run to train, and whether it was created just now."""
    from fedforget.builtin import start_run  # noqa: PLC0415 (scikit-learn, torch)
    from fedforget.client_side.enrolment_files import read_enrolments  # noqa: PLC0415

    if run is not None and out is None:
        said = options.given() + (["without"] if without else []) + (["enrolled"] if enrolled else [])
        if said:
            names = ", ".join("--" + name.replace("_", "-") for name in said)
            raise InvalidInput(f"the plan of {run} is frozen, but {names} was given", hint="leave it out to resume")
        return run, False
    if out is None or run is not None:
        raise InvalidInput("name exactly one run", hint="give --out for a new run, or the directory of a run to resume")
    if bool(enrolled) != (how.workforce().superlink is not None) and not is_run(out):
        raise InvalidInput(
            "clients on other machines need both --enrolled and --federation flower:NAME",
            hint="give an enrolment file for each client, and the SuperLink that reaches them",
        )
    if options.rounds is not None:
        goal_of(options.rounds, until_round)  # raises before a run is created
    return out, start_run(
        out,
        options.data_choice(how.data_dir),
        options.plan_for,
        seed=options.seed,
        without=read_requests(without) if without else [],
        model=options.model,
        weights=None if options.weights is None else Path(options.weights),
        enrolments=read_enrolments(enrolled),
        require_room=room_for(out, until_round),
    )


def _storage_needed(run: OpenRun, goal: int) -> str:
    plan = run.file.plan
    needed = kept_bytes(plan, goal, run.server.models.size_of_one())
    return f"keeping {plan.kept_count(goal)} models: {needed / 1e6:.3g} MB in {run.path / 'models'}"
