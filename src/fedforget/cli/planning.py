"""The command ``plan``: the cost of a plan before training, and the search for the plan cheapest to forget from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedforget.algorithm.plan import Plan
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
    ServerOptimizerName,
    Workers,
)
from fedforget.cli.output import JsonOption, emit, warn
from fedforget.cli.plan_search import Sought, found, said, with_steps
from fedforget.cli.plan_text import text_of
from fedforget.errors import InvalidInput, PlanRefused
from fedforget.planner.report import Circumstances, facts_of
from fedforget.planner.search import Choice, Limits, cheapest_plans
from fedforget.planner.windows import Requests

DIGITS_MLP_BYTES = 4 * (64 * 64 + 64 + 64 * 10 + 10)
_WINDOWS = (1.0, 7.0, 30.0)
_MOST_CLIENTS = 10**7  # the planner lists the size of each

Whole = int | None
Real = float | None


def _option(text: str, **settings: Any) -> Any:
    return typer.Option(help=text, **settings)


@app.command()
def plan(
    data: Data = None,
    clients: Clients = None,
    samples: Annotated[Whole, _option("Samples per client (N), instead of a dataset.")] = None,
    rho_s: RhoS = None,
    rho_c: RhoC = None,
    clients_per_round: PerRound = None,
    batch_size: BatchSize = None,
    rounds: Rounds = None,
    local_steps: LocalSteps = None,
    steps: Annotated[Whole, _option("Steps in all (T), instead of --rounds or --local-steps.")] = None,
    keep: Annotated[str | None, _option("Models to keep: every, ends, or each N-th.", show_default="every")] = None,
    server_optimizer: ServerOptimizerName = None,
    model_bytes: Annotated[
        Whole, _option("Size of the model, for storage and traffic.", show_default=f"{DIGITS_MLP_BYTES}, digits' MLP")
    ] = None,
    workers: Workers = None,
    requests_per_day: Annotated[float, _option("How many erasure requests come in.")] = 1.0,
    sample_share: Annotated[float, _option("Which share of them is for a sample, not a client.")] = 0.5,
    window: Annotated[
        list[float] | None, _option("Days to collect requests for; may be repeated.", show_default="1, 7, 30")
    ] = None,
    several: Annotated[int, _option("How many requests to meet at once, and one after the other.")] = 10,
    find: Annotated[bool, typer.Option("--find", help="Find the K, b and E that are cheapest to forget from.")] = False,
    min_samples_per_step: Annotated[Whole, _option("With --find: least K*b that training needs.")] = None,
    min_clients_per_round: Annotated[Whole, _option("With --find: least K.", show_default="1")] = None,
    min_batch_size: Annotated[Whole, _option("With --find: least b.", show_default="1")] = None,
    max_local_steps: Annotated[Whole, _option("With --find: most E that training bears.")] = None,
    max_rounds: Annotated[Whole, _option("With --find: most R, for the sake of traffic.")] = None,
    max_rho_s: Annotated[Real, _option("With --find: most rho_s, of the smallest client.")] = None,
    max_rho_c: Annotated[Real, _option("With --find: most rho_c.")] = None,
    max_sample_probability: Annotated[
        Real, _option("With --find: most P(recompute) for a sample of the smallest client.")
    ] = None,
    max_client_probability: Annotated[Real, _option("With --find: most P(recompute) for a client.")] = None,
    plot: Annotated[Path | None, _option("Draw the costs over both rhos into a .png, .svg or .pdf.")] = None,
    seed: Seed = None,
    config: Config = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a plan means before training: the rho it realises, and what forgetting, storage and traffic cost.

    Say who takes part (--clients and --samples, or a dataset with --data), how long training is (two of --rounds,
    --local-steps and --steps), and either --rho-s and --rho-c or --clients-per-round and --batch-size:

    \b
      fedforget plan --clients 300 --samples 200 --rho-s 0.25 --rho-c 0.5 --rounds 30 --local-steps 10
      fedforget plan --data digits --clients-per-round 6 --batch-size 8 --rounds 20 --local-steps 5 --plot costs.png

    Or have K, b and E found. With --find, say what training needs: --steps, at least --min-samples-per-step (or both
    --min-clients-per-round and --min-batch-size), at most --max-local-steps; and what forgetting may cost at most
    (--max-rho-s and others). Of the plans that fit, it takes the one with the fewest expected recomputed steps per
    request, where --sample-share of the requests are for a sample and the others for a client:

    \b
      fedforget plan --find --clients 300 --samples 200 --steps 300 --min-samples-per-step 50 --max-local-steps 10
          --min-clients-per-round 4 --max-rho-c 0.5
    """
    options = PlanOptions(
        data=data, clients=clients, rho_s=rho_s, rho_c=rho_c, clients_per_round=clients_per_round,
        batch_size=batch_size, rounds=rounds, local_steps=local_steps, seed=seed, keep=keep,
        server_optimizer=server_optimizer,
    ).with_file(config)  # fmt: skip
    limits = said(
        rho_s=max_rho_s, rho_c=max_rho_c, sample_probability=max_sample_probability,
        client_probability=max_client_probability,
    )  # fmt: skip
    sought = Sought(
        min_samples_per_step, min_clients_per_round, min_batch_size, max_local_steps, max_rounds, Limits(**limits)
    )
    if not find and sought != Sought():
        raise InvalidInput("limits are for finding a plan", hint="add --find, or leave out --min-... and --max-...")
    needs = sought.needs(options, steps) if find else None
    if needs is None:
        options = with_steps(options, steps)
        _require_a_plan(options)
    requests = _requests(requests_per_day, sample_share, window)
    crew, model_size = _whole("--workers", workers), _whole("--model-bytes", model_bytes)
    sizes = _sizes(options, samples)
    _whole("--several", several)
    here = Circumstances(
        Counter(sizes), model_size or DIGITS_MLP_BYTES, crew or _cores(), requests, window or _WINDOWS, several
    )
    choices = [] if needs is None else cheapest_plans(here.sizes, needs, sought.limits, sample_share)
    if choices:
        options = found(choices, options)
    binding = sought.binding(choices[0]) if choices else []
    _show(options.plan_for(sizes), here, choices, binding, plot, as_json)


