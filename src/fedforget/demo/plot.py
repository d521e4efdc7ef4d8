"""Plot of the demonstration: accuracy over computed steps, with every request and rewind."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from fedforget.demo.story import Chapter, Story
from fedforget.plots.picture import BLUE, FAINT, GREY, RED, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def draw_story(path: Path, story: Story) -> None:
    save_picture(path, lambda: _figure(story))


def _figure(story: Story) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 (only when a picture is drawn)

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots()
    starts = list(accumulate((chapter.recomputed_steps for chapter in story.chapters), initial=story.steps))
    axes.plot(*_xy(story.learned, 0), color=BLUE, linewidth=2)
    for number, (chapter, start) in enumerate(zip(story.chapters, starts, strict=False), start=1):
        _chapter(axes, number, chapter, start, story.steps)
    end = starts[-1]
    axes.axvspan(end, end + story.steps, color=FAINT, alpha=0.6, linewidth=0)
    axes.plot(*_xy(story.retrained, end), color=GREY, linewidth=2)
    finals = [(end, _final(story)), (end + story.steps, story.retrained[-1][1])]
    axes.plot(*zip(*finals, strict=True), "o", color=RED, markersize=8, zorder=5)
    axes.annotate(
        "the same bytes" if story.equal else "DIFFERENT BYTES",
        xy=finals[1], xytext=(-12, -46), textcoords="offset points", ha="right", color=RED,
        arrowprops={"arrowstyle": "-", "color": RED},
    )  # fmt: skip
    _label(axes, story.steps / 2, f"training: {story.steps} steps")
    _label(axes, (story.steps + end) / 2, f"forgetting four times: {story.recomputed_steps} steps")
    _label(axes, end + story.steps / 2, f"one retraining: {story.steps} steps")
    axes.set(xlabel="steps computed", ylabel="test accuracy", xlim=(0, end + story.steps + 4), ylim=(0, 1.16))
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.grid(axis="y", color=FAINT)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=[_key(number, chapter) for number, chapter in enumerate(story.chapters, start=1)],
        loc="outside lower center", ncols=2, frameon=False, fontsize=9.5, handlelength=1.2,
    )  # fmt: skip
    return figure


def _xy(curve: list[tuple[int, float]], shift: int) -> tuple[list[int], list[float]]:
    return [step + shift for step, _ in curve], [accuracy for _, accuracy in curve]


def _final(story: Story) -> float:
    return story.chapters[-1].accuracy_after


def _chapter(axes: Axes, number: int, chapter: Chapter, start: int, steps: int) -> None:
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


def _key(number: int, chapter: Chapter) -> Line2D:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    cost = f"{chapter.recomputed_steps} steps again" if chapter.recomputed_steps else "free"
    label = f"{number}  {chapter.what}: {cost} (P(recompute) = {chapter.probability:.1%})"
    return Line2D([], [], marker="o", linestyle="", color=RED, label=label)
