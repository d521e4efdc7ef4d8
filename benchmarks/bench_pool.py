"""The pool with every round on disk, against a bare PyTorch loop in as many processes that saves nothing.

Both have two forked single-threaded processes that take a client's part of the round whenever they are free, weights in
memory that all of them share, and one barrier a round: all parts are averaged before the next round begins. The loop is
given its slots and batches in advance and averages in float32; the run draws them, averages in float64, hashes and
writes every model, and commits two databases a round. They take turns run by run in one process, each ratio is of
neighbours, and both must end in the same model. "Rounds" is the time between the first and the last commit; "until all
is on disk" goes on until the last model is durable and the processes have ended; "whole train" also opens the run and
checks the content of every sample. Processor time leaves out waiting for the disk, and what other programs do to the
clock. Turns in which others took more than a tenth of a processor are taken again, at most once each. The CNN is the
paper's (26 MB), on 300 × 200 images of 28 × 28.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bench_training import LocalWork, drawn_in_advance
from benchmarks.federations import SEED, SMALL, cnn, digits, images, mlp
from benchmarks.harness import Figure, calmest, give, median_figure, options, processors, scratch
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.data.federated import FederatedData
from fedforget.run import Run

LIMIT = 1.10
WORKERS = 2
TESTS = 500  # images
OnRound = Callable[[int], None]
Bars = dict[str, Any]  # what a plot needs of one case


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained, on what."""

    name: str
    model: Callable[[], nn.Module]
    data: FederatedData
    plan: Plan


# The bare loop


def shared(numbers: int) -> Tensor:
    """Float32 in memory that forked processes share."""
    return torch.frombuffer(mmap.mmap(-1, 4 * numbers), dtype=torch.float32)


