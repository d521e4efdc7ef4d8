"""The command ``reproduce``: the paper's experiments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedforget.cli.app import app
from fedforget.cli.option_groups import grouped
from fedforget.cli.options import EngineOptions
from fedforget.cli.output import Output, table
from fedforget.errors import InvalidInput, quoted

if TYPE_CHECKING:
    from fedforget.experiments.reproduce import Part

_SCALES = ("smoke", "small", "paper")
_NAMES = ("datasets", "efficiency", "requests", "accuracy", "performance", "streaming", "tradeoff")
_MOST_RUNS = 1000


@app.command(short_help="The paper's tables and figures.")
@grouped
def reproduce(
    what: Annotated[str, typer.Argument(help=f"{', '.join(_NAMES)}, all; or report: redraw the results in --out.")],
    dataset: Annotated[list[str] | None, typer.Option(help="Only this dataset; may be repeated.")] = None,
    scale: Annotated[str, typer.Option(help="smoke (seconds), small (half the rounds or runs) or paper.")] = "small",
    runs: Annotated[
        int | None, typer.Option(help="How many seeds.", show_default="by experiment and dataset: 1 to 20")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for results; finished cells in it are kept.")] = Path("results"),
    published: Annotated[
        Path | None,
        typer.Option(
            help="CSV of published curves to draw behind ours.",
            show_default="FEDFORGET_PUBLISHED, or the paper's Figures 5-8",
        ),
    ] = None,
    accept_data: Annotated[
        bool, typer.Option("--accept-data", help="Take data that are not the published ones.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option(help="With report: also write the page of results.")] = None,
    *,
    how: EngineOptions,
    output: Output,
) -> None:
    """Reproduce the paper's tables and figures: CSV, JSON, PNG and SVG plots, and one HTML report.

    A stopped or killed command continues where it was: finished cells in --out are not computed again.

    \b
      fedforget reproduce efficiency --scale paper --out results
      fedforget reproduce performance --dataset mnist --runs 1 --scale paper --out results
      fedforget reproduce all --scale smoke --out results
      fedforget reproduce report --out results
    """
    _check(what, scale, runs, markdown)
    from fedforget.experiments import reproduce as experiments  # noqa: PLC0415 (torch)
    from fedforget.experiments.cells import Choice  # noqa: PLC0415
    from fedforget.experiments.published import Published  # noqa: PLC0415

    curves = Published.found(published)
    if what == "report":
        parts = experiments.redraw(out, curves)
        if markdown is not None:
            from fedforget.experiments.results import write_results  # noqa: PLC0415

            write_results(out, markdown, parts)
    else:
        names = _NAMES if what == "all" else (what,)
        cells = partial(output.progress, unit="cell")
        with how.workforce().shared() as workforce:
            chosen = Choice(scale, runs, tuple(dataset or ()), how.data_dir, workforce, _beats(scale, output),
                            accept_data=accept_data)  # fmt: skip
            parts = experiments.reproduce(names, chosen, out, curves, say=output.announce, progress=cells)
    output.emit(_facts(parts, out), lambda: _text(parts, out))


def _check(what: str, scale: str, runs: int | None, markdown: Path | None) -> None:
    known = (*_NAMES, "all", "report")
    if what not in known:
        raise InvalidInput(f"unknown experiment {quoted(what)}", hint=f"use one of: {', '.join(known)}")
    if scale not in _SCALES:
        raise InvalidInput(f"unknown scale {quoted(scale)}", hint=f"use one of: {', '.join(_SCALES)}")
    if runs is not None and not 1 <= runs <= _MOST_RUNS:
        raise InvalidInput(f"cannot make {runs} runs", hint=f"give 1 to {_MOST_RUNS}")
    if markdown is not None and what != "report":
        raise InvalidInput("--markdown belongs to `reproduce report`", hint="leave it out, or use report")


def _beats(scale: str, output: Output) -> Callable[[str], None] | None:
    """Trainings of the smoke scale take less than a second each."""
    return None if scale == "smoke" else output.announce


def _facts(parts: dict[str, Part], out: Path) -> dict[str, Any]:
    return {"out": str(out), "report": str(out / "report.html"), **{name: p.as_dict() for name, p in parts.items()}}


def _text(parts: dict[str, Part], out: Path) -> str:
    from fedforget.experiments.report import shown  # noqa: PLC0415

    lines = []
    for part in parts.values():
        for each in part.tables:
            rows = [[shown(value) for value in row] for row in each.rows]
            lines += [each.title, "", table(each.header, rows), *([each.note] if each.note else []), ""]
    return "\n".join([*lines, f"report: {out / 'report.html'}"])
