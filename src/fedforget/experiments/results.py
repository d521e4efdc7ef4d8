"""The page of results, written from the rows in a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedforget.disk.files import storage_errors, write_durably
from fedforget.experiments.claims import claims_table
from fedforget.experiments.coverage import coverage_table
from fedforget.experiments.report import settings_table, shown
from fedforget.experiments.reproduce import Part
from fedforget.experiments.rows import Row, of_largest_scale
from fedforget.experiments.tables import Table, family_of, power_table, seeds_table, verdict_words

_HEAD = """# Results

This page is written by `fedforget reproduce report --out {directory} --markdown {page}` from the CSV files in
[{directory}]({link}). Every number in it was computed; what has not run is called "not measured".

With exact unlearning the final accuracy is that of retraining by construction. What unlearning saves is computation;
the drop in accuracy measures only how far a method went back.

All methods get the same data, partition, initial weights, requests, E and b. FATS and FedAvg were tuned with equal
effort, over the same grid, seeds and held-out training data ([data](data.md)); FRS trains as FedAvg does. The optimiser
of each method is in the tables.
"""
_SETTINGS = """
{settings}
`fedforget reproduce NAME --scale paper --out {directory}` computes what is missing and keeps what is there. The
published curves, thin and dashed in the colours of ours, were read off the vector drawings in the appendix that the
paper's authors published with their code (`Happy2Git/FATS_supplement`), exact to about the width of a line; Figures 1
to 4 are not among them. `--published FILE` or `FEDFORGET_PUBLISHED` takes another file: a CSV with the columns
`figure`, `line`, `x_name`, `x`, `y_name` and `y`; the first word of `figure` is the paper's panel, such as `5a`.
"""


_BOUND = (
    "The adjusted bound of a mean is the number of means that are tested times a bound (Bernstein's, with the exact "
    "variance) on the probability of a mean at least this far from its expectation: one below the false-alarm rate is "
    "a disagreement, and 1 says that not even the most unusual mean is unusual for so many."
)


def write_results(out: Path, page: Path, parts: Mapping[str, Part]) -> None:
    """Write the page with claims, tables and figures."""
    with storage_errors(page):
        place = page.resolve().parent
    link = Path(os.path.relpath(out.resolve(), place)).as_posix()
    directory, name = _shown(out), _shown(page)
    results = {name: part.rows for name, part in parts.items()}
    sections = [_HEAD.format(directory=directory, page=name, link=link), _second_level(claims_table(results)),
                _family(results), _second_level(coverage_table(results))]  # fmt: skip
    for part in parts.values():
        sections.append(f"\n## {part.experiment.name.capitalize()}: {part.experiment.what}\n")
        sections += [f"\n![{path.stem}]({link}/{path.name})\n" for path in part.figures if path.suffix == ".svg"]
        sections += [_table(table) for table in part.tables]
    settings = _table(seeds_table(results)) + _table(settings_table(out))
    sections.append(_SETTINGS.format(settings=settings, directory=directory))
    write_durably(page, "".join(sections).encode())


def _shown(path: Path) -> str:
    """The path as a reader types it in the project's directory."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def _family(results: Mapping[str, Sequence[Row]]) -> str:
    """Every measured time with an exact law, of all experiments together: one family, one false-alarm rate."""
    rows = [row for each in results.values() for row in of_largest_scale(each)]
    largest = {name: of_largest_scale(each) for name, each in results.items()}
    words = verdict_words(family_of(rows))
    return f"\n## Measured times against theory\n\n{words}\n\n{_BOUND}\n{_table(power_table(largest))}"


def _second_level(table: Table) -> str:
    """A table with a heading of its own section."""
    return "\n" + _table(table).lstrip().replace("### ", "## ", 1)


def _table(table: Table) -> str:
    lines = [f"\n### {table.title}\n", "| " + " | ".join(table.header) + " |", "|" + "---|" * len(table.header)]
    lines += ["| " + " | ".join(map(shown, row)) + " |" for row in table.rows]
    return "\n".join([*lines, "", *([table.note, ""] if table.note else [])])
