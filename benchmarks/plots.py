"""The pictures of docs/performance.md, drawn from what the benchmarks handed over."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

OURS, OTHER, INK, SOFT, FAINT = "#0b69a3", "#9aa5b1", "#1f2933", "#52606d", "#e4e7eb"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": "#cbd2d9",
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedforget",
}


def draw_growth(path: Path, sweeps: dict[str, Any]) -> None:
    """One column for each of K, E, R, M, N: a round's time above, the run's memory below."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11.5, 5.2), layout="constrained")
        axes = figure.subplots(2, len(sweeps), sharex="col", sharey="row")
        for column, sweep in enumerate(sweeps.values()):
            _growth_of_time(axes[0][column], sweep)
            _growth_of_memory(axes[1][column], sweep)
        lowest = min(point["round"] for sweep in sweeps.values() for point in sweep["points"])
        highest = max(point["round"] for sweep in sweeps.values() for point in sweep["points"])
        axes[0][0].set_ylim(0.6e3 * lowest, 1.7e3 * highest)
        axes[1][0].set_ylim(0, None)
        axes[0][0].set_ylabel("a round, ms")
        axes[1][0].set_ylabel("peak memory, MB")
        meanings = [
            Line2D([], [], color=OURS, lw=2, marker="o", ms=4.5, label="measured"),
            Line2D([], [], color=OTHER, lw=1, dashes=(4, 3), label="in proportion to what varies"),
            Patch(color=OURS, alpha=0.18, lw=0, label="memory of the run"),
            Patch(color=FAINT, lw=0, label="of Python, torch and the data before it"),
        ]
        figure.legend(handles=meanings, loc="outside lower center", ncols=len(meanings), frameon=False, fontsize=8)
        _save(figure, path)


def _growth_of_time(axes: Axes, sweep: dict[str, Any]) -> None:
    values = [point["value"] for point in sweep["points"]]
    times = [1e3 * point["round"] for point in sweep["points"]]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot([values[0], values[-1]], [times[0], times[0] * values[-1] / values[0]], color=OTHER, lw=1, dashes=(4, 3))
    axes.plot(values, times, color=OURS, lw=2, marker="o", ms=4.5)
    axes.set_title(sweep["label"], loc="left", fontweight="bold", pad=18)
    others = ", ".join(f"{key}={value:,}" for key, value in sweep["others"].items())
    axes.text(0, 1.03, others, transform=axes.transAxes, color=SOFT, fontsize=7.5)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _tidy(axes, values)


def _growth_of_memory(axes: Axes, sweep: dict[str, Any]) -> None:
    values = [point["value"] for point in sweep["points"]]
    before, peak = ([point[key] for point in sweep["points"]] for key in ("before", "peak"))
    axes.fill_between(values, before, color=FAINT, lw=0)
    axes.fill_between(values, before, peak, color=OURS, alpha=0.18, lw=0)
    axes.plot(values, peak, color=OURS, lw=2, marker="o", ms=4.5)
    _tidy(axes, values)


def _tidy(axes: Axes, values: list[int]) -> None:
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=3, labelsize=8)


def draw_training(path: Path, pool: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """One panel for each case: a round of the bare loop, of FedForget and of other simulators, FedForget's being 1.

    Whatever is shown beside FedForget took turns with it.
    """
    cases = {bars["case"]: bars for bars in pool}
    cases.update({bars["case"]: bars for bars in others if bars["case"] not in cases})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 0.5 + 1.35 * len(cases)), layout="constrained")
        panels = figure.subplots(len(cases), 1, squeeze=False)[:, 0]
        for axes, (case, bars) in zip(panels, cases.items(), strict=True):
            rows = [
                ("bare PyTorch loop, nothing saved", bars["bare_ratios"], bars["bare"], OTHER),
                ("FedForget, every round on disk", [1.0], bars["own"], OURS),
                *(
                    (f"{other['other_name']}’s simulation, nothing saved", other["other_ratios"], other["other"], OTHER)
                    for other in others
                    if other["case"] == case
                ),
            ]
            _bars(axes, case, rows)
        panels[-1].set_xlabel("time of a round, FedForget = 1; whiskers: lowest and highest of the turns")
        _save(figure, path)


COSTS = {
    "free": "a free request", "defer": "a deferred request", "status": "status", "first": "train, to the first round",
    "making": "making the run", "verify": "verify",
}  # fmt: skip
MARKS = ("o", "s", "^", "D", "v", "P")
PALETTE = (OURS, "#c05621", "#2f855a", "#805ad5", "#718096", "#b7791f")


def draw_requests(path: Path, sizes: list[dict[str, Any]], history: list[dict[str, Any]]) -> None:
    """What a request, and what is around it, costs by clients, by samples, and by requests that were met before."""
    few = [point for point in sizes if point["samples"] == 20]
    wide = [point for point in sizes if point["clients"] == 300]
    panels = [("clients", few, "clients M", "20 samples each"), ("samples", wide, "samples N", "300 clients")]
    panels += [
        ("met", [{**each, "met": max(each["met"], 1)} for each in history], "requests met before", "10,000 × 20")
    ]
    panels = [panel for panel in panels if len(panel[1]) > 1]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11.5, 4.2), layout="constrained")
        columns = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (key, points, title, others) in zip(columns, panels, strict=True):
            _costs(axes, key, points)
            axes.set_title(title, loc="left", fontweight="bold", pad=18)
            axes.text(0, 1.03, others, transform=axes.transAxes, color=SOFT, fontsize=7.5)
        columns[0].set_ylabel("seconds")
        columns[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        lines = [
            Line2D([], [], color=colour, lw=2, marker=mark, ms=4.5, label=label)
            for colour, mark, label in zip(PALETTE, MARKS, COSTS.values(), strict=True)
        ]
        figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False, fontsize=8)
        _save(figure, path)


def _costs(axes: Axes, key: str, points: list[dict[str, Any]]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for cost, colour, mark in zip(COSTS, PALETTE, MARKS, strict=True):
        found = [(point[key], point[cost]) for point in points if cost in point]
        if found:
            axes.plot(*zip(*found, strict=True), color=colour, lw=2, marker=mark, ms=4.5)
    _tidy(axes, [point[key] for point in points])
    if key == "met":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: "none" if value <= 1 else f"{value:,.0f}"))


def _bars(axes: Axes, title: str, rows: list[tuple[str, list[float], float, str]]) -> None:
    for place, (_, ratios, seconds, colour) in enumerate(rows):
        middle = statistics.median(ratios)
        axes.barh(place, middle, color=colour, height=0.62)
        if len(ratios) > 1:
            axes.plot([min(ratios), max(ratios)], [place, place], color=INK, lw=1.2, solid_capstyle="butt")
        took = f"{seconds:.2f} s" if seconds >= 0.5 else f"{1e3 * seconds:.0f} ms"
        axes.annotate(
            f"{middle:.3g} ×  ({took})",
            (max(1.0, *ratios), place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold" if colour == OURS else "normal",
        )
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(max(ratios) for _, ratios, _, _ in rows))
    axes.set_title(title, loc="left", fontweight="bold")
    axes.axvline(1, color=OURS, lw=0.8, dashes=(3, 3), zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, labelcolor=INK)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=130)
