"""What a request costs around its recomputed steps, by the number of clients M and of samples N.

A free request is one whose target no draw ever held, so nothing is recomputed. Each figure is the whole call in this
process, from `Run.forget` to the durable receipt. M=300 has the paper's plan for MNIST with ten rounds; larger
federations have K=50, E=5, b=2. Every size has a process of its own, whose peak memory includes the data.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from dataclasses import asdict
from typing import Any

from benchmarks.free_requests import (
    deferred,
    federation,
    free,
    make,
    median_clock,
    never_drawn,
    never_used,
    seconds_figure,
    timed,
)
from benchmarks.harness import Figure, give, in_own_process, options, own_peak, scratch

REPETITIONS = 9
SIZES = ((300, 20), (300, 200), (300, 2_000), (1_000, 20), (100_000, 20))
MILLION = (1_000_000, 20)
FREE = {(300, 200): 0.03, (100_000, 20): 0.3, MILLION: 3.0}  # limits in seconds
MAKING = {(100_000, 20): 8.0, MILLION: 80.0}
FIRST_ROUND = {(100_000, 20): 1.0, MILLION: 8.0}
PEAK = {MILLION: 3_000.0}  # MB
STATUS = {MILLION: 0.3}


def one_size(clients: int, samples: int) -> dict[str, Any]:
    """In a process of its own: the figures of one size, and its point in the plot."""
    size, label, data = (clients, samples), f"{clients:,} × {samples:,}", federation(clients, samples)
    with scratch() as directory:
        making = timed(lambda: make(directory / "run", clients, data))
        run = make(directory / "run", clients, data)
        marks, start = list[float](), time.perf_counter()
        run.train(on_round=lambda _: marks.append(time.perf_counter() - start))
        rounds = [later - earlier for earlier, later in itertools.pairwise(marks)]
        status = [timed(run.status) for _ in range(REPETITIONS)]
        targets = never_used(run)
        sample = free(run, targets, REPETITIONS)
        client = free(run, never_drawn(run, REPETITIONS), REPETITIONS)
        defer = deferred(run, targets, REPETITIONS)
        pending = timed(run.run_pending)
        checking = timed(run.verify)
    limit = FREE.get(size)
    figures = [
        seconds_figure(f"{label}: make the run", [making], at_most=MAKING.get(size)),
        Figure(f"{label}: train, call to first round", marks[0], "s", at_most=FIRST_ROUND.get(size)),
        Figure(f"{label}: a round", 1e3 * statistics.median(rounds), "ms"),
        seconds_figure(f"{label}: a free request for a sample", sample, at_most=limit),
        *([seconds_figure(f"{label}: a free request for a client", client, at_most=limit)] if client else []),
        seconds_figure(f"{label}: defer a request", defer, unit="ms", at_most=10),
        seconds_figure(f"{label}: carry out {len(defer)} that are pending", [pending]),
        seconds_figure(f"{label}: status", status, at_most=STATUS.get(size)),
        seconds_figure(
            f"{label}: verify", [checking], note=f"one pass over the data, and {run.plan.rounds} rounds again"
        ),
        Figure(f"{label}: peak memory", own_peak(), "MB", at_most=PEAK.get(size)),
    ]
    point = {
        "clients": clients, "samples": samples, "making": making.clock, "first": marks[0],
        "free": median_clock(sample), "defer": median_clock(defer), "status": median_clock(status),
        "verify": checking.clock,
    }  # fmt: skip
    return {"figures": [asdict(figure) for figure in figures], "point": point}


def main() -> None:
    chosen = options(__doc__)
    if chosen.child:
        print(json.dumps(one_size(*map(int, chosen.child))))
        return
    sizes = [*(SIZES[:2] if chosen.quick else SIZES), *([MILLION] if chosen.long else [])]
    found = [in_own_process("benchmarks.bench_requests", "--child", *size) for size in sizes]
    figures = [Figure(**figure) for each in found for figure in each["figures"]]
    give("What a request costs, by clients and samples", __doc__, figures, data=[each["point"] for each in found])


if __name__ == "__main__":
    main()
