"""The planner's picture: probability and expected cost of forgetting against ρ_S and ρ_C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedforget.algorithm.geometric import Floats, change_within, expected_rounds_redone
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.theory import client_change
from fedforget.plots.picture import BLUE, FAINT, GREY, RED, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 80
_MOST_DOTS = 40


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One request against one ρ: what varies, and the probability that a round changes."""

    title: str
    subtitle: str
    label: str
    here: int  # K or b of the plan
    largest: float  # that K or b may have
    rho_of_one: float  # ρ for each unit of K or b
    change: Callable[[Floats], Floats]

    @property
    def end(self) -> float:
        """A few times the plan's, and past ρ = 1 if that is near."""
        rho = self.here * self.rho_of_one
        return min(min(3 * rho, max(1.5, 1.5 * rho)) / self.rho_of_one, self.largest)


def draw_costs(path: Path, plan: Plan, clients: int, samples: float) -> None:
    """Probability and expected cost of forgetting against ρ_S and ρ_C, exact beside the union bound."""
    save_picture(path, lambda: _figure(plan, clients, samples))


def _figure(plan: Plan, clients: int, samples: float) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 (see above)

    figure = Figure(figsize=(10, 7.4), layout="constrained")
    panels = figure.subplots(2, 2, sharex="col")
    figure.suptitle(
        f"What forgetting costs with K = {plan.clients_per_round}, b = {plan.batch_size}, E = {plan.local_steps}, "
        f"R = {plan.rounds}\non M = {clients:,} clients of N = {samples:,.5g} samples",
        fontsize=12,
    )
    for column, sweep in enumerate((_sample_sweep(plan, clients, samples), _client_sweep(plan, clients))):
        upper, lower = panels[0, column], panels[1, column]
        upper.set_title(f"{sweep.title}\n{sweep.subtitle}", fontsize=10, pad=8)
        _panel(upper, sweep, lambda change: change_within(change, plan.rounds))
        _panel(lower, sweep, lambda change: expected_rounds_redone(change, plan.rounds) / plan.rounds)
        lower.set_xlabel(sweep.label)
    panels[0, 0].set_ylabel("probability of recomputing")
    panels[1, 0].set_ylabel(f"expected recomputation,\nshare of all {plan.steps:,} steps")
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def _sample_sweep(plan: Plan, clients: int, samples: float) -> _Sweep:
    def change(batch: Floats) -> Floats:
        held = change_within(np.minimum(batch / samples, 1.0), plan.local_steps)
        drawn: Floats = client_change(clients, plan.clients_per_round) * held
        return drawn

    return _Sweep(
        title="Forgetting one sample",
        subtitle=f"b varies; K = {plan.clients_per_round}",
        label="ρ$_S$ = b·K·T / (N·M)",
        here=plan.batch_size,
        largest=samples,
        rho_of_one=plan.clients_per_round * plan.steps / (samples * clients),
        change=change,
    )


def _client_sweep(plan: Plan, clients: int) -> _Sweep:
    return _Sweep(
        title="Forgetting one client",
        subtitle="K varies",
        label="ρ$_C$ = K·R / M",
        here=plan.clients_per_round,
        largest=np.inf,
        rho_of_one=plan.rounds / clients,
        change=lambda slots: client_change(clients, slots),
    )


def _panel(axes: Axes, sweep: _Sweep, cost: Callable[[Floats], Floats]) -> None:
    values = np.linspace(0, sweep.end, _POINTS)
    rho, exact = values * sweep.rho_of_one, cost(sweep.change(values))
    corners = np.array([0.0, min(1.0, rho[-1]), rho[-1]])
    bound = np.minimum(corners, 1.0)
    axes.plot(corners, bound, color=GREY, linestyle=(0, (5, 3)), linewidth=1.5, label="union bound, min(ρ, 1)")
    axes.plot(rho, exact, color=BLUE, linewidth=2.2, label="exact")
    whole = np.arange(1, int(sweep.end) + 1, dtype=np.float64)
    if len(whole) <= _MOST_DOTS:
        axes.plot(whole * sweep.rho_of_one, cost(sweep.change(whole)), "o", color=BLUE, markersize=3.5)
    here = np.array([float(min(sweep.here, sweep.largest))])
    x, y = float(here[0]) * sweep.rho_of_one, float(cost(sweep.change(here))[0])
    axes.plot([x], [y], "o", color=RED, markersize=8, zorder=5, clip_on=False, label="this plan")
    left = x > 0.85 * rho[-1]
    axes.annotate(
        f"{100 * y:.3g}%",
        (x, y), xytext=(-9 if left else 9, -16), textcoords="offset points", ha="right" if left else "left",
        color=RED, fontweight="bold",
    )  # fmt: skip
    axes.set_xlim(0, 1.02 * float(rho[-1]))
    axes.set_ylim(0, 1.06 * float(bound[-1]))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
    axes.grid(color=FAINT)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
