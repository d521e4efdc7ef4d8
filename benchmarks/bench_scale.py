"""What a run costs that has very many clients: making it, its first round, a round, a free request, verifying it.

Each size is a process of its own, with M clients of N samples (K=50, E=5, b=2, 10 rounds, a linear model). A free
request is one whose target no draw ever held. Times are by the clock; the note has the processor time of this process
and its children, which other work on the machine disturbs less. `--long` adds a million clients with 20 samples; the
growth over M and over N is from one end of the range to the other.
"""

from __future__ import annotations

import itertools
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.free_requests import FEATURES, federation, never_drawn, never_used, plan_for
from benchmarks.harness import Figure, give, in_own_process, options, own_peak, scratch
from fedforget import Run
from fedforget.algorithm.draws import PrfPriorities, draw_clients_with_replacement
from fedforget.store import run_directory

REPETITIONS = 5
CLIENTS = ((10_000, 20), (100_000, 20))
SAMPLES = ((1_000, 20), (1_000, 200), (1_000, 2_000))
MILLION = (1_000_000, 20)
LIMITS = {  # seconds; GB
    (100_000, 20): {"make": 8, "first round": 1, "free sample": 0.3, "free client": 0.3},
    (1_000_000, 20): {"make": 80, "first round": 8, "free sample": 3, "free client": 3, "peak": 3},
}
NAMES = {
    "make": "make the run",
    "first round": "train, call to first round",
    "round": "a round",
    "draw": "a round's draw of clients",
    "free sample": "a free request for a sample",
    "free client": "a free request for a client",
    "verify": "verify",
    "doctor": "doctor's checks of every file",
    "peak": "peak memory of making the run, with the data",
}
Taken = tuple[float, float]  # seconds by the clock, and of processors


def processor_time() -> float:
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in found)


def taken(call: Callable[[], object]) -> Taken:
    clock, processors = time.perf_counter(), processor_time()
    call()
    return time.perf_counter() - clock, processor_time() - processors


def middle(found: list[Taken]) -> Taken:
    clock, processors = zip(*found, strict=True)
    return statistics.median(clock), statistics.median(processors)


def one_size(clients: int, samples: int) -> dict[str, Taken]:
    """In a process of its own."""
    data, found = federation(clients, samples), dict[str, Taken]()
    with scratch() as directory:
        made: list[Run] = []
        found["make"] = taken(
            lambda: made.append(
                Run(directory / "run", plan_for(clients), model=nn.Linear(FEATURES, 2), data=data, seed=1)
            )
        )
        found["peak"] = own_peak() / 1e3, 0.0
        [run] = made
        marks, start = [(time.perf_counter(), processor_time())], (time.perf_counter(), processor_time())
        run.train(on_round=lambda _: marks.append((time.perf_counter(), processor_time())))
        found["first round"] = marks[1][0] - start[0], marks[1][1] - start[1]
        found["round"] = middle([(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(marks[1:])])
        found["draw"] = draw_of(run)
        targets, strangers = never_used(run), never_drawn(run, REPETITIONS)
        for name, requests in (("free sample", targets), ("free client", strangers)):
            found[name] = middle(
                [
                    taken(lambda r=request: run.forget(r, basis="exogenous"))  # type: ignore[misc]
                    for request in itertools.islice(requests, REPETITIONS)
                ]
            )
        found["verify"] = taken(lambda: require_ok(run))
        found["doctor"] = taken(lambda: require_whole(run.path))
    return found


def draw_of(run: Run) -> Taken:
    with run_directory.reading(run.path) as opened:
        priorities, roster = PrfPriorities(opened.server.seed.value), opened.server.roster
    slots = run.plan.clients_per_round
    return middle(
        [
            taken(lambda r=round_: draw_clients_with_replacement(priorities, roster, r, slots))  # type: ignore[misc]
            for round_ in range(1, REPETITIONS)
        ]
    )


def require_ok(run: Run) -> None:
    if not run.verify().ok:
        raise SystemExit("the run does not verify")


def require_whole(path: Path) -> None:
    from fedforget.health.doctor import examine  # noqa: PLC0415 (it imports what the others are measured without)

    if not all(check.ok for check in examine(path)):
        raise SystemExit("the run is not whole")


def figures_of(size: tuple[int, int], found: dict[str, Any]) -> Iterator[Figure]:
    clients, samples = size
    for key, (clock, processors) in found.items():
        unit = "GB" if key == "peak" else "s"
        note = "" if key == "peak" else f"{processors:.3g} s of processors"
        limit = LIMITS.get(size, {}).get(key)
        yield Figure(f"{clients:,} × {samples}: {NAMES[key]}", clock, unit, at_most=limit, note=note)


def growth(name: str, sizes: list[tuple[int, int]], found: dict[tuple[int, int], dict[str, Any]]) -> Iterator[Figure]:
    """How processor time grows from the smallest size to the largest."""
    first, last = sizes[0], sizes[-1]
    times = (last[0] * last[1]) // (first[0] * first[1])
    for key in ("make", "first round", "round", "free sample", "free client", "verify"):
        before, after = found[first][key][1], found[last][key][1]
        yield Figure(
            f"{name}, {times} × as many: {NAMES[key]}",
            after / before,
            "×",
            note=f"{1e3 * before:.0f} → {1e3 * after:.0f} ms of processors",
        )


def point_of(size: tuple[int, int], found: dict[str, Any]) -> dict[str, float]:
    """What the picture of requests shows of one size."""
    shown = {"making": "make", "first": "first round", "free": "free sample", "verify": "verify"}
    return {"clients": size[0], "samples": size[1], **{name: found[key][0] for name, key in shown.items()}}


def main() -> None:
    chosen = options(__doc__)
    sizes_of_clients = [*CLIENTS, MILLION] if chosen.long else list(CLIENTS)
    if chosen.child:
        print(json.dumps(one_size(*map(int, chosen.child))))
        return
    if chosen.quick:
        sizes_of_clients = [(1_000, 20), CLIENTS[0]]
    sizes_of_samples = list(SAMPLES[: 2 if chosen.quick else None])
    found = {
        size: in_own_process("benchmarks.bench_scale", "--child", *size)
        for size in dict.fromkeys([*sizes_of_clients, *sizes_of_samples])
    }
    figures = [figure for size, times in found.items() for figure in figures_of(size, times)]
    figures += growth("clients", sizes_of_clients, found)
    figures += growth("samples of a client", sizes_of_samples, found)
    give("Runs with very many clients", __doc__, figures, data=[point_of(size, times) for size, times in found.items()])


if __name__ == "__main__":
    main()
