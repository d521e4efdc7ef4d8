"""Carry out experiments: cells that are not finished yet, then files, figures and the report."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedforget
from fedforget.baselines.simulation import require_room
from fedforget.data.registry import DIGITS
from fedforget.disk.files import storage_errors, write_durably
from fedforget.errors import InvalidInput, quoted
from fedforget.experiments import accuracy, datasets, efficiency, performance, requests, streaming, tradeoff
from fedforget.experiments.cells import Cell, Choice
from fedforget.experiments.claims import claims_table
from fedforget.experiments.data_used import checksums_of, require_one_kind
from fedforget.experiments.draw_times import draw_efficiency, draw_requests
from fedforget.experiments.draw_training import draw_lives, draw_tradeoff
from fedforget.experiments.life_tables import accuracy_table, performance_tables, streaming_tables
from fedforget.experiments.presets import PRESETS
from fedforget.experiments.published import Published
from fedforget.experiments.report import SETTINGS, read_settings, write_report
from fedforget.experiments.rows import PAPER, SMALL, ResultsFile, Row, of_largest_scale, read_rows
from fedforget.experiments.stale import stale_cells
from fedforget.experiments.tables import (
    Table,
    datasets_table,
    efficiency_table,
    family_of,
    power_table,
    requests_table,
    seeds_table,
    tradeoff_table,
)

_FEW = 2  # datasets that a title names
Draw = Callable[[Sequence[Row], Path, Published], list[Path]]
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment: its cells, its figures and its tables."""

    name: str
    what: str
    cells: Callable[[Choice], Iterable[Cell]]
    draw: Draw
    tables: Callable[[Sequence[Row]], list[Table]]
    trains: tuple[str, ...] = ()  # the datasets that it trains on
    beside: str | None = None  # an experiment whose rows its tables use, too


def _nothing(rows: Sequence[Row], directory: Path, published: Published) -> list[Path]:  # noqa: ARG001
    return []


EXPERIMENTS = {
    each.name: each
    for each in (
        Experiment(datasets.NAME, "Table 2", datasets.cells, _nothing, datasets_table),
        Experiment(efficiency.NAME, "Figures 2 and 6", efficiency.cells, draw_efficiency, efficiency_table),
        Experiment(requests.NAME, "Figure 3", requests.cells, draw_requests, requests_table),
        Experiment(
            accuracy.NAME,
            "Section 6.2.1, before unlearning",
            accuracy.cells,
            _nothing,
            accuracy_table,
            performance.DATASETS,
        ),
        Experiment(
            performance.NAME,
            "Figures 1 and 5",
            performance.cells,
            draw_lives,
            performance_tables,
            performance.DATASETS,
            beside=accuracy.NAME,
        ),
        Experiment(streaming.NAME, "Figure 8", streaming.cells, draw_lives, streaming_tables, streaming.DATASETS),
        Experiment(tradeoff.NAME, "Figures 4 and 7", tradeoff.cells, draw_tradeoff, tradeoff_table, tradeoff.DATASETS),
    )
}


@dataclass(frozen=True, slots=True)
class Part:
    """The outcome of one experiment."""

    experiment: Experiment
    rows: list[Row]
    figures: list[Path]
    tables: list[Table]
    computed: int  # cells of this call
    skipped: int  # cells that were finished before

    def as_dict(self) -> dict[str, Any]:
        found = family_of(self.rows)
        return {
            "rows": len(self.rows),
            "cells_computed": self.computed,
            "cells_skipped": self.skipped,
            "figures": [str(path) for path in self.figures],
            "theory": {**asdict(found), "agrees": found.agrees} if found.points or found.untestable else None,
            "tables": [asdict(table) for table in self.tables],
        }


def reproduce(
    names: Sequence[str],
    choice: Choice,
    out: Path,
    published: Published,
    *,
    say: Callable[[str], None],
    progress: Progress,
) -> dict[str, Part]:
    """Compute what is missing in ``out``, and write CSV, JSON, figures and ``report.html``."""
    work, choice = _cells(names, choice, out, say)
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    files = {name: ResultsFile(out / f"{name}.csv") for name in names}
    for name in names:
        _drop_stale(files[name], work[name], say)
    pending = {name: [cell for cell in work[name] if cell.name not in files[name].finished] for name in names}
    say(_forecast(work, pending, choice.scale))
    parts = {}
    for name in names:
        if pending[name]:
            write_settings(out, name, choice)  # first, so that a killed command leaves them too
        _compute(files[name], pending[name], name, progress, choice)
        parts[name] = _finish(EXPERIMENTS[name], files[name].rows, out, published, pending[name], work[name])
    _report(out, parts)
    return parts


