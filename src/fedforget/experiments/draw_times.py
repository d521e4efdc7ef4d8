"""Figures of the experiments that need draws only: unlearning time against K and against the number of requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedforget.experiments.drawing import (
    LEVELS,
    NAMES,
    behind,
    by,
    clean,
    exact_keys,
    label_ends,
    legend_below,
    new_figure,
    pooled_mean,
    published_keys,
    save_each,
    shades,
)
from fedforget.experiments.published import Published
from fedforget.experiments.requests import AT_ONCE, IN_A_STREAM
from fedforget.experiments.rows import Row
from fedforget.plots.costs import log_ticks
from fedforget.plots.picture import INK, RED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = {
    ("shakespeare", "b"): (40, 60, 80, 120, 180),
    ("shakespeare", "M"): (390, 450, 540, 630),
    ("shakespeare", "K"): (2, 3, 5, 7, 10),
    ("femnist", "K"): (2, 3, 5, 7, 10),
}  # the lines that are drawn
_PANELS = {("shakespeare", 50, "sample"): "6a", ("shakespeare", 50, "client"): "6b"}


def draw_efficiency(rows: Sequence[Row], directory: Path, published: Published) -> list[Path]:
    """Figures 2 and 6: a figure for each dataset and R, samples on the left and clients on the right."""
    draw = partial(_efficiency, published=published)
    return save_each(rows, ("dataset", "R"), "efficiency-{}-R{}", directory, draw)


def _efficiency(rows: Sequence[Row], published: Published) -> Figure:
    panels = by(sorted(rows, key=lambda row: (row["level"] == "client", row["kind"])), "level", "kind")
    figure, axes = new_figure(len(panels), height=4.6, sharey=True)
    name_lines = [_efficiency_panel(axes[0][place], group, level, kind, published)
                  for place, ((level, kind), group) in enumerate(panels.items())]  # fmt: skip
    axes[0][0].set_ylabel("mean unlearning time (steps)")
    dataset, rounds = rows[0]["dataset"], rows[0]["R"]
    named = [_PANELS.get((dataset, rounds, level)) for level in LEVELS]
    drawn = [row["steps"] or row["theory_steps"] for row in rows]
    _common_scale(axes[0][0], drawn + [value for panel in named for value in published.values(panel, "steps")])
    for write in name_lines:
        write()
    figure.suptitle(f"{NAMES[dataset]}: the time of one request, R = {rounds}, E = {rows[0]['E']}", fontsize=11)
    legend_below(figure, None, 3, [*exact_keys(), *published_keys(published, *named)])
    return figure


def _common_scale(axes: Axes, values: Sequence[float]) -> None:
    """Set one logarithmic axis for all panels, from below the lowest point to above FRS."""
    low, high = 0.8 * min(values), 1.5 * max(values)
    axes.set_ylim(low, high)
    axes.set_yticks(log_ticks(low, high), minor=False)
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _efficiency_panel(
    axes: Axes, rows: Sequence[Row], level: str, kind: str, published: Published
) -> Callable[[], None]:
    """Draw a panel; what is returned writes the names of its lines, when the common scale is set."""
    varied = "b" if level == "sample" else "M"
    ours = [row for row in rows if row["method"] == "FATS"]
    lines = by(_few_lines(sorted(ours, key=lambda row: row[varied]), varied), varied)
    ends: list[tuple[float, float, str, Any]] = []
    panel = _PANELS.get((rows[0]["dataset"], rows[0]["R"], level)) if kind == "equal" else None
    for colour, ((value,), group) in zip(shades(len(lines)), lines.items(), strict=True):
        points = by(sorted(group, key=lambda row: row["K"]), "K")
        slots = [key[0] for key in points]
        behind(axes, published.curve(panel, f"FATS {varied}={value}", "steps"), colour)
        exact = [pooled_mean(each, "theory_steps") for each in points.values()]
        axes.plot(slots, exact, color=colour, linewidth=1.3)
        axes.plot(slots, [pooled_mean(each, "steps") for each in points.values()], "o", color=colour, markersize=4)
        ends.append((slots[-1], exact[-1], f"{varied}={value:,}", colour))
    total = next(row["steps"] for row in rows if row["method"] == "FRS")
    axes.axhline(total, color=RED, linestyle="--", linewidth=1.5)
    axes.text(1.0, 1.04 * total, "FRS", color=RED, fontsize=9, ha="right", transform=axes.get_yaxis_transform())
    axes.set_yscale("log")
    axes.set_xticks(sorted({row["K"] for row in ours}))
    sizes = "" if kind == "equal" else ", natural sizes"
    axes.set_title(f"forgetting one {level}{sizes}", fontsize=10)
    axes.set_xlabel("clients per round, K")
    axes.set_xlim(right=1.2 * max(row["K"] for row in ours))  # room for the names of the lines
    clean(axes)
    return lambda: label_ends(axes, ends)


def _few_lines(rows: Sequence[Row], column: str) -> list[Row]:
    """The rows of the lines that are drawn: more than a few can't be told apart. All are in the CSV."""
    shown = _SHOWN.get((rows[0]["dataset"], column), ())
    return [row for row in rows if row[column] in shown] or list(rows)