def _show(
    made: Plan, here: Circumstances, choices: Sequence[Choice], binding: Sequence[str], plot: Path | None, as_json: bool
) -> None:
    facts = facts_of(made, here)
    warnings = rho_warnings(facts["rho_s"], facts["rho_c"], "the probabilities here are exact")
    if choices:
        facts["found"] = {"binding": list(binding), "choices": [asdict(choice) for choice in choices]}
    if plot is not None:
        from fedforget.plots.costs import draw_costs  # noqa: PLC0415 (matplotlib)

        draw_costs(plot, made, here.sizes)
        facts["plot"] = str(plot)
    emit({**facts, "warnings": warnings}, as_json, lambda: text_of(facts, choices, binding))
    for warning in warnings:
        warn(warning)


def _require_a_plan(options: PlanOptions) -> None:
    named = {"rho_s", "rho_c", "clients_per_round", "batch_size", "rounds", "local_steps"}
    if not named & set(options.given()):
        raise PlanRefused(
            "there is no plan to show",
            hint="give --rounds, --local-steps, and --rho-s with --rho-c or --clients-per-round with --batch-size; "
            "`fedforget plan --help` has examples",
        )


def _requests(per_day: float, sample_share: float, window: Sequence[float] | None) -> Requests:
    for days in window or ():
        if not 0 < days < float("inf"):
            raise InvalidInput(f"a window cannot have {days} days", hint="give --window a number above 0")
    try:
        return Requests(per_day, sample_share)
    except ValueError as error:
        raise InvalidInput(str(error), hint="correct --requests-per-day or --sample-share") from error


def _whole(name: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise InvalidInput(f"{name} must be a whole number from 1, not {value}", hint="correct the value")
    return value


def _cores() -> int:
    from fedforget.federation.pool import default_workers  # noqa: PLC0415 (only as the default)

    return default_workers()


def _sizes(options: PlanOptions, samples: int | None) -> list[int]:
    if samples is None:
        from fedforget.builtin import sizes_of  # noqa: PLC0415 (scikit-learn)

        return sizes_of(options.data or "digits", 60 if options.clients is None else options.clients, options.seed)
    if options.data is not None:
        raise InvalidInput("both --samples and --data are given", hint="give M and N, or a dataset with --data")
    if options.clients is None:
        raise InvalidInput("--samples needs --clients", hint="give M and N, or a dataset with --data")
    for name, value in (("clients", options.clients), ("samples", samples)):
        if value < 1:
            raise PlanRefused(f"--{name} must be a whole number from 1, not {value}", hint="the nearest feasible is 1")
    if options.clients > _MOST_CLIENTS:
        raise InvalidInput(f"{options.clients} clients are too many", hint=f"plan for at most {_MOST_CLIENTS}")
    return [samples] * options.clients


def rho_warnings(
    rho_s: float, rho_c: float, instead: str = "`fedforget plan` gives the exact probability"
) -> list[str]:
    return [
        f"{name} = {value:.4g} is above 1, where it bounds nothing: {instead}"
        for name, value in (("rho_s", rho_s), ("rho_c", rho_c))
        if value > 1
    ]
