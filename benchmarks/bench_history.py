"""What a request costs after many others, and what many at once cost.

Every request is free: its target was in no draw, so nothing is recomputed. History grows on one run of 10,000 clients
with 20 samples (200,000 of them), in batches between which single requests are timed; "÷ the first" compares medians.
What is pending is carried out on a run of 100,000 × 20. Processes that submit at once have imported everything and wait
for one another; the figure is from the moment they start to the last durable acceptance.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.free_requests import deferred, federation, free, make, median_clock, never_used, seconds_figure, timed
from benchmarks.harness import Figure, give, options, scratch
from fedforget import Request, Run

CLIENTS, SAMPLES, ALL = 10_000, 20, 10**6
MANY_CLIENTS = 100_000
REPETITIONS = 9
HISTORY = (100, 1_000, 10_000, 100_000)
PENDING = (1_000, 10_000, 100_000)
PATIENCE = 600.0  # seconds; a larger number is left out if it would take longer in proportion
BATCH, PROCESSES = 10_000, 20
Figures = Iterator[Figure]
Points = list[dict[str, float]]


def with_history(directory: Path, counts: tuple[int, ...], points: Points) -> Figures:
    run = make(directory / "run", CLIENTS, federation(CLIENTS, SAMPLES))
    run.train()
    targets, met = never_used(run, ALL), 0
    first, before = free(run, targets, REPETITIONS), [timed(run.status) for _ in range(REPETITIONS)]
    points.append({"met": 0, "free": median_clock(first), "status": median_clock(before)})
    yield seconds_figure("the first free requests", first, unit="ms")
    for count in counts:
        batch = list(itertools.islice(targets, count - met))
        took, met = timed(lambda batch=batch: run.forget(batch, basis="exogenous")), count  # type: ignore[misc]
        if took.clock / len(batch) * 9 * count > PATIENCE and count < counts[-1]:
            yield seconds_figure(f"{len(batch):,} free requests in one batch", [took], note="larger ones are left out")
            return
        yield from after(run, targets, met, points)
    yield seconds_figure(f"the last {len(batch):,} of {met:,}, in one batch", [took])
    yield from at_once(run, list(itertools.islice(targets, PROCESSES)))


def after(run: Run, targets: Iterator[Request], met: int, points: Points) -> Figures:
    """Single requests, and status, after others."""
    later, first = free(run, targets, REPETITIONS), points[0]["free"]
    defer, status = deferred(run, targets, REPETITIONS), [timed(run.status) for _ in range(REPETITIONS)]
    run.run_pending()
    middle = median_clock(later)
    points.append({"met": met, "free": middle, "status": median_clock(status), "defer": median_clock(defer)})
    note = f"{1e3 * first:.0f} → {1e3 * middle:.0f} ms"
    yield Figure(f"a free request after {met:,} others ÷ the first", middle / first, "×", at_most=1.2, note=note)
    yield seconds_figure(f"defer a request after {met:,} others", defer, unit="ms", at_most=10)
    yield seconds_figure(f"status after {met:,} requests", status, at_most=0.3)


def one_batch(directory: Path, count: int) -> Figures:
    run = make(directory / "run", CLIENTS, federation(CLIENTS, SAMPLES))
    run.train()
    batch = list(itertools.islice(never_used(run, ALL), count))
    yield seconds_figure(f"{count:,} free requests in one batch", [timed(lambda: run.forget(batch, basis="exogenous"))],
                         at_most=3 if count == BATCH else None)  # fmt: skip


def pending(directory: Path, clients: int, counts: tuple[int, ...], points: Points) -> Figures:
    """How long it takes to carry out what is pending, and to hand in one more."""
    run = make(directory / "run", clients, federation(clients, SAMPLES))
    run.train()
    targets = never_used(run, ALL)
    for count in counts:
        many = list(itertools.islice(targets, count))
        handing_in = timed(lambda many=many: run.forget(many, basis="exogenous", defer=True))  # type: ignore[misc]
        one_more, status = deferred(run, targets, REPETITIONS), timed(run.status)
        took = timed(run.run_pending)
        points.append({"pending": count, "run_pending": took.clock, "defer": median_clock(one_more)})
        limit = 60 if (clients, count) == (MANY_CLIENTS, PENDING[-1]) else None
        note = f"handed in at once in {handing_in.clock:.1f} s; status {status.clock:.2f} s"
        yield seconds_figure(
            f"{clients:,} clients: run-pending with {count:,} pending", [took], at_most=limit, note=note
        )
        yield seconds_figure(
            f"{clients:,} clients: defer one more with {count:,} pending", one_more, unit="ms", at_most=10
        )
        if (took.clock + handing_in.clock) * 10 > PATIENCE:
            return


def submit(run: Run, request: Request, ready: Barrier, times: Any, place: int) -> None:
    ready.wait()
    start = time.perf_counter()
    run.forget(request, basis="exogenous", defer=True)
    times[place] = (start, time.perf_counter())


def at_once(run: Run, requests: list[Request]) -> Figures:
    """Processes that are up and submit at once."""
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(len(requests))
    with context.Manager() as manager:
        times = manager.dict()
        processes = [
            context.Process(target=submit, args=(run, request, ready, times, place))
            for place, request in enumerate(requests)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if len(times) < len(requests):
            raise SystemExit(f"{len(requests) - len(times)} of {len(requests)} processes could not submit")
        starts, ends = zip(*times.values(), strict=True)
    yield Figure(f"{len(requests)} processes that submit at once, all of them", max(ends) - min(starts), "s", at_most=2)


def main() -> None:
    chosen = options(__doc__)
    history, waiting, figures = Points(), Points(), list[Figure]()
    counts = (100, 1_000) if chosen.quick else HISTORY
    with scratch() as directory:
        figures += with_history(directory, counts, history)
    with scratch() as directory:
        figures += one_batch(directory, 1_000 if chosen.quick else BATCH)
    with scratch() as directory:
        clients, numbers = (CLIENTS, PENDING[:1]) if chosen.quick else (MANY_CLIENTS, PENDING)
        figures += pending(directory, clients, numbers, waiting)
    give("What a request costs after many others", __doc__, figures, data={"history": history, "pending": waiting})


if __name__ == "__main__":
    main()
