"""``fedforget plan --find``: turn command line options into the arguments of the plan search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from fedforget.cli.options import PlanOptions, given_only
from fedforget.errors import InvalidInput, PlanRefused
from fedforget.planner.search import Choice, Limits, Needs

Whole = int | None
Real = float | None


def with_find(text: str, **settings: Any) -> Any:
    return typer.Option(help=f"With --find: {text}.", **settings)


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Lower limits for training, and upper limits for the cost of forgetting."""

    find: Annotated[bool, typer.Option("--find", help="Find the K, b and E that are cheapest to forget from.")] = False
    min_samples_per_step: Annotated[Whole, with_find("least K*b that training needs")] = None
    min_clients_per_round: Annotated[Whole, with_find("least K", show_default="1")] = None
    min_batch_size: Annotated[Whole, with_find("least b", show_default="1")] = None
    max_local_steps: Annotated[Whole, with_find("most E that training tolerates")] = None
    max_rounds: Annotated[Whole, with_find("most R, for the sake of traffic")] = None
    max_rho_s: Annotated[Real, with_find("most rho_s, of the smallest client")] = None
    max_rho_c: Annotated[Real, with_find("most rho_c")] = None
    max_sample_probability: Annotated[Real, with_find("most P(recompute) for a sample of the smallest client")] = None
    max_client_probability: Annotated[Real, with_find("most P(recompute) for a client")] = None

    def require_find(self) -> None:
        if not self.find and replace(self, find=True) != SearchOptions(find=True):
            raise InvalidInput("limits are for finding a plan", hint="add --find, or leave out --min-... and --max-...")

    @property
    def limits(self) -> Limits:
        return Limits(
            **given_only(
                rho_s=self.max_rho_s, rho_c=self.max_rho_c, sample_probability=self.max_sample_probability,
                client_probability=self.max_client_probability,
            )
        )  # fmt: skip

    def needs(self, options: PlanOptions, steps: int | None) -> Needs:
        """Refuse options that do not bound K, b and E: the cheapest plan would learn nothing."""
        fixed = [name for name in ("rho_s", "rho_c", "clients_per_round", "batch_size") if name in options.given()]
        if fixed:
            raise PlanRefused(
                f"--find chooses K and b, but {fixed[0].replace('_', ' ')} is given",
                hint="give limits instead: --max-rho-s, --max-rho-c, --min-clients-per-round, --min-batch-size",
            )
        if self.min_samples_per_step is None and None in (self.min_clients_per_round, self.min_batch_size):
            raise PlanRefused(
                "--find must know how many samples a step needs, or K = b = 1 would be the answer",
                hint="give --min-samples-per-step, or both --min-clients-per-round and --min-batch-size",
            )
        lengths = [value for value in (options.rounds, options.local_steps, steps) if value is not None]
        if len(lengths) > 1:
            options = with_steps(options, steps)
            steps = (options.rounds or 0) * (options.local_steps or 0)
        if steps is None:
            raise PlanRefused("--find must know how long training is", hint="give --steps")
        if self.max_local_steps is None and options.local_steps is None:
            raise PlanRefused(
                "--find must know how many local steps training tolerates, or one long round would be the answer",
                hint="give --max-local-steps, or fix --local-steps",
            )
        most = min(value for value in (self.max_local_steps, options.local_steps) if value is not None)
        return Needs(
            steps,
            **given_only(
                samples_per_step=self.min_samples_per_step, clients_per_round=self.min_clients_per_round,
                batch_size=self.min_batch_size, least_local_steps=options.local_steps, most_local_steps=most,
                most_rounds=self.max_rounds,
            ),
        )  # fmt: skip

    def binding(self, best: Choice) -> list[str]:
        """Return the limits that the best plan just meets: relaxing one would make forgetting cheaper."""
        enough = self.min_samples_per_step is not None and (
            (best.clients_per_round - 1) * best.batch_size < self.min_samples_per_step
        )
        clients, batch = self.min_clients_per_round or 1, self.min_batch_size or 1
        met = {
            f"--min-samples-per-step {self.min_samples_per_step}": enough,
            f"--min-clients-per-round {clients}": best.clients_per_round == clients > 1,
            f"--min-batch-size {batch}": best.batch_size == batch > 1,
            f"--max-local-steps {self.max_local_steps}": best.local_steps == self.max_local_steps,
        }
        return [need for need, only_just in met.items() if only_just]


def with_steps(options: PlanOptions, steps: int | None) -> PlanOptions:
    """T = E·R gives the one of R and E that is missing."""
    if steps is None:
        return options
    rounds, local_steps = options.rounds, options.local_steps
    if rounds is not None and local_steps is not None:
        if rounds * local_steps != steps:
            raise PlanRefused(
                f"{rounds} rounds of {local_steps} steps are not {steps} steps",
                hint="give two of --rounds, --local-steps and --steps",
            )
        return options
    if rounds is not None:
        return replace(options, local_steps=_part(steps, rounds, "rounds"))
    if local_steps is not None:
        return replace(options, rounds=_part(steps, local_steps, "local steps"))
    raise PlanRefused("--steps alone does not say how long a round is", hint="add --local-steps or --rounds")


def _part(steps: int, known: int, name: str) -> int:
    if known < 1 or steps < 1 or steps % known:
        unit = max(1, known)
        below = max(1, steps // unit) * unit
        raise PlanRefused(
            f"{steps} steps cannot be divided by {known} {name}",
            hint=f"the nearest feasible numbers of steps are {below} and {below + unit}",
        )
    return steps // known


def found(choices: Sequence[Choice], options: PlanOptions) -> PlanOptions:
    """Return the options completed with the best choice."""
    best = choices[0]
    return replace(
        options, clients_per_round=best.clients_per_round, batch_size=best.batch_size, local_steps=best.local_steps,
        rounds=best.rounds,
    )  # fmt: skip
