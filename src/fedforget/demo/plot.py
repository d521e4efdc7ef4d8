"""Plot of the demonstration: accuracy over the computed steps, and the steps of retraining after each request."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from fedforget.demo.comparison import Comparison, Erasure
from fedforget.plots.picture import BLUE, FAINT, GREY, RED, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def draw_comparison(path: Path, result: Comparison) -> None:
    save_picture(path, lambda: _figure(result))


def _figure(result: Comparison) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 (only when a picture is drawn)

    figure = Figure(figsize=(11, 6.6), layout="constrained")
    axes, bars = figure.subplots(2, 1, height_ratios=(4, 1))
    _accuracy(axes, result)
    _comparison(bars, result)
    for part in (axes, bars):  # equal lengths are equal numbers of steps
        part.set_xlim(0, 1.08 * len(result.chapters) * result.steps)
    figure.legend(
        handles=[_key(number, chapter) for number, chapter in enumerate(result.chapters, start=1)],
        loc="outside lower center", ncols=2, frameon=False, fontsize=9.5, handlelength=1.2,
    )  # fmt: skip
    return figure


def _accuracy(axes: Axes, result: Comparison) -> None:
    """Draw training, each request with its rewind, and one retraining that ends in the same bytes."""
    starts = list(accumulate((chapter.recomputed_steps for chapter in result.chapters), initial=result.steps))
    axes.plot(*_xy(result.learned, 0), color=BLUE, linewidth=2)
    for number, (chapter, start) in enumerate(zip(result.chapters, starts, strict=False), start=1):
        _chapter(axes, number, chapter, start, result.steps)
    end = starts[-1]
    axes.axvspan(end, end + result.steps, color=FAINT, alpha=0.6, linewidth=0)
    axes.plot(*_xy(result.retrained, end), color=GREY, linewidth=2)
    finals = [(end, _final(result)), (end + result.steps, result.retrained[-1][1])]
    axes.plot(*zip(*finals, strict=True), "o", color=RED, markersize=8, zorder=5)
    axes.annotate(
        "the same bytes" if result.equal else "DIFFERENT BYTES",
        xy=finals[1], xytext=(26, -40), textcoords="offset points", ha="left", color=RED,
        arrowprops={"arrowstyle": "-", "color": RED},
    )  # fmt: skip
    _label(axes, result.steps / 2, f"training: {result.steps} steps")
    _label(axes, (result.steps + end) / 2, f"four requests: {result.recomputed_steps} steps")
    _label(axes, end + result.steps / 2, f"one retraining: {result.steps} steps")
    axes.set(xlabel="steps computed", ylabel="test accuracy", ylim=(0, 1.16))
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.grid(axis="y", color=FAINT)
    axes.spines[["top", "right"]].set_visible(False)


def _comparison(axes: Axes, result: Comparison) -> None:
    """Draw the steps that the requests took, and those of retraining after each request."""
    rows = (
        ("forgetting", BLUE, [chapter.recomputed_steps for chapter in result.chapters]),
        ("retraining after\neach request", GREY, [result.steps] * len(result.chapters)),
    )
    for row, (_, colour, costs) in enumerate(rows):
        for number, (cost, start) in enumerate(zip(costs, accumulate(costs, initial=0), strict=False), start=1):
            if cost:
                axes.barh(row, cost, left=start, color=colour, edgecolor="white", linewidth=1.5, height=0.7)
                axes.text(start + cost / 2, row, str(number), ha="center", va="center", color="white", fontsize=9)
        axes.text(sum(costs) + 6, row, f"{sum(costs)} steps", va="center", fontsize=10)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set(xlabel="steps for the four requests", ylim=(len(rows) - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _xy(curve: list[tuple[int, float]], shift: int) -> tuple[list[int], list[float]]:
    return [step + shift for step, _ in curve], [accuracy for _, accuracy in curve]


def _final(result: Comparison) -> float:
    return result.chapters[-1].accuracy_after


def _chapter(axes: Axes, number: int, chapter: Erasure, start: int, steps: int) -> None:
    """Mark the request; if steps were recomputed, draw the rewind and the new curve."""
    here = (start, chapter.accuracy_before)
    if chapter.recomputed_steps:
        rewound = chapter.curve[0]
        shift = start + chapter.recomputed_steps - steps
        axes.plot([start, start], [here[1], rewound[1]], ":", color=RED, linewidth=1.5)
        axes.plot(*_xy(chapter.curve, shift), color=BLUE, linewidth=2)
    lift = 12 if chapter.recomputed_steps else 32  # a request that costs nothing has the same position as the next one
    axes.annotate(
        str(number), xy=here, xytext=(0, lift), textcoords="offset points", ha="center", va="center", fontsize=9,
        color="white", bbox={"boxstyle": "circle,pad=0.25", "color": RED},
        arrowprops={"arrowstyle": "-", "color": RED, "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip


def _label(axes: Axes, x: float, text: str) -> None:
    axes.text(x, 1.12, text, ha="center", va="center", fontsize=10)


def _key(number: int, chapter: Erasure) -> Line2D:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    cost = f"{chapter.recomputed_steps} steps again" if chapter.recomputed_steps else "free"
    label = f"{number}  {chapter.what}: {cost} (P(recompute) = {chapter.probability:.1%})"
    return Line2D([], [], marker="o", linestyle="", color=RED, label=label)