def _cells(
    names: Sequence[str], choice: Choice, out: Path, say: Callable[[str], None]
) -> tuple[dict[str, list[Cell]], Choice]:
    """Return the cells of each experiment, and the choice with the checksums of its data.

    Raise InvalidInput or StorageFailed if they cannot be computed here.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise InvalidInput(f"unknown experiment {quoted(name)}", hint=f"use {', '.join(EXPERIMENTS)} or all")
    _check_datasets(choice)
    work = {name: list(EXPERIMENTS[name].cells(choice)) for name in names}  # refuses what cannot be done
    choice = _with_checksums(work, choice, out, say)
    work = {name: list(EXPERIMENTS[name].cells(choice)) for name in names}
    if not any(work.values()):
        raise InvalidInput(
            f"{' and '.join(names)} has nothing to compute for {', '.join(choice.datasets)}",
            hint="leave out --dataset to see the experiment's own datasets",
        )
    largest = max((cell for cells in work.values() for cell in cells), key=lambda cell: cell.disk)
    require_room(largest.disk, largest.name)
    return work, choice


def _with_checksums(
    work: Mapping[str, Sequence[Cell]], choice: Choice, out: Path, say: Callable[[str], None]
) -> Choice:
    """Note the checksums of the data to be read. Refuses data that are not the published ones, or not those of ``out``.

    Table 2 shows the datasets that are here; the others need theirs.
    """
    needed = {cell.data for cells in work.values() for cell in cells if cell.data is not None}
    shown = {preset.data for preset in PRESETS.values() if choice.wants(preset.name) and datasets.NAME in work}
    noted = replace(choice, checksums=checksums_of(needed, shown, choice, say))
    for path in (out / f"{name}.csv" for name in work):
        if path.exists():
            require_one_kind(read_rows(path), noted, path)
    return noted


def _drop_stale(file: ResultsFile, cells: Sequence[Cell], say: Callable[[str], None]) -> None:
    for why, stale in stale_cells(cells, file.rows).items():
        say(f"computed again, because {why}: {', '.join(stale)}")
        file.drop(stale)


def _check_datasets(choice: Choice) -> None:
    known = (*PRESETS, DIGITS)
    for name in choice.datasets:
        if name not in known:
            raise InvalidInput(f"unknown dataset {quoted(name)}", hint=f"use one of: {', '.join(known)}")


def _forecast(work: Mapping[str, Sequence[Cell]], pending: Mapping[str, Sequence[Cell]], scale: str) -> str:
    total, left = sum(map(len, work.values())), [cell for cells in pending.values() for cell in cells]
    done = f", {total - len(left)} of them finished before" if len(left) < total else ""
    seconds = sum(cell.seconds for cell in left)
    lasting = "less than a minute" if seconds < 60 else f"about {_duration(seconds)}"  # noqa: PLR2004
    found = f"{total} cells{done}; estimate: {lasting} on this machine if it is otherwise idle"
    halves = " Half of the rounds: ρ_C and ρ_S are half of the paper's." if scale == SMALL and _trains(work) else ""
    return found + (f".{halves}" if halves else "")


def _trains(work: Mapping[str, Sequence[Cell]]) -> bool:
    return any(EXPERIMENTS[name].trains for name in work)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} hours"  # noqa: PLR2004


def _compute(file: ResultsFile, pending: Sequence[Cell], name: str, progress: Progress, choice: Choice) -> None:
    with progress(name, len(pending)) as advance:
        for number, cell in enumerate(pending, start=1):
            noted = {} if cell.data is None else {"data": choice.checksums.get(cell.data)}
            file.append(cell.name, [{**row, **noted} for row in cell.compute()])
            advance(number)


def _finish(
    experiment: Experiment, rows: list[Row], out: Path, published: Published, pending: Sequence[Cell],
    work: Sequence[Cell],
) -> Part:  # fmt: skip
    shown = of_largest_scale(rows)
    figures = experiment.draw(shown, out, published) if shown else []
    other = out / f"{experiment.beside}.csv"
    beside = of_largest_scale(read_rows(other)) if experiment.beside and other.exists() else []
    tables = [_with_scale(table, shown) for table in experiment.tables([*shown, *beside])] if shown else []
    part = Part(experiment, rows, figures, tables, len(pending), len(work) - len(pending))
    write_durably(out / f"{experiment.name}.json", _json({**part.as_dict(), "cells": rows}))
    return part


def _with_scale(table: Table, rows: Sequence[Row]) -> Table:
    """Say which datasets were run at a smaller scale than the paper's; how many, if they are more than a few."""
    smaller = sorted({(row["dataset"], row["scale"]) for row in rows if row["scale"] != PAPER})
    words = [f"{dataset} at {scale} scale" for dataset, scale in smaller]
    if len(smaller) > _FEW:
        counts = {scale: sum(scale == each for _, each in smaller) for _, scale in smaller}
        words = [f"{count} datasets at {scale} scale" for scale, count in counts.items()]
    return replace(table, title=f"{table.title} ({', '.join(words)})") if smaller else table


def redraw(out: Path, published: Published) -> dict[str, Part]:
    """Write figures, tables and report of every CSV in a directory, without computing anything."""
    parts = {}
    for name, experiment in EXPERIMENTS.items():
        if (out / f"{name}.csv").exists():
            parts[name] = _finish(experiment, read_rows(out / f"{name}.csv"), out, published, (), ())
    if not parts:
        raise InvalidInput(f"{out} holds no results", hint="give the --out of an earlier `fedforget reproduce`")
    _report(out, parts)
    return parts


def _report(out: Path, parts: Mapping[str, Part]) -> None:
    sections = [(part.experiment.name, part.experiment.what, part.tables, part.figures) for part in parts.values()]
    results = {name: part.rows for name, part in parts.items()}
    for name in EXPERIMENTS:  # a claim may rest on what an earlier command computed
        if name not in results and (out / f"{name}.csv").exists():
            results[name] = read_rows(out / f"{name}.csv")
    largest = {name: of_largest_scale(rows) for name, rows in results.items()}
    write_report(out, [claims_table(results), power_table(largest)], sections, seeds_table(results))


def write_settings(out: Path, name: str, choice: Choice) -> None:
    """Record how an experiment was run last: scale, versions and machine. Datasets and seeds are in its rows."""
    write_durably(out / SETTINGS, _json({**read_settings(out), name: settings_of(choice)}))


def settings_of(choice: Choice) -> dict[str, Any]:
    import torch  # noqa: PLC0415 (slow)

    return {
        "scale": choice.scale, "federation": choice.workforce.federation,
        "last run": time.strftime("%Y-%m-%d", time.gmtime()),
        "fedforget": fedforget.__version__, "python": platform.python_version(), "numpy": np.__version__,
        "torch": str(torch.__version__), "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }  # fmt: skip


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=True) + "\n").encode()
