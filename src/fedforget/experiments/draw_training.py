"""Figures of the experiments that train: accuracy over rounds computed, and accuracy and time against ρ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedforget.experiments.drawing import (
    LEVELS,
    METHOD_COLOURS,
    NAMES,
    behind,
    by,
    clean,
    exact_keys,
    legend_below,
    new_figure,
    published_keys,
    runs_words,
    save_each,
)
from fedforget.experiments.published import Published
from fedforget.experiments.rows import PAPER, Row
from fedforget.experiments.tradeoff import BATCH, SLOTS, SLOTS_SAME_RHO_S
from fedforget.plots.picture import BLUE, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RUNS = "thin: {}; thick: their mean, in which a run that has ended keeps its last value"
CURVE = ("learned", "removed", "learned again")
_GREEN = "#2f855a"
_MARKS: Any = (  # the second curve's times are the first's: open marks show what is below
    {"marker": "o", "markersize": 3.5, "linewidth": 2.2, "zorder": 2},
    {"marker": "D", "markersize": 7.5, "markerfacecolor": "none", "linewidth": 1.0, "zorder": 3},
)
_PANELS = {
    ("performance", "mnist", "sample"): "5a", ("performance", "fashion-mnist", "sample"): "5b",
    ("performance", "mnist", "client"): "5d", ("performance", "fashion-mnist", "client"): "5e",
    ("streaming", "mnist", "sample"): "8a", ("streaming", "mnist", "client"): "8b",
    ("streaming", "femnist", "sample"): "8c", ("streaming", "femnist", "client"): "8d",
}  # fmt: skip


def draw_lives(rows: Sequence[Row], directory: Path, published: Published) -> list[Path]:
    """Figures 1, 5 and 8: a figure for each dataset, samples on the left and clients on the right."""
    return save_each(rows, ("experiment", "dataset"), "{}-{}", directory, partial(_lives, published=published))


def _lives(rows: Sequence[Row], published: Published) -> Figure:
    figure, axes = new_figure(2, sharey=True, height=4.4)
    first = rows[0]
    panels = {level: _PANELS.get((first["experiment"], first["dataset"], level)) for level in LEVELS}
    if first["scale"] != PAPER:  # other rounds: the published curve shows another training
        panels = dict.fromkeys(LEVELS)
    for place, (level, panel) in enumerate(panels.items()):
        _life_panel(axes[0][place], [row for row in rows if row["level"] == level], level, panel, published)
    axes[0][0].set_ylabel("test accuracy")
    asked = min((row["rounds_computed"] for row in rows if row["kind"] == "removed"), default=first["R"])
    at_requests = f"{first['rho_c'] * asked / first['R']:.2f} at round {asked}"
    rho = f"ρ$_C$ = {at_requests}, {first['rho_c']:.2f} at R = {first['R']}"
    sizes = f"M = {first['M']:,}, K = {first['K']}, b = {first['b']}, E = {first['E']}"
    lived = [row for row in rows if row["kind"] == "summary"]
    figure.suptitle(f"{NAMES[first['dataset']]}: {sizes}; {rho}\n{runs_words(lived, _RUNS)}", fontsize=11)
    methods = {row["method"] for row in rows}
    names = {f"{method}, published": colour for method, colour in METHOD_COLOURS.items() if method in methods}
    legend_below(figure, axes[0][0], 4, published_keys(published, *panels.values(), names=names))
    return figure


def _life_panel(axes: Axes, rows: Sequence[Row], level: str, panel: str | None, published: Published) -> None:
    for (method,), group in by(rows, "method").items():
        colour = METHOD_COLOURS.get(method, GREY)
        behind(axes, published.curve(panel, method, "accuracy"), colour)
        runs = [_pieces(each) for each in by([row for row in group if row["kind"] in CURVE], "seed").values()]
        if len(runs) > 1:
            for run in runs:
                _line(axes, run, colour, linewidth=0.6, alpha=0.45, zorder=1.8)
        _line(axes, _mean_run(runs), colour, linewidth=2.0, label=method)
    arrivals = sorted({row["rounds_computed"] for row in rows if row["kind"] == "removed"})
    for at in arrivals:
        axes.axvline(at, color=GREY, linewidth=0.9, zorder=0.9)
    axes.set_title(_asked_words(rows, level, arrivals), fontsize=10)
    axes.set_xlabel("rounds computed")
    axes.set_ylim(0, 1)
    axes.set_xlim(left=0)
    clean(axes)


def _asked_words(rows: Sequence[Row], level: str, arrivals: Sequence[int]) -> str:
    if not arrivals:
        return f"forgetting {level}s"
    rounds = ", ".join(map(str, arrivals[:-1])) + (" and " if len(arrivals) > 1 else "") + str(arrivals[-1])
    word = "round" if len(arrivals) == 1 else "rounds"
    return f"forgetting {rows[0]['requests'] // len(arrivals)} {level}s at {word} {rounds}"


def _pieces(rows: Sequence[Row]) -> list[dict[int, float]]:
    """One run's accuracy by rounds computed, cut where data are removed; a piece begins with what a request left."""
    pieces: list[dict[int, float]] = [{}]
    for row in rows:
        if row["kind"] == "removed":
            pieces.append({})
        pieces[-1][row["rounds_computed"]] = row["accuracy"]
    return [piece for piece in pieces if piece]