def draw_requests(rows: Sequence[Row], directory: Path, published: Published) -> list[Path]:  # noqa: ARG001
    """Figure 3: a figure for each dataset and R, requests at once on the left and in a stream on the right."""
    return save_each(rows, ("dataset", "R"), "requests-{}-R{}", directory, _requests)


def _requests(rows: Sequence[Row]) -> Figure:
    figure, axes = new_figure(2, height=4.6)
    first = rows[0]
    for place, kind in enumerate((AT_ONCE, IN_A_STREAM)):
        _requests_panel(axes[0][place], [row for row in rows if row["method"] == "FATS" and row["kind"] == kind], kind)
    axes[0][0].set_ylabel("mean unlearning time (steps)")
    figure.suptitle(
        f"{NAMES[first['dataset']]}: client requests, M = {first['M']:,}, R = {first['R']}, E = {first['E']}",
        fontsize=11,
    )
    legend_below(figure, None, 6, exact_keys())
    return figure


def _requests_panel(axes: Axes, rows: Sequence[Row], kind: str) -> None:
    lines = by(_few_lines(sorted(rows, key=lambda row: row["K"]), "K"), "K")
    ends: list[tuple[float, float, str, Any]] = []
    for colour, ((slots,), group) in zip(shades(len(lines)), lines.items(), strict=True):
        points = by(sorted(group, key=lambda row: row["requests"]), "requests")
        x = [key[0] for key in points]
        exact = [pooled_mean(each, "theory_steps") for each in points.values()]
        axes.plot(x, exact, color=colour, linewidth=1.3)
        axes.plot(x, [pooled_mean(each, "steps") for each in points.values()], "o", color=colour, markersize=4)
        ends.append((x[-1], exact[-1], f"K = {slots}, ρ$_C$ = {group[0]['rho_c']:.2f}", colour))
    total = rows[0]["R"] * rows[0]["E"]
    most = max(row["requests"] for row in rows)
    ends.append(_frs(axes, total, most, kind))
    axes.set_xticks(range(1, most + 1))
    axes.set_xlabel("client requests")
    axes.set_title("all at once" if kind == AT_ONCE else kind, fontsize=10)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlim(right=1.32 * most)  # room for the names of the lines
    clean(axes)
    label_ends(axes, ends)


def _frs(axes: Axes, total: int, most: int, kind: str) -> tuple[float, float, str, Any]:
    """One retraining for requests at once, one for each of a stream. Returns the end of the line."""
    y = [total, total] if kind == AT_ONCE else [total, most * total]
    axes.plot([1, most], y, color=RED, linestyle="--", linewidth=1.5)
    axes.margins(x=0.04)
    axes.tick_params(colors=INK)
    return most, y[1], "FRS" if kind == AT_ONCE else "FRS after each", RED