def as_vector(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


class BareLoop:
    """Federated averaging in processes, as one writes it in plain PyTorch."""

    def __init__(
        self, plan: Plan, module: nn.Module, work: Sequence[Sequence[LocalWork]], *, exact: bool = False
    ) -> None:
        self._plan, self._module, self._work, self._exact = plan, module, work, exact
        size = sum(parameter.numel() for parameter in module.parameters())
        self.model = shared(size)
        self.model.copy_(as_vector(module))
        self._results = [shared(size) for _ in range(plan.clients_per_round)]

    @contextmanager
    def workers(self) -> Iterator[list[Connection]]:
        context = multiprocessing.get_context("fork")
        pairs = [context.Pipe() for _ in range(WORKERS)]
        processes = [context.Process(target=self._serve, args=(theirs,), daemon=True) for _, theirs in pairs]
        for process in processes:
            process.start()
        try:
            yield [ours for ours, _ in pairs]
        finally:
            for ours, _ in pairs:
                ours.send(None)
            for process in processes:
                process.join()

    def _serve(self, pipe: Connection) -> None:
        torch.set_num_threads(1)
        while (task := pipe.recv()) is not None:
            round_, place = task
            self._train(self._work[round_][place], self._results[place])
            pipe.send(place)
        os._exit(0)

    def _train(self, part: LocalWork, result: Tensor) -> None:
        module, local = self._module, self._plan.local
        parameters = list(module.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        with torch.no_grad():
            for parameter, values in zip(parameters, self.model.split(sizes), strict=True):
                parameter.copy_(values.view_as(parameter))
        optimizer = torch.optim.SGD(parameters, lr=local.lr, momentum=local.momentum)
        for rows in part.batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(part.x[rows]), part.y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            for parameter, values in zip(parameters, result.split(sizes), strict=True):
                values.copy_(parameter.reshape(-1))

    def run(self, on_round: OnRound) -> None:
        with self.workers() as pipes:
            for round_, parts in enumerate(self._work):
                self._share_out(pipes, round_, len(parts))
                self._average(parts)
                on_round(round_ + 1)

    @staticmethod
    def _share_out(pipes: Sequence[Connection], round_: int, count: int) -> None:
        places, busy = iter(range(count)), []
        for pipe, place in zip(pipes, places, strict=False):
            pipe.send((round_, place))
            busy.append(pipe)
        while busy:
            for pipe in wait(busy):
                pipe.recv()  # type: ignore[union-attr]
                if (place := next(places, None)) is None:
                    busy.remove(pipe)  # type: ignore[arg-type]
                else:
                    pipe.send((round_, place))  # type: ignore[union-attr]

    def _average(self, parts: Sequence[LocalWork]) -> None:
        slots = self._plan.clients_per_round
        if self._exact:  # for comparing models, never timed
            total = torch.zeros(self.model.shape, dtype=torch.float64)
            for part, result in zip(parts, self._results, strict=False):
                total += part.count * result.double()
            self.model.copy_(total / slots)
            return
        torch.mul(self._results[0], parts[0].count / slots, out=self.model)
        for part, result in zip(parts[1:], self._results[1:], strict=False):
            self.model.add_(result, alpha=part.count / slots)


# Turns


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: each round, everything, and of processors (these processes' and their children's)."""

    rounds: list[float]
    whole: float
    processors: float

    @property
    def later(self) -> float:
        """Rounds after the first, which also starts the processes."""
        return sum(self.rounds[1:])

    @property
    def to_the_end(self) -> float:
        return self.whole - self.rounds[0]


def timed(action: Callable[[OnRound], object]) -> Times:
    """Runs what reports each of its rounds."""
    gc.collect()
    used, marks = processors(), [time.perf_counter()]
    action(lambda _: marks.append(time.perf_counter()))
    whole = time.perf_counter() - marks[0]
    return Times([after - before for before, after in pairwise(marks)], whole, processors() - used)


def warm_up(case: Case) -> None:
    """Torch imports much when it first takes a step; else each process of the loop would do so in its first round."""
    module, (x, y) = case.model(), case.data.sample(0, next(iter(case.data[0].ids)))
    optimizer = torch.optim.SGD(module.parameters(), lr=case.plan.local.lr)
    loss = nn.functional.cross_entropy(module(torch.from_numpy(x)[None]), torch.from_numpy(y)[None])
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def timed_loop(case: Case, work: Sequence[Sequence[LocalWork]]) -> tuple[Times, BareLoop]:
    loop = BareLoop(case.plan, case.model(), work)
    return timed(loop.run), loop


def timed_run(directory: Path, case: Case, *, eval_every: int | None = None, pool: bool = True) -> tuple[Times, Run]:
    how: dict[str, Any] = {"federation": "pool", "workers": WORKERS} if pool else {"federation": "inline"}
    run = Run(directory, case.plan, model=case.model(), data=case.data, seed=SEED, **how)
    return timed(lambda on_round: run.train(on_round=on_round, eval_every=eval_every)), run


def require_same_steps(directory: Path, case: Case, work: Sequence[Sequence[LocalWork]]) -> None:
    """A loop that averages as the run does must end in the run's model, bit for bit."""
    loop = BareLoop(case.plan, case.model(), work, exact=True)
    loop.run(lambda _: None)
    _, run = timed_run(directory / "check", case)
    module = case.model()
    module.load_state_dict(torch.load(run.export(directory / "check.pt"), weights_only=True))
    if not torch.equal(as_vector(module), loop.model):
        raise SystemExit(f"{case.name}: the loop and the run did not do the same, their models differ")


# What is measured


def measure(case: Case, repetitions: int, limit: float | None) -> tuple[list[Figure], Bars]:
    work = drawn_in_advance(case.plan, case.data)
    warm_up(case)
    with scratch() as directory:
        require_same_steps(directory, case, work)
        takes = calmest(
            lambda number: (timed_loop(case, work)[0], timed_run(directory / str(number), case)[0]), repetitions
        )
    bare = statistics.median(statistics.median(loop.rounds[1:]) for loop, _ in takes)
    own = statistics.median(statistics.median(run.rounds[1:]) for _, run in takes)
    label, unit = title(case), "× the bare loop"
    ratios = [run.later / loop.later for loop, run in takes]
    figures = [
        median_figure(
            f"{label}: rounds",
            ratios,
            unit,
            at_most=limit,
            note=f"{repetitions} turns of {case.plan.rounds} rounds each",
        ),
        median_figure(
            f"{label}: rounds, until all is on disk", [run.to_the_end / loop.to_the_end for loop, run in takes], unit
        ),
        median_figure(f"{label}: whole train", [run.whole / loop.whole for loop, run in takes], unit),
        median_figure(
            f"{label}: processor time of the whole", [run.processors / loop.processors for loop, run in takes], unit
        ),
        Figure(f"{label}: bare loop, a round", 1e3 * bare, "ms"),
        Figure(f"{label}: FedForget, a round", 1e3 * own, "ms"),
    ]
    return figures, {"case": label, "own": own, "bare": bare, "bare_ratios": [1 / ratio for ratio in ratios]}


def title(case: Case) -> str:
    plan = case.plan
    return f"{case.name}, K={plan.clients_per_round} E={plan.local_steps} b={plan.batch_size}"


def beside(case: Case, tested: Case, repetitions: int) -> list[Figure]:
    """What measuring the model adds, and what one process takes where two were."""

    def turn(number: int) -> list[float]:
        """After the rounds of the pool alone: measuring every 5 rounds, every round, and inline."""
        others = [
            timed_run(directory / f"{number}-5", tested, eval_every=5),
            timed_run(directory / f"{number}-1", tested, eval_every=1),
            timed_run(directory / f"{number}-inline", case, pool=False),
        ]
        plain, _ = timed_run(directory / f"{number}-plain", case)
        return [times.later / plain.later for times, _ in others]

    with scratch() as directory:
        seldom, often, inline = zip(*calmest(turn, repetitions), strict=True)
    tests = len(tested.data.test[1]) if tested.data.test is not None else 0
    return [
        *(
            median_figure(
                f"{title(case)}: measuring every {f'{rounds} rounds' if rounds > 1 else 'round'}",
                ratios,
                "× without",
                note=f"on {tests:,} test images, in a process beside the training",
            )
            for rounds, ratios in ((5, seldom), (1, often))
        ),
        median_figure(f"{title(case)}: inline", inline, "× the pool", note=f"1 process against {WORKERS}"),
    ]


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    small = Case(
        "digits of 60 clients, MLP", lambda: mlp(SMALL), digits(60), Plan(5, 10, 10, 30, LocalOptimizer(lr=0.1))
    )
    figures, bars = measure(small, 2 if chosen.quick else 7, None)
    plotted = [bars]
    if not chosen.quick:
        large = Case(
            "CNN, 300 clients of 200 images", cnn, images(300, 200), Plan(5, 10, 10, 8, LocalOptimizer(lr=0.01))
        )
        first, bars = measure(large, 5, LIMIT)
        figures = first + beside(large, replace(large, data=images(300, 200, TESTS)), 2) + figures
        plotted.insert(0, bars)
    give("The pool, against a bare PyTorch loop in processes", __doc__, figures, data=plotted)


if __name__ == "__main__":
    main()