def _mean_run(runs: Sequence[list[dict[int, float]]]) -> list[dict[int, float]]:
    """The mean over runs. A run that has ended keeps its last value until the longest has ended.

    Requests come to all runs after the same number of rounds, so only the last piece differs in length.
    """
    whole = [run for run in runs if len(run) == max(map(len, runs))]
    mean: list[dict[int, float]] = []
    for pieces in zip(*whole, strict=True):
        every = sorted(set().union(*pieces))
        mean.append({at: float(np.mean([_value_at(piece, at) for piece in pieces])) for at in every})
    return mean


def _value_at(piece: dict[int, float], at: int) -> float:
    return piece[max((known for known in piece if known <= at), default=min(piece))]


def _line(axes: Axes, pieces: Sequence[dict[int, float]], colour: Any, label: str | None = None, **style: Any) -> None:
    for number, piece in enumerate(pieces):
        axes.plot(list(piece), list(piece.values()), color=colour, label=label if number == 0 else None, **style)
    for before, after in pairwise(pieces):
        ends = [(max(before), before[max(before)]), (min(after), after[min(after)])]
        axes.plot(*zip(*ends, strict=True), color=colour, linestyle=":", **style)


def draw_tradeoff(rows: Sequence[Row], directory: Path, published: Published) -> list[Path]:
    """Figures 4 and 7: a figure for each dataset; accuracy above, unlearning time below."""
    return save_each(rows, ("dataset",), "tradeoff-{}", directory, partial(_tradeoff, published=published))


def _tradeoff(rows: Sequence[Row], published: Published) -> Figure:
    figure, axes = new_figure(2, 2, sharex="col", sharey="row", height=3.1)
    first = rows[0]
    by_batch = [row for row in rows if row["kind"] == BATCH]
    slots = f"K = {by_batch[0]['K']}" if by_batch else ""
    panels = ("7a", "7b") if first["dataset"] == "mnist" else (None, None)
    colours = (BLUE, _GREEN)
    _column(axes[:, 0], [(by_batch, BLUE, slots)], "sample", "rho_s", panels[0], published)
    fixed = (("b fixed", SLOTS), ("ρ$_S$ fixed, b ∝ 1/ρ$_C$", SLOTS_SAME_RHO_S))
    curves = [([r for r in rows if r["kind"] == kind], colour, name)
              for colour, (name, kind) in zip(colours, fixed, strict=True)]  # fmt: skip
    _column(axes[:, 1], curves, "client", "rho_c", panels[1], published)
    drawn = [row["steps"] for row in rows] + [value for each in panels for value in published.values(each, "steps")]
    axes[1][0].set_ylim(0, 1.06 * max(drawn))
    axes[0][0].set_ylabel("test accuracy (whole set)")
    axes[0][0].set_title("forgetting one sample: b varies", fontsize=10)
    axes[0][1].set_title("forgetting one client: K varies", fontsize=10)
    axes[1][0].set(ylabel="mean unlearning time (steps)", xlabel="ρ$_S$")
    axes[1][1].set_xlabel("ρ$_C$")
    if axes[0][1].get_legend_handles_labels()[0]:
        axes[0][1].legend(frameon=False, fontsize=9, loc="lower right")
    sizes = f"M = {first['M']:,}, E = {first['E']}, R = {first['R']}"
    figure.suptitle(f"{NAMES[first['dataset']]}: {sizes}; {runs_words(rows)}", fontsize=11)
    legend_below(figure, None, 3, [*exact_keys(), *published_keys(published, *panels, names={"FATS, published": BLUE})])
    return figure


def _column(
    axes: Any, curves: Sequence[tuple[Sequence[Row], Any, str]], level: str, rho: str, panel: str | None,
    published: Published,
) -> None:  # fmt: skip
    for quantity, each in zip(("accuracy", "steps"), axes, strict=True):
        behind(each, published.curve(panel, "FATS", quantity), BLUE)
        clean(each)
    for number, (rows, colour, name) in enumerate(curves):
        mark = _MARKS[number]
        points = by(sorted((row for row in rows if row["level"] == level), key=lambda row: row[rho]), "K", "b")
        if not points:
            continue
        x = [group[0][rho] for group in points.values()]
        accuracies = [[row["accuracy_full"] for row in group] for group in points.values()]
        axes[0].plot(x, [float(np.mean(each)) for each in accuracies], color=colour, label=name, **mark)
        if max(map(len, accuracies)) > 1:
            axes[0].fill_between(x, [min(a) for a in accuracies], [max(a) for a in accuracies], color=colour,
                                 alpha=0.15, linewidth=0)  # fmt: skip
        exact = [group[0]["theory_steps"] for group in points.values()]
        axes[1].plot(x, exact, color=colour, linewidth=mark["linewidth"], zorder=mark["zorder"])
        means = [float(np.mean([row["steps"] for row in group])) for group in points.values()]
        axes[1].plot(x, means, color=colour, **{**mark, "linestyle": ""})
    if not any(rows for rows, _, _ in curves):
        axes[0].text(0.5, 0.5, "not measured", color=GREY, ha="center", transform=axes[0].transAxes)
    axes[1].set_xlim(left=0)
