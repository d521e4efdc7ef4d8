"""Plot of the planner: probability and expected cost of forgetting against ρ_S and ρ_C."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedforget.algorithm.plan import Plan
from fedforget.planner.costs import sample_change
from fedforget.planner.geometric import Floats, change_within, expected_rounds_redone
from fedforget.planner.round_law import client_change
from fedforget.plots.picture import BLUE, FAINT, GREY, RED, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 80
_MOST_DOTS = 40
_SATURATED = 3.0  # above this ρ the axis is logarithmic: a linear one would compress the curve at its left edge
_FLAT = 20.0  # a curve this many times lower than the other is unreadable on the same axis
_MOST_LABELS = 6  # on a logarithmic axis


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One panel: one kind of request against one ρ, with each group of targets, its share and its law."""

    title: str
    subtitle: str
    label: str
    here: int  # K or b of the plan
    largest: float  # the largest possible K or b
    rho: Callable[[Floats], Floats]
    parts: Sequence[tuple[float, Callable[[Floats], Floats]]]

    @property
    def plan(self) -> Floats:
        return np.array([float(min(self.here, self.largest))])

    @property
    def saturated(self) -> bool:
        return float(self.rho(self.plan)[0]) > _SATURATED

    def values(self) -> Floats:
        """Return whole numbers up to a few times the plan's value, and past ρ = 1 if that is near."""
        one, rho = float(self.rho(np.ones(1))[0]), float(self.rho(self.plan)[0])
        end = int(max(1.0, min(min(3 * rho, max(1.5, 1.5 * rho)) / one, self.largest)))
        spread = np.geomspace if self.saturated else np.linspace
        return np.unique(np.append(np.rint(spread(1, end, min(end, _POINTS))), self.plan))

    @property
    def top(self) -> float:
        """The largest value drawn: that of the union bound."""
        return min(1.0, float(self.rho(self.values())[-1]))

    def cost(self, values: Floats, of_change: Callable[[Floats], Floats]) -> Floats:
        """Average over the targets, as the table of ``fedforget plan`` does."""
        return np.asarray(np.sum([share * of_change(change(values)) for share, change in self.parts], axis=0))


def draw_costs(path: Path, plan: Plan, sizes: Mapping[int, int]) -> None:
    """Plot the probability and expected cost of forgetting against ρ_S and ρ_C: exact, and the union bound.

    ``sizes`` maps a number of samples to the number of clients that have it.
    """
    save_picture(path, lambda: _figure(plan, sizes))


def _figure(plan: Plan, sizes: Mapping[int, int]) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 (see above)

    figure = Figure(figsize=(10, 7.4), layout="constrained")
    panels = figure.subplots(2, 2, sharex="col")
    figure.suptitle(
        f"What forgetting costs with K = {plan.clients_per_round}, b = {plan.batch_size}, E = {plan.local_steps}, "
        f"R = {plan.rounds}\non {_described(sizes)}",
        fontsize=12,
    )
    sweeps = (_sample_sweep(plan, sizes), _client_sweep(plan, sum(sizes.values())))
    for column, (sweep, top) in enumerate(zip(sweeps, _tops([sweep.top for sweep in sweeps]), strict=True)):
        upper, lower = panels[0, column], panels[1, column]
        upper.set_title(f"{sweep.title}\n{sweep.subtitle}", fontsize=10, pad=8)
        _panel(upper, sweep, top, lambda change: change_within(change, plan.rounds))
        _panel(lower, sweep, top, lambda change: expected_rounds_redone(change, plan.rounds) / plan.rounds)
        lower.set_xlabel(sweep.label)
    panels[0, 0].set_ylabel("probability of recomputing")
    panels[1, 0].set_ylabel(f"expected recomputation,\nshare of {_counted(plan.steps, 'step')}")
    lines, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def _tops(tops: Sequence[float]) -> list[float]:
    """Return the top of each panel: a common one, unless a curve would then be too flat to read."""
    return [max(tops)] * len(tops) if max(tops) < _FLAT * min(tops) else list(tops)


