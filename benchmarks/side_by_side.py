"""Turns of FedForget's pool, another simulator and the bare loop on the same work, and what the turns say."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.bench_pool import WORKERS, BareLoop, Bars, Case, title, warm_up
from benchmarks.bench_training import LocalWork, drawn_in_advance
from benchmarks.federations import SEED
from benchmarks.harness import Figure, Watch, median_figure, scratch
from fedforget.data.federated import FederatedData
from fedforget.run import Run

SKIPPED_ROUNDS = 3  # they start processes and import libraries


class CannotRun(Exception):
    """The other simulator gave no result."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case, and how the other simulator names its model."""

    case: Case
    model: str
    at_least: float | None
    turns: int


@dataclass(frozen=True, slots=True)
class Steady:
    """Seconds of a steady round: the mean over a run, and of all processors; None where that isn't known."""

    round: float
    processors: float | None = None


Other = Callable[[Comparison, Path], Steady]


def lay_out(directory: Path, data: FederatedData) -> None:
    """Write the data where the other simulator's clients find them."""
    pairs = [[data[client].sample(sample) for sample in data[client].ids] for client in data.roster]
    np.save(directory / "x.npy", np.stack([x for client in pairs for x, _ in client]).astype(np.float32))
    np.save(directory / "y.npy", np.stack([y for client in pairs for _, y in client]).astype(np.int64))
    np.save(directory / "starts.npy", np.cumsum([0, *map(len, pairs)]))


def in_pool(directory: Path, case: Case) -> Steady:
    run = Run(directory, case.plan, model=case.model(), data=case.data, seed=SEED, federation="pool", workers=WORKERS)
    return watched(case, lambda watch: run.train(on_round=watch))


def in_bare_loop(case: Case, work: list[list[LocalWork]]) -> Steady:
    return watched(case, BareLoop(case.plan, case.model(), work).run)


def watched(case: Case, action: Callable[[Watch], object]) -> Steady:
    watch = Watch(SKIPPED_ROUNDS, case.plan.rounds)
    action(watch)
    return Steady(*watch.of_a_round())


def compare(comparison: Comparison, turns: int, name: str, other: Other) -> tuple[list[Figure], Bars]:
    """FedForget, the other, the bare loop, FedForget, and so on; each is compared with its neighbours."""
    case = comparison.case
    with scratch() as directory:
        lay_out(directory, case.data)
        work = drawn_in_advance(case.plan, case.data)
        warm_up(case)
        ours, theirs, bare = [in_pool(directory / "0", case)], list[Steady](), list[Steady]()
        for turn in range(1, turns + 1):
            theirs.append(other(comparison, directory))
            bare.append(in_bare_loop(case, work))
            ours.append(in_pool(directory / str(turn), case))
    return figures_of(comparison, name, ours, theirs, bare)


def figures_of(
    comparison: Comparison, name: str, ours: list[Steady], theirs: list[Steady], bare: list[Steady]
) -> tuple[list[Figure], Bars]:
    case, turns = comparison.case, len(theirs)
    neighbours = [statistics.mean(each.round for each in pair) for pair in pairwise(ours)]
    ratios = [other.round / own for other, own in zip(theirs, neighbours, strict=True)]
    label = title(case)
    figures = [
        median_figure(
            f"{label}: FedForget is faster than {name}",
            ratios,
            "×",
            at_least=comparison.at_least,
            note=f"{WORKERS} processes each; {turns} turns of {case.plan.rounds} rounds",
        ),
        *processors_of(label, name, ours, theirs),
        median_figure(
            f"{label}: the bare loop is faster than {name}",
            [other.round / loop.round for other, loop in zip(theirs, bare, strict=True)],
            "×",
            note="what there is to gain with as many processes, if nothing is saved",
        ),
        *(
            median_figure(f"{label}: {who}, a round", [1e3 * each.round for each in found], "ms")
            for who, found in ((name, theirs), ("FedForget", ours), ("bare loop", bare))
        ),
    ]
    return figures, {
        "case": label,
        "own": statistics.median(each.round for each in ours),
        "bare": statistics.median(each.round for each in bare),
        "bare_ratios": [loop.round / own for loop, own in zip(bare, neighbours, strict=True)],
        "other": statistics.median(each.round for each in theirs),
        "other_ratios": ratios,
        "other_name": name,
    }


def processors_of(label: str, name: str, ours: list[Steady], theirs: list[Steady]) -> list[Figure]:
    """The ratio of processor time, which leaves out waiting, and what other programs do to the clock."""
    used = [(each.processors or 0.0) for each in ours]
    known = [each.processors for each in theirs if each.processors is not None]
    if len(known) < len(theirs):
        return []
    ratios = [other / statistics.mean(pair) for other, pair in zip(known, pairwise(used), strict=True)]
    note = f"{1e3 * statistics.median(known):.1f} against {1e3 * statistics.median(used):.1f} ms a round"
    return [median_figure(f"{label}: processor time of {name}'s round", ratios, "× FedForget's", note=note)]
