"""The planner's command: what a plan means before anything is trained."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fedforget.algorithm.plan import Plan
from fedforget.algorithm.theory import ForgettingCost, Loss, forgetting_cost
from fedforget.cli.app import app
from fedforget.cli.options import (
    BatchSize,
    Clients,
    Config,
    Data,
    LocalSteps,
    PerRound,
    PlanOptions,
    RhoC,
    RhoS,
    Rounds,
    Seed,
)
from fedforget.cli.output import JsonOption, emit, pairs, table, warn
from fedforget.errors import InvalidInput


@app.command()
def plan(
    data: Data = None,
    clients: Clients = None,
    samples: Annotated[int | None, typer.Option(help="Samples per client (N), instead of a dataset.")] = None,
    rho_s: RhoS = None,
    rho_c: RhoC = None,
    clients_per_round: PerRound = None,
    batch_size: BatchSize = None,
    rounds: Rounds = None,
    local_steps: LocalSteps = None,
    seed: Seed = None,
    config: Config = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a plan means: K, b, E, R, the rho they realise, and what forgetting will cost."""
    options = PlanOptions(
        data=data, clients=clients, rho_s=rho_s, rho_c=rho_c, clients_per_round=clients_per_round,
        batch_size=batch_size, rounds=rounds, local_steps=local_steps, seed=seed,
    ).with_file(config)  # fmt: skip
    sizes = _sizes(options, samples)
    made = options.plan_for(sizes)
    costs = {
        "sample": _cost(made, len(sizes), Loss(min(sizes), 1)),
        "client": _cost(made, len(sizes), Loss(min(sizes), None)),
    }
    facts = {
        "clients": len(sizes), "samples": sum(sizes), "clients_per_round": made.clients_per_round,
        "batch_size": made.batch_size, "local_steps": made.local_steps, "rounds": made.rounds, "steps": made.steps,
        "rho_s": made.realised_rho_s(sizes), "rho_c": made.realised_rho_c(len(sizes)),
    }  # fmt: skip
    warnings = rho_warnings(facts["rho_s"], facts["rho_c"])

    def text() -> str:
        rows = [(level, c.probability, c.expected_steps, c.expected_steps_from_first_use) for level, c in costs.items()]
        header = ("forgetting one", "P(recompute)", f"expected steps of {made.steps}", "from the first use")
        return f"{pairs(facts)}\n\n{table(header, rows)}"

    emit({**facts, **{level: asdict(cost) for level, cost in costs.items()}, "warnings": warnings}, as_json, text)
    for warning in warnings:
        warn(warning)


def _sizes(options: PlanOptions, samples: int | None) -> list[int]:
    if samples is None:
        from fedforget.builtin import sizes_of  # noqa: PLC0415 (scikit-learn)

        return sizes_of(options.data or "digits", 60 if options.clients is None else options.clients, options.seed)
    if options.clients is None or options.clients < 1 or samples < 1:
        raise InvalidInput("--samples needs --clients, both from 1", hint="give M and N, or a dataset with --data")
    return [samples] * options.clients


def _cost(made: Plan, clients: int, loss: Loss) -> ForgettingCost[float]:
    return forgetting_cost(
        [loss], clients=clients, clients_per_round=made.clients_per_round, batch_size=made.batch_size,
        local_steps=made.local_steps, rounds=made.rounds,
    )  # fmt: skip


def rho_warnings(rho_s: float, rho_c: float) -> list[str]:
    return [
        f"{name} = {value:.4g} is above 1: expect nearly every such request to recompute"
        for name, value in (("rho_s", rho_s), ("rho_c", rho_c))
        if value > 1
    ]