def _described(sizes: Mapping[int, int]) -> str:
    smallest, largest = min(sizes), max(sizes)
    each = _counted(largest, "sample") if smallest == largest else f"{smallest:,} to {largest:,} samples"
    return f"{_counted(sum(sizes.values()), 'client')} of {each}"


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _sample_sweep(plan: Plan, sizes: Mapping[int, int]) -> _Sweep:
    clients, in_all = sum(sizes.values()), sum(size * number for size, number in sizes.items())

    def change(size: int) -> Callable[[Floats], Floats]:
        world = {"clients": clients, "clients_per_round": plan.clients_per_round, "local_steps": plan.local_steps}
        return lambda batch: sample_change(size, batch_size=batch, **world)

    def rho(batch: Floats) -> Floats:
        held = sum(number / in_all * np.minimum(batch, size) for size, number in sizes.items())
        return np.asarray(plan.clients_per_round * plan.steps / clients * held)

    several = len(sizes) > 1
    return _Sweep(
        title="Forgetting one average sample" if several else "Forgetting one sample",
        subtitle=f"b varies; K = {plan.clients_per_round}",
        label="ρ$_S$ = b·K·T / (N·M)" + (", on average over the samples" if several else ""),
        here=plan.batch_size,
        largest=float(max(sizes)),
        rho=rho,
        parts=[(size * number / in_all, change(size)) for size, number in sizes.items()],
    )


def _client_sweep(plan: Plan, clients: int) -> _Sweep:
    return _Sweep(
        title="Forgetting one client",
        subtitle="K varies",
        label="ρ$_C$ = K·R / M",
        here=plan.clients_per_round,
        largest=np.inf,
        rho=lambda slots: slots * plan.rounds / clients,
        parts=[(1.0, lambda slots: client_change(clients, slots))],
    )


def _panel(axes: Axes, sweep: _Sweep, top: float, of_change: Callable[[Floats], Floats]) -> None:
    values = sweep.values()
    rho, exact = sweep.rho(values), sweep.cost(values, of_change)
    start = float(rho[0]) if sweep.saturated else 0.0
    corners = np.unique([start, *(corner for corner in (1.0,) if start < corner < rho[-1]), float(rho[-1])])
    if sweep.saturated:
        axes.set_xscale("log")
        axes.set_xticks(log_ticks(float(rho[0]), float(rho[-1])))
        axes.set_xticks([], minor=True)
        corners = np.unique(np.append(corners, np.geomspace(start, float(rho[-1]), _POINTS)))
    axes.plot(
        corners, np.minimum(corners, 1.0), color=GREY, linestyle=(0, (5, 3)), linewidth=1.5,
        label="union bound, min(ρ, 1)",
    )  # fmt: skip
    dots = "o" if len(values) <= _MOST_DOTS else ""
    axes.plot(rho, exact, color=BLUE, linewidth=2.2, marker=dots, markersize=3.5, label="exact")
    x, y = float(sweep.rho(sweep.plan)[0]), float(sweep.cost(sweep.plan, of_change)[0])
    axes.plot([x], [y], "o", color=RED, markersize=8, zorder=5, clip_on=False, label="this plan")
    at_the_end = x > 0.85 * rho[-1]
    on_the_axis = y < 0.12 * top
    axes.annotate(
        _percent(y), (x, y), xytext=(-9, 7) if at_the_end else (0, 11) if on_the_axis else (9, -16),
        textcoords="offset points",
        ha="right" if at_the_end else "center" if on_the_axis else "left", color=RED, fontweight="bold",
    )  # fmt: skip
    if not sweep.saturated:
        axes.set_xlim(0, 1.02 * float(rho[-1]))
    axes.set_ylim(0, 1.08 * top)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.yaxis.set_major_formatter(lambda share, _: _percent(share))
    axes.grid(color=FAINT)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def log_ticks(start: float, end: float) -> list[float]:
    """Return round numbers on a logarithmic axis, few enough that their labels do not overlap."""
    decades = range(math.floor(math.log10(start)), math.ceil(math.log10(end)) + 1)
    inside = list[float]()
    for digits in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        inside = [tick for decade in decades for digit in digits if start <= (tick := digit * 10.0**decade) <= end]
        if len(inside) <= _MOST_LABELS:
            return inside if len(inside) > 1 else [start, end]
    return inside[:: math.ceil(len(inside) / _MOST_LABELS)]


def _percent(share: float) -> str:
    """Format a share in percent with three digits, without an exponent."""
    if share in (0.0, 1.0):
        return f"{100 * share:.0f}%"
    digits = max(0, 2 - math.floor(math.log10(abs(100 * share))))
    return f"{100 * share:.{digits}f}".rstrip("0").rstrip(".") + "%" if digits else f"{100 * share:.0f}%"
