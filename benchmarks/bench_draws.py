"""The draws: one draw by number of ids, and all draws of a round with K = 100 of a million clients."""

from __future__ import annotations

import json
import statistics
import time

from benchmarks.harness import MB, Figure, give, in_own_process, median_figure, options, own_peak, seconds
from fedforget.algorithm.draws import (
    PrfPriorities,
    draw_batch_without_replacement,
    draw_clients_with_replacement,
    multiplicities,
)
from fedforget.algorithm.ids import IdSet

SECONDS, MEGABYTES = 3.0, 1000.0
CLIENTS, SLOTS = 10**6, 100
SAMPLES, BATCH, STEPS = 200, 10, 10
_SEED = bytes(range(32))


def one_draw(size: int, repetitions: int) -> list[Figure]:
    """A slot among ``size`` clients, and a batch of 10 among ``size`` samples."""
    priorities, ids = PrfPriorities(_SEED), IdSet(range(size))
    many = max(1, 200_000 // size)

    def slots() -> None:
        draw_clients_with_replacement(priorities, ids, 1, many)

    def batches() -> None:
        for step in range(many):
            draw_batch_without_replacement(priorities, 3, ids, 1, step, BATCH)

    return [
        median_figure(f"one slot of N={size:,}", [1e6 * t / many for t in seconds(slots, repetitions)], "µs"),
        median_figure(
            f"one batch of {BATCH} of N={size:,}", [1e6 * t / many for t in seconds(batches, repetitions)], "µs"
        ),
    ]


def round_of_a_million() -> dict[str, float]:
    """In a process of its own: build the roster, draw the slots, then the batches of everyone drawn."""
    before = own_peak()
    start = time.perf_counter()
    roster = IdSet(range(CLIENTS))
    built, built_peak = time.perf_counter(), own_peak()
    priorities = PrfPriorities(_SEED)
    clients = multiplicities(draw_clients_with_replacement(priorities, roster, 1, SLOTS))
    slots = time.perf_counter()
    samples = IdSet(range(SAMPLES))
    for client in clients:
        for step in range(STEPS):
            draw_batch_without_replacement(priorities, client, samples, 1, step, BATCH)
    return {
        "build": built - start,
        "slots": slots - built,
        "batches": time.perf_counter() - slots,
        "before": before,
        "built_peak": built_peak,
        "peak": own_peak(),
    }


def a_million(repetitions: int) -> list[Figure]:
    takes = [in_own_process("benchmarks.bench_draws", "--child", "round") for _ in range(repetitions)]
    middle = {key: statistics.median(take[key] for take in takes) for key in takes[0]}
    return [
        median_figure(
            f"draws of a round, K={SLOTS} of {CLIENTS:,} clients",
            [take["slots"] + take["batches"] for take in takes],
            "s",
            at_most=SECONDS,
            note=f"slots {middle['slots']:.2f} s, {STEPS} batches of {BATCH} of {SAMPLES} for each client drawn "
            f"{middle['batches']:.2f} s",
        ),
        median_figure(
            f"peak memory of building {CLIENTS:,} clients and drawing",
            [take["peak"] for take in takes],
            "MB",
            at_most=MEGABYTES,
            note=f"{middle['before']:.0f} MB after imports, {middle['built_peak']:.0f} MB after "
            f"building the roster, whose blocks alone are {CLIENTS * 16 / MB:.0f} MB",
        ),
        median_figure(
            f"building the roster of {CLIENTS:,} clients (once a run)", [take["build"] for take in takes], "s"
        ),
    ]


def main() -> None:
    chosen = options(__doc__)
    if chosen.child:
        print(json.dumps(round_of_a_million()))
        return
    repetitions = 3 if chosen.quick else 7
    figures = [figure for size in (200, 5573, 10**6) for figure in one_draw(size, repetitions)]
    give("Draws", __doc__, figures + a_million(1 if chosen.quick else 5))


if __name__ == "__main__":
    main()
