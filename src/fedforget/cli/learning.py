"""Commands that learn and forget."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedforget.algorithm.budget import state_bytes
from fedforget.algorithm.forget import Request
from fedforget.algorithm.plan import goal_of
from fedforget.algorithm.theory import ForgettingCost
from fedforget.cli.app import app
from fedforget.cli.options import (
    BatchSize,
    Clients,
    Config,
    Data,
    EvalEvery,
    Federation,
    LocalSteps,
    PerRound,
    PlanOptions,
    RhoC,
    RhoS,
    Rounds,
    Seed,
    Workers,
    WorkerTimeout,
    workforce,
)
from fedforget.cli.output import JsonOption, emit, pairs, progress, say, table, warn
from fedforget.cli.planning import rho_warnings
from fedforget.data.request_file import read_requests
from fedforget.errors import InvalidInput, InvalidRequests
from fedforget.store.record import Basis

if TYPE_CHECKING:
    from fedforget.run import Run

log = logging.getLogger("fedforget")


@app.command()
def train(
    run: Annotated[Path | None, typer.Argument(help="A run to go on with.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of a new run (or of the same run, to go on).")] = None,
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
    server_optimizer: Annotated[str | None, typer.Option(help="average or fedadam.", show_default="average")] = None,
    server_lr: Annotated[float | None, typer.Option(help="Learning rate of fedadam.", show_default="0.01")] = None,
    eval_every: EvalEvery = None,
    federation: Federation = None,
    workers: Workers = None,
    worker_timeout: WorkerTimeout = None,
    device: Annotated[str, typer.Option(help="Where tensors live: cpu.")] = "cpu",
    config: Config = None,
    as_json: JsonOption = False,
) -> None:
    """Train a federation, or go on with one. The same command again continues where it stopped."""
    options = PlanOptions(
        data=data, clients=clients, rho_s=rho_s, rho_c=rho_c, clients_per_round=clients_per_round,
        batch_size=batch_size, rounds=rounds, local_steps=local_steps, seed=seed, keep=keep, lr=lr, momentum=momentum,
        weight_decay=weight_decay, prox=prox, server_optimizer=server_optimizer, server_lr=server_lr,
    ).with_file(config)  # fmt: skip
    _require_supported(device)
    if eval_every is not None and eval_every < 1:
        raise InvalidInput(f"cannot measure every {eval_every} rounds", hint="give a whole number from 1")
    if out is not None and options.rounds is not None:
        goal_of(options.rounds, until_round)  # before anything is made
    opened = _opened_for_training(run, out, options, without, workforce(federation, workers, worker_timeout))
    goal = goal_of(opened.plan.rounds, until_round)
    before = opened.status()
    if before.rounds_done == 0 and not as_json:
        _say_what_it_costs(opened, goal)
    with progress("training", goal, start=before.rounds_done) as advance:
        status = opened.train(until_round, on_round=advance, eval_every=eval_every)
    log.info("trained %s to round %d", status.run, status.rounds_done)
    warnings = rho_warnings(status.rho_s, status.rho_c)
    emit({**asdict(status), "warnings": warnings}, as_json, lambda: pairs(asdict(status)))
    for warning in warnings:
        warn(warning)


def _require_supported(device: str) -> None:
    if device != "cpu":
        raise InvalidInput(f"cannot train on {device!r}", hint="use cpu: only there are results bitwise repeatable")


def _opened_for_training(
    run: Path | None, out: Path | None, options: PlanOptions, without: Path | None, chosen: dict[str, Any]
) -> Run:
    from fedforget.builtin import open_run, train_run  # noqa: PLC0415 (scikit-learn, torch)

    if run is not None and out is None:
        said = options.given() + (["without"] if without else [])
        if said:
            names = ", ".join("--" + name.replace("_", "-") for name in said)
            raise InvalidInput(f"the plan of {run} is frozen, but {names} was given", hint="leave it out to go on")
        return open_run(run, **chosen)
    if out is None or run is not None:
        raise InvalidInput(
            "say which run, once", hint="give --out for a new one, or the directory of one to go on with"
        )
    return train_run(
        out,
        "digits" if options.data is None else options.data,
        60 if options.clients is None else options.clients,
        options.plan_for,
        seed=options.seed,
        without=read_requests(without) if without else [],
        **chosen,
    )


def _say_what_it_costs(opened: Run, goal: int) -> None:
    plan, size = opened.plan, state_bytes(opened.plan, opened.model_bytes())
    kept = plan.kept_count(goal)
    say(f"keeping {kept} models of {size / 1e6:.3g} MB: {kept * size / 1e6:.3g} MB in {opened.path / 'models'}")


@app.command()
def forget(
    run: Annotated[Path, typer.Argument(help="The run that shall forget.")],
    client: Annotated[str | None, typer.Option(help="The client that leaves, or whose sample goes.")] = None,
    sample: Annotated[str | None, typer.Option(help="The sample to forget.")] = None,
    batch: Annotated[Path | None, typer.Option(help="A file of requests, met together or not at all.")] = None,
    basis: Annotated[str, typer.Option(help="exogenous (looked at nothing), model-informed, or unknown.")] = "unknown",
    new_seed: Annotated[
        bool, typer.Option("--new-seed", help="Draw new seeds: full retraining, with or without a request.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only the a-priori probability and cost.")] = False,
    eval_every: EvalEvery = None,
    federation: Federation = None,
    workers: Workers = None,
    worker_timeout: WorkerTimeout = None,
    as_json: JsonOption = False,
) -> None:
    """Forget samples and clients: the run becomes, byte for byte, what it would be had they never been there."""
    requests = [] if new_seed and client is None and batch is None else _requests(client, sample, batch)
    from fedforget.builtin import open_run  # noqa: PLC0415

    if basis not in list(Basis):
        raise InvalidInput(f"unknown basis {basis!r}", hint=f"use one of: {', '.join(Basis)}")
    if dry_run:
        _dry_run(run, requests, new_seed, as_json)
        return
    opened = open_run(run, **workforce(federation, workers, worker_timeout))
    with progress("forgetting", opened.status().rounds_done) as advance:
        receipts = opened.forget(requests, basis=basis, new_seed=new_seed, on_round=advance, eval_every=eval_every)
    log.info("forgot %d requests on %s", len(receipts), run)

    def text() -> str:
        header = (
            "request",
            "level",
            "client",
            "sample",
            "first changed step",
            "recomputed steps",
            "state",
            "guarantee",
        )
        rows = [
            (r.id, r.level, r.client, r.sample, r.first_changed_step, r.recomputed_steps, r.state, r.guarantee)
            for r in receipts
        ]
        told = f"{table(header, rows)}\n\n" if rows else ""
        return f"{told}model digest  {digest or 'withdrawn: no client is left'}"

    digest = opened.status().model_digest
    emit({"receipts": [receipt.as_dict() for receipt in receipts], "model_digest": digest}, as_json, text)


def _requests(client: str | None, sample: str | None, batch: Path | None) -> list[Request]:
    if (client is None) == (batch is None) or (sample is not None and client is None):
        raise InvalidInput("say what to forget, once", hint="give --client, --client and --sample, or --batch")
    if batch is None and client is not None:
        return [Request(client, sample)]
    requests = read_requests(batch) if batch is not None else []
    if not requests:
        raise InvalidRequests(f"{batch} has no requests", hint="give at least one line")
    return list(dict.fromkeys(requests))


def _dry_run(run: Path, requests: list[Request], new_seed: bool, as_json: bool) -> None:
    from fedforget.store import run_directory  # noqa: PLC0415
    from fedforget.targets import preview  # noqa: PLC0415

    with run_directory.reading(run, settled=False) as opened:
        cost = preview(opened, requests)
        steps = opened.server.rounds_done * opened.file.plan.local_steps
    if new_seed:  # everything is trained again, whatever the draws are
        cost = ForgettingCost(float(steps > 0), float(steps), float(steps))
    facts = {"dry_run": True, "requests": len(requests), "steps": steps, **asdict(cost)}
    emit(
        facts,
        as_json,
        lambda: pairs(facts) + "\n\nnothing was changed; these figures come from the plan, not the draws",
    )
