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
    shades,
)
from fedforget.experiments.published import Published
from fedforget.experiments.rows import PAPER, Row
from fedforget.experiments.tradeoff import BATCH, SLOTS, SLOTS_SAME_RHO_S
from fedforget.plots.picture import BLUE, GREY, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE = ("learned", "removed", "learned again")
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
    figure, axes = new_figure(2, sharey=True, height=4.2, width=5.2)
    first = rows[0]
    panels = {level: _PANELS.get((first["experiment"], first["dataset"], level)) for level in LEVELS}
    if first["scale"] != PAPER:  # other rounds: the published curve shows another training
        panels = dict.fromkeys(LEVELS)
    for place, (level, panel) in enumerate(panels.items()):
        _life_panel(axes[0][place], [row for row in rows if row["level"] == level], panel, published)
        axes[0][place].set_title(f"forgetting {level}s", fontsize=10)
    axes[0][0].set_ylabel("test accuracy")
    asked = min((row["rounds_computed"] for row in rows if row["kind"] == "removed"), default=first["R"])
    at_requests = f"{first['rho_c'] * asked / first['R']:.2f} at round {asked}"
    rho = f"ρ$_C$ = {at_requests}, {first['rho_c']:.2f} at R = {first['R']}"
    sizes = f"M = {first['M']:,}, K = {first['K']}, b = {first['b']}, E = {first['E']}"
    lived = [row for row in rows if row["kind"] == "summary"]
    figure.suptitle(f"{NAMES[first['dataset']]}: {sizes}; {rho}\n{runs_words(lived)}", fontsize=11)
    legend_below(figure, axes[0][0], 4, published_keys(published, *panels.values()))
    return figure


def _life_panel(axes: Axes, rows: Sequence[Row], panel: str | None, published: Published) -> None:
    for (method,), group in by(rows, "method").items():
        colour = METHOD_COLOURS.get(method, GREY)
        behind(axes, published.curve(panel, method, "accuracy"), colour)
        pieces = _pieces([row for row in group if row["kind"] in CURVE])
        for number, piece in enumerate(pieces):
            _band(axes, piece, colour, method if number == 0 else None)
        for before, after in pairwise(pieces):
            ends = [(max(before), float(np.mean(before[max(before)]))), (min(after), float(np.mean(after[min(after)])))]
            axes.plot(*zip(*ends, strict=True), color=colour, linestyle=":", linewidth=1.4)
    arrivals = sorted({row["rounds_computed"] for row in rows if row["kind"] == "removed"})
    for at in arrivals:
        axes.axvline(at, color=GREY, linewidth=0.9, zorder=0.9)
        label = f"{rows[0]['requests'] // len(arrivals)} requests"
        axes.annotate(label, (at, 0.01), xycoords=("data", "axes fraction"), xytext=(3, 2), fontsize=8, color=GREY,
                      textcoords="offset points")  # fmt: skip
    axes.set_xlabel("rounds computed")
    axes.set_ylim(0, 1)
    axes.set_xlim(left=0)
    clean(axes)


def _pieces(rows: Sequence[Row]) -> list[dict[int, list[float]]]:
    """Return accuracies by computed rounds, divided at the requests; a piece begins right after the removal."""
    pieces: dict[int, dict[int, list[float]]] = {}
    for group in by(rows, "seed").values():
        number = 0
        for row in group:
            number += row["kind"] == "removed"
            pieces.setdefault(number, {}).setdefault(row["rounds_computed"], []).append(row["accuracy"])
    seeds = len({row["seed"] for row in rows})  # a mean over fewer runs is not comparable
    return [
        {at: values for at, values in sorted(pieces[number].items()) if len(values) == seeds}
        for number in sorted(pieces)
    ]


def _band(axes: Axes, piece: dict[int, list[float]], colour: Any, label: str | None) -> None:
    x = list(piece)
    axes.plot(x, [float(np.mean(values)) for values in piece.values()], color=colour, linewidth=1.8, label=label)
    if max(map(len, piece.values())) > 1:
        axes.fill_between(x, [min(values) for values in piece.values()], [max(values) for values in piece.values()],
                          color=colour, alpha=0.15, linewidth=0)  # fmt: skip


def draw_tradeoff(rows: Sequence[Row], directory: Path, published: Published) -> list[Path]:
    """Figures 4 and 7: a figure for each dataset; accuracy above, unlearning time below."""
    return save_each(rows, ("dataset",), "tradeoff-{}", directory, partial(_tradeoff, published=published))


def _tradeoff(rows: Sequence[Row], published: Published) -> Figure:
    figure, axes = new_figure(2, 2, sharex="col", sharey="row", height=3.1)
    first = rows[0]
    by_batch = [row for row in rows if row["kind"] == BATCH]
    slots = f"K = {by_batch[0]['K']}" if by_batch else ""
    panels = ("7a", "7b") if first["dataset"] == "mnist" else (None, None)
    colours = (BLUE, shades(3)[2])
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
    legend_below(figure, None, 3, [*exact_keys(), *published_keys(published, *panels)])
    return figure


def _column(
    axes: Any, curves: Sequence[tuple[Sequence[Row], Any, str]], level: str, rho: str, panel: str | None,
    published: Published,
) -> None:  # fmt: skip
    for quantity, each in zip(("accuracy", "steps"), axes, strict=True):
        behind(each, published.curve(panel, "FATS", quantity), RED)
        clean(each)
    for rows, colour, name in curves:
        points = by(sorted((row for row in rows if row["level"] == level), key=lambda row: row[rho]), "K", "b")
        if not points:
            continue
        x = [group[0][rho] for group in points.values()]
        accuracies = [[row["accuracy_full"] for row in group] for group in points.values()]
        axes[0].plot(x, [float(np.mean(each)) for each in accuracies], "o-", color=colour, markersize=4, label=name)
        if max(map(len, accuracies)) > 1:
            axes[0].fill_between(x, [min(a) for a in accuracies], [max(a) for a in accuracies], color=colour,
                                 alpha=0.15, linewidth=0)  # fmt: skip
        axes[1].plot(x, [group[0]["theory_steps"] for group in points.values()], color=colour, linewidth=1.3)
        means = [float(np.mean([row["steps"] for row in group])) for group in points.values()]
        axes[1].plot(x, means, "o", color=colour, markersize=4)
    if not any(rows for rows, _, _ in curves):
        axes[0].text(0.5, 0.5, "not measured", color=GREY, ha="center", transform=axes[0].transAxes)
    axes[1].set_xlim(left=0)
