"""The command ``plan``: the cost of a plan before training, and the search for the plan cheapest to forget from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedforget.algorithm.plan import Plan
from fedforget.cli.app import app
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import DataDir, PlanOptions
from fedforget.cli.output import Output
from fedforget.cli.plan_search import SearchOptions, Whole, found, with_steps
from fedforget.cli.plan_text import text_of
from fedforget.data.registry import DIGITS
from fedforget.errors import InvalidInput, PlanRefused
from fedforget.federation.pool import default_workers
from fedforget.planner.report import Circumstances, facts_of
from fedforget.planner.search import Choice, cheapest_plans
from fedforget.planner.windows import Requests
from fedforget.requests.policy import BATCH, Policy

DIGITS_MLP_BYTES = 4 * (64 * 64 + 64 + 64 * 10 + 10)
_WINDOWS = (1.0, 7.0, 30.0)
_MOST_CLIENTS = 10**7  # the planner lists the size of each


@dataclass(frozen=True, slots=True)
class Expectation:
    """The clients, and the expected requests."""

    samples: Annotated[Whole, typer.Option(help="Samples per client (N), instead of a dataset.")] = None
    steps: Annotated[Whole, typer.Option(help="Steps in all (T), instead of --rounds or --local-steps.")] = None
    model_bytes: Annotated[
        Whole,
        typer.Option(
            help="Size of the model, for storage and traffic.",
            show_default=f"that of the dataset's model; {DIGITS_MLP_BYTES}, digits' MLP",
        ),
    ] = None
    workers: Annotated[Whole, typer.Option(help="Processes of the pool.", show_default="one per core")] = None
    requests_per_day: Annotated[float, typer.Option(help="Expected rate of erasure requests.")] = 1.0
    sample_share: Annotated[float, typer.Option(help="Share of requests for a sample, not a client.")] = 0.5
    window: Annotated[
        list[float] | None,
        typer.Option(help="Days to collect requests for; may be repeated.", show_default="1, 7, 30"),
    ] = None
    several: Annotated[int, typer.Option(help="Number of requests, at once and one after the other.")] = 10

    def __post_init__(self) -> None:
        for name in ("workers", "model_bytes", "several"):
            value = getattr(self, name)
            if value is not None and value < 1:
                option = "--" + name.replace("_", "-")
                raise InvalidInput(f"{option} must be a whole number from 1, not {value}", hint="correct the value")
        for days in self.window or ():
            Policy.of_days(BATCH, days)  # raises for a window that no run can have

    def circumstances(self, sizes: Sequence[int], model_bytes: int) -> Circumstances:
        try:
            requests = Requests(self.requests_per_day, self.sample_share)
        except ValueError as error:
            raise InvalidInput(str(error), hint="correct --requests-per-day or --sample-share") from error
        return Circumstances(
            sizes=Counter(sizes),
            model_bytes=self.model_bytes or model_bytes,
            workers=self.workers or default_workers(),
            requests=requests,
            windows=self.window or _WINDOWS,
            several=self.several,
        )


@app.command(short_help="Show what a plan costs, before training.")
@grouped
def plan(
    *,
    options: PlanOptions,
    expected: Expectation,
    search: SearchOptions,
    data_dir: DataDir = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the costs over both rhos into a .png, .svg or .pdf.")] = None,
    output: Output,
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
    options = options.with_file().with_preset()
    search.require_find()
    needs = search.needs(options, expected.steps) if search.find else None
    if needs is None:
        options = with_steps(options, expected.steps)
        _require_a_plan(options)
    sizes = _sizes(options, expected.samples, data_dir)
    here = expected.circumstances(sizes, _model_bytes(options, expected))
    choices = [] if needs is None else cheapest_plans(here.sizes, needs, search.limits, expected.sample_share)
    if choices:
        options = found(choices, options)
    binding = search.binding(choices[0]) if choices else []
    _show(options.plan_for(sizes), here, choices, binding, plot, output)


def _show(
    made: Plan,
    here: Circumstances,
    choices: Sequence[Choice],
    binding: Sequence[str],
    plot: Path | None,
    output: Output,
) -> None:
    facts = facts_of(made, here)
    warnings = rho_warnings(facts["rho_s"], facts["rho_c"], "the probabilities here are exact")
    if choices:
        facts["found"] = {"binding": list(binding), "choices": [asdict(choice) for choice in choices]}
    if plot is not None:
        from fedforget.plots.costs import draw_costs  # noqa: PLC0415 (matplotlib)

        draw_costs(plot, made, here.sizes)
        facts["plot"] = str(plot)
    output.emit({**facts, "warnings": warnings}, lambda: text_of(facts, choices, binding))
    for warning in warnings:
        output.warn(warning)


def _require_a_plan(options: PlanOptions) -> None:
    named = {"rho_s", "rho_c", "clients_per_round", "batch_size", "rounds", "local_steps"}
    if not named & set(options.given()):
        raise PlanRefused(
            "there is no plan to show",
            hint="give --rounds, --local-steps, and --rho-s with --rho-c or --clients-per-round with --batch-size; "
            "`fedforget plan --help` has examples",
        )


def _model_bytes(options: PlanOptions, expected: Expectation) -> int:
    """Return the size of the dataset's model."""
    if options.data in (None, DIGITS) or expected.model_bytes is not None:
        return DIGITS_MLP_BYTES
    from fedforget.builtin import model_bytes_of  # noqa: PLC0415 (torch)

    return model_bytes_of(str(options.data), options.model)


def _sizes(options: PlanOptions, samples: int | None, data_dir: Path | None) -> list[int]:
    if samples is None:
        from fedforget.builtin import sizes_of  # noqa: PLC0415 (scikit-learn)

        return sizes_of(options.data_choice(data_dir), options.seed)
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
