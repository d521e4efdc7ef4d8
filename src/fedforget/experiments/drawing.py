"""Colours, axes, legends and files that all figures share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedforget.experiments.published import Published
from fedforget.experiments.rows import PAPER, Row
from fedforget.plots.picture import BLUE, FAINT, INK, RED, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ONE_KEY: Mapping[str, Any] = {"published, same colour": INK}
METHOD_COLOURS = {"FATS": BLUE, "FRS": RED, "FedAvg": "#8a5a00"}
NAMES = {
    "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10", "cifar-100": "CIFAR-100",
    "femnist": "FEMNIST", "femnist-writers": "FEMNIST, real writers", "shakespeare": "Shakespeare", "digits": "digits",
}  # fmt: skip
LEVELS = {"sample": "samples", "client": "clients"}
WIDTH = 10.4  # inches, of every figure
PUBLISHED: Any = {"linewidth": 1.1, "linestyle": (0, (5, 2.5)), "zorder": 1.5}
_SAME_END = 0.02  # of a panel's width: lines that end this near to the last end have their names beside them
_GAP = 0.047  # of a panel's height, between the labels of two lines


def save(directory: Path, name: str, draw: Callable[[], Figure]) -> list[Path]:
    """Draw a figure into NAME.png and NAME.svg."""
    paths = [directory / f"{name}.png", directory / f"{name}.svg"]
    for path in paths:
        save_picture(path, draw)
    return paths


def save_each(
    rows: Sequence[Row], columns: Sequence[str], name: str, directory: Path, draw: Callable[[Sequence[Row]], Figure]
) -> list[Path]:
    """Draw a figure for each group of rows; ``name`` is a template that the group's values fill."""
    groups = by(rows, *columns).items()
    return [path for key, group in groups for path in save(directory, name.format(*key), partial(draw, group))]


def new_figure(columns: int, rows: int = 1, *, height: float = 3.7, **more: Any) -> tuple[Figure, Any]:
    """A figure of the common width and its panels, always as a list of lists."""
    from matplotlib import figure as pages  # noqa: PLC0415 (only when a picture is drawn)

    figure = pages.Figure(figsize=(WIDTH, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def shades(count: int) -> list[Any]:
    """Colours in a readable order, from dark to light, none too pale for white paper."""
    import matplotlib as mpl  # noqa: PLC0415 (only when a picture is drawn)

    colours = mpl.colormaps["viridis"]
    return [colours(0.85 * place / max(1, count - 1)) for place in range(count)]


def runs_words(rows: Sequence[Row], shown: str = "mean of {}, band from the lowest to the highest") -> str:
    """How many runs a figure shows and how, and their scale if it is not the paper's."""
    fewest, most = (f([len({row["seed"] for row in each}) for each in by(rows, "method", "kind", "K", "b").values()])
                    for f in (min, max))  # fmt: skip
    count = f"{most} runs" if fewest == most else f"{fewest} to {most} runs"
    words = "one run" if most == 1 else shown.format(count)
    scales = {row["scale"] for row in rows} - {PAPER}
    return ", ".join([words, *(f"{scale} scale" for scale in sorted(scales))])


def clean(axes: Axes) -> None:
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def behind(axes: Axes, curve: Sequence[tuple[float, float]], colour: Any) -> None:
    """A published curve, thin and dashed, behind ours, in the colour of ours."""
    if curve:
        x, y = zip(*curve, strict=True)
        axes.plot(x, y, color=colour, **PUBLISHED)


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, Any]]) -> None:
    """Write each line's name beside its last point (x, y, name, colour); above it where longer lines go on.

    The limits of the axes must be final.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = [(*to_axes.transform((x, y)), name, colour) for x, y, name, colour in ends]
    last = max(x for x, *_ in placed)
    height = -1.0
    for x, y, name, colour in sorted(placed, key=lambda each: each[1]):
        at_the_end = last - x < _SAME_END
        height = max(y, height + _GAP) if at_the_end else height
        where: Any = {"ha": "left", "va": "center"} if at_the_end else {"ha": "right", "va": "bottom"}
        axes.annotate(
            name, (x, height if at_the_end else y), xycoords="axes fraction", xytext=(6, 0) if at_the_end else (3, 5),
            textcoords="offset points", color=colour, fontsize=7.5, annotation_clip=False, **where,
        )  # fmt: skip


def legend_below(figure: Figure, axes: Axes | None, columns: int, extra: Sequence[Any] = ()) -> None:
    """One legend for all panels: the lines of ``axes``, then ``extra``."""
    handles, labels = axes.get_legend_handles_labels() if axes is not None else ([], [])
    labels = [*labels, *(each.get_label() for each in extra)]
    place: Any = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 9}
    figure.legend([*handles, *extra], labels, **place)


def published_keys(published: Published, *panels: str | None, names: Mapping[str, Any] = _ONE_KEY) -> list[Any]:
    """The keys of published curves, by name and colour, if there is one in any of the panels."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    if not any(panel and published.has(panel) for panel in panels):
        return []
    return [Line2D([], [], color=colour, label=name, **PUBLISHED) for name, colour in names.items()]


def exact_keys() -> list[Any]:
    """Return the legend entries of points and lines."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    return [
        Line2D([], [], color=INK, marker="o", linestyle="", markersize=4.5, label="measured"),
        Line2D([], [], color=INK, linewidth=1.3, label="exact expectation"),
    ]


def pooled_mean(rows: Sequence[Row], column: str) -> float:
    """The mean over runs, each with its number of targets."""
    weights = [row["count"] or 1 for row in rows]
    return float(sum(weight * row[column] for weight, row in zip(weights, rows, strict=True)) / sum(weights))


def by(rows: Sequence[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows in groups of equal values, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups
