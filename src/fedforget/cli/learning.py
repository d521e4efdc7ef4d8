"""The command ``train``."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedforget.algorithm.plan import check_eval_every, goal_of
from fedforget.cli.app import app
from fedforget.cli.options import (
    AcceptMixed,
    BatchSize,
    Clients,
    Config,
    Data,
    EvalEvery,
    Federation,
    LocalSteps,
    PerRound,
    PlanOptions,
    RecomputeAll,
    RhoC,
    RhoS,
    Rounds,
    Seed,
    ServerOptimizerName,
    Workers,
    WorkerTimeout,
    workforce,
)
from fedforget.cli.output import JsonOption, emit, progress, say, say_recomputed, standing, warn
from fedforget.cli.planning import rho_warnings
from fedforget.errors import InvalidInput, quoted
from fedforget.planner.storage import kept_bytes
from fedforget.requests.request_file import read_requests
from fedforget.session.status import status_of
from fedforget.store import hints, run_directory
from fedforget.store.run_directory import OpenRun

log = logging.getLogger("fedforget")


@app.command()
def train(
    run: Annotated[Path | None, typer.Argument(help="A run to resume.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of a new run (or of the same run, to resume it).")] = None,
    data: Data = None,
    clients: Clients = None,
    rho_s: RhoS = None,
    rho_c: RhoC = None,
    clients_per_round: PerRound = None,
    batch_size: BatchSize = None,
    rounds: Rounds = None,
    local_steps: LocalSteps = None,
    seed: Seed = None,
    until_round: Annotated[int | None, typer.Option(help="Stop after this round.")] = None,
    without: Annotated[
        Path | None, typer.Option(help="Leave out the samples and clients of this request file.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Models to keep: every, ends, or each N-th.", show_default="every")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Local learning rate.", show_default="0.1")] = None,
    momentum: Annotated[float | None, typer.Option(help="Local momentum.", show_default="0")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Local weight decay.", show_default="0")] = None,
    prox: Annotated[float | None, typer.Option(help="FedProx term.", show_default="0")] = None,
    server_optimizer: ServerOptimizerName = None,
    server_lr: Annotated[float | None, typer.Option(help="Learning rate of fedadam.", show_default="0.01")] = None,
    eval_every: EvalEvery = None,
    recompute_all: RecomputeAll = False,
    accept_mixed: AcceptMixed = False,
    federation: Federation = None,
    workers: Workers = None,
    worker_timeout: WorkerTimeout = None,
    device: Annotated[str, typer.Option(help="Where tensors live: cpu.")] = "cpu",
    config: Config = None,
    as_json: JsonOption = False,
) -> None:
    """Train a federation, or resume one. The same command again continues where it stopped."""
    from fedforget.builtin import engine_of  # noqa: PLC0415 (torch)
    from fedforget.session.session import Session  # noqa: PLC0415
    from fedforget.session.work import RoundOptions  # noqa: PLC0415

    options = PlanOptions(
        data=data, clients=clients, rho_s=rho_s, rho_c=rho_c, clients_per_round=clients_per_round,
        batch_size=batch_size, rounds=rounds, local_steps=local_steps, seed=seed, keep=keep, lr=lr, momentum=momentum,
        weight_decay=weight_decay, prox=prox, server_optimizer=server_optimizer, server_lr=server_lr,
    ).with_file(config)  # fmt: skip
    _require_supported(device)
    check_eval_every(eval_every)
    if out is not None and options.rounds is not None:
        goal_of(options.rounds, until_round)  # refuse before creating anything
    chosen = workforce(federation, workers, worker_timeout)
    path, created = _started(run, out, options, without)
    with run_directory.writing(path) as opened:
        engine = engine_of(opened, chosen, instead=lambda: f"resume it with {hints.train(path)}")
        before, goal = status_of(opened), goal_of(opened.file.plan.rounds, until_round)
        if before.rounds_done == 0 < goal and not before.withdrawn and not as_json:
            _announce_storage(opened, goal)
        if recompute_all:
            say_recomputed(before, as_json)
        with progress("training", goal, start=before.rounds_done) as advance:
            watched = RoundOptions.of(advance, eval_every, recompute_all=recompute_all, accept_mixed=accept_mixed)
            with Session.on(opened, engine, watched, data_checked=created) as session:
                status = session.train(goal)
    log.info("trained %s to round %d", status.run, status.rounds_done)
    warnings = rho_warnings(status.rho_s, status.rho_c)
    emit({**asdict(status), "warnings": warnings}, as_json, lambda: standing(asdict(status)))
    for warning in warnings:
        warn(warning)


def _require_supported(device: str) -> None:
    if device != "cpu":
        raise InvalidInput(
            f"cannot train on {quoted(device)}", hint="use cpu: only there are results bitwise repeatable"
        )


def _started(run: Path | None, out: Path | None, options: PlanOptions, without: Path | None) -> tuple[Path, bool]:
    """Return the run to train, and whether it was created just now."""
    from fedforget.builtin import start_run  # noqa: PLC0415 (scikit-learn, torch)

    if run is not None and out is None:
        said = options.given() + (["without"] if without else [])
        if said:
            names = ", ".join("--" + name.replace("_", "-") for name in said)
            raise InvalidInput(f"the plan of {run} is frozen, but {names} was given", hint="leave it out to resume")
        return run, False
    if out is None or run is not None:
        raise InvalidInput("name exactly one run", hint="give --out for a new one, or the directory of one to resume")
    return out, start_run(
        out,
        "digits" if options.data is None else options.data,
        60 if options.clients is None else options.clients,
        options.plan_for,
        seed=options.seed,
        without=read_requests(without) if without else [],
    )


def _announce_storage(run: OpenRun, goal: int) -> None:
    plan = run.file.plan
    needed = kept_bytes(plan, goal, run.server.models.size_of_one())
    say(f"keeping {plan.kept_count(goal)} models: {needed / 1e6:.3g} MB in {run.path / 'models'}")
