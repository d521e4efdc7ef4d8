"""What a request costs around its recomputed steps, and how that grows with clients, samples and history.

A free request is one whose target no draw ever held, so nothing is recomputed. Each figure is the whole call in this
process, from `Run.forget` to the durable receipt, on plans with K=50, E=5, b=2 and 20 samples a client; M=300 × N=200
has the paper's plan for MNIST. The command line is measured from its start to its end, on the digits.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.harness import Figure, give, options, scratch
from fedforget import LocalOptimizer, Plan, Request, Run
from fedforget.algorithm.streams import numpy_stream
from fedforget.data.adapters import from_arrays
from fedforget.store import run_directory

FEATURES, ROUNDS, REPETITIONS = 4, 10, 9
SIZES = {(300, 200): 0.03, (10_000, 20): None, (100_000, 20): 0.3, (1_000_000, 20): 3.0}  # limits in seconds
MAKING = {100_000: 8.0, 1_000_000: 80.0}
FIRST_ROUND = {100_000: 1.0, 1_000_000: 8.0}
DIGITS = ("--clients", "20", "--rounds", "5", "--clients-per-round", "2", "--local-steps", "2", "--batch-size", "2")


def federation(clients: int, samples: int) -> Any:
    stream, total = numpy_stream(bytes(16)), clients * samples
    x = stream.standard_normal((total, FEATURES)).astype(np.float32)
    owners, ids = np.repeat(np.arange(clients), samples), np.tile(np.arange(samples), clients)
    return from_arrays(x, stream.integers(0, 2, total), clients=owners, ids=ids)


def plan_for(clients: int) -> Plan:
    few = clients <= 300
    slots, batch, steps = (5, 10, 10) if few else (50, 2, 5)
    return Plan(slots, batch, steps, ROUNDS, LocalOptimizer(lr=0.1))


def timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def unused(run: Run) -> Iterator[Request]:
    """Samples that no step has used, of different clients in turn."""
    with run_directory.reading(run.path) as found:
        clients = itertools.islice(found.server.roster, 0, None, max(1, len(found.server.roster) // 1000))
        chosen = [
            [Request(client, sample) for sample in found.clients.samples(client) if sample not in used]
            for client in clients
            if (used := found.clients.first_steps(client)) is not None
        ]
    for row in itertools.zip_longest(*(requests[:-1] for requests in chosen)):
        yield from (request for request in row if request is not None)


def never_drawn(run: Run) -> Iterator[Request]:
    with run_directory.reading(run.path) as found:
        first = found.server.first_rounds()
        chosen = [Request(client) for client in found.server.roster if client not in first][:REPETITIONS]
    return iter(chosen)


def one_size(directory: Path, clients: int, samples: int, limit: float | None) -> Iterator[Figure]:
    size, data = f"{clients:,} × {samples}", federation(clients, samples)
    run: Run | None = None

    def make() -> None:
        nonlocal run
        run = Run(directory / "run", plan_for(clients), model=nn.Linear(FEATURES, 2), data=data, seed=1)

    yield Figure(f"{size}: make the run", timed(make), "s", at_most=MAKING.get(clients))
    assert run is not None  # noqa: S101 (made above)
    marks, start = list[float](), time.perf_counter()
    run.train(on_round=lambda _: marks.append(time.perf_counter() - start))
    yield Figure(f"{size}: train, call to first round", marks[0], "s", at_most=FIRST_ROUND.get(clients))
    rounds = [later - earlier for earlier, later in itertools.pairwise(marks)]
    yield Figure(f"{size}: a round", 1e3 * statistics.median(rounds), "ms")
    yield Figure(f"{size}: status", timed(run.status), "s")
    targets = unused(run)
    for level, requests in (("sample", itertools.islice(targets, REPETITIONS)), ("client", never_drawn(run))):
        times = [timed(lambda request=request: run.forget(request, basis="exogenous")) for request in requests]
        if times:
            yield Figure(f"{size}: a free request for a {level}", statistics.median(times), "s", min(times), max(times),
                         at_most=limit)  # fmt: skip
    deferred = [timed(lambda r=r: run.forget(r, basis="exogenous", defer=True)) for r in itertools.islice(targets, 5)]
    yield Figure(f"{size}: defer a request", 1e3 * statistics.median(deferred), "ms", at_most=10)
    pending = timed(run.run_pending)
    yield Figure(f"{size}: carry out {len(deferred)} that are pending", pending, "s")


def history(directory: Path, *, quick: bool) -> Iterator[Figure]:
    """A free request after many others."""
    clients, samples, many = 2_000, 20, 2_000 if quick else 10_000
    run = Run(
        directory / "run", plan_for(clients), model=nn.Linear(FEATURES, 2), data=federation(clients, samples), seed=1
    )
    run.train()
    targets = unused(run)
    first = statistics.median(timed(lambda r=r: run.forget(r, basis="exogenous")) for r in itertools.islice(targets, 5))
    batch = list(itertools.islice(targets, many))
    yield Figure(f"{len(batch):,} free requests in one batch", timed(lambda: run.forget(batch, basis="exogenous")), "s",
                 at_most=None if quick else 3)  # fmt: skip
    later = statistics.median(timed(lambda r=r: run.forget(r, basis="exogenous")) for r in itertools.islice(targets, 5))
    yield Figure(f"a free request after {len(batch):,} others ÷ the first", later / first, "×", at_most=1.2,
                 note=f"{1e3 * first:.0f} → {1e3 * later:.0f} ms")  # fmt: skip
    yield Figure(f"status after {len(batch):,} requests", timed(run.status), "s")


def command_line(directory: Path) -> Figure:
    def command(*arguments: str) -> float:
        return timed(lambda: subprocess.run([sys.executable, "-m", "fedforget", *arguments], check=True,
                                            capture_output=True))  # fmt: skip

    path = directory / "run"
    command("train", "--out", str(path), "--seed", "1", *DIGITS)
    with run_directory.reading(path) as found:
        chosen = [
            (str(client), str(sample))
            for client in found.server.roster
            for sample in found.clients.samples(client)
            if sample not in found.clients.first_steps(client)
        ][: REPETITIONS * 7 : 7]
    times = [command("forget", str(path), "--client", c, "--sample", s, "--basis", "exogenous") for c, s in chosen]
    return Figure("fedforget forget, nothing to recompute", statistics.median(times), "s", min(times), max(times),
                  at_most=0.6)  # fmt: skip


def main() -> None:
    chosen = options(__doc__)
    figures = list[Figure]()
    for (clients, samples), limit in itertools.islice(SIZES.items(), 2 if chosen.quick else None):
        with scratch() as directory:
            figures += one_size(directory, clients, samples, limit)
    with scratch() as directory:
        figures += history(directory, quick=chosen.quick)
    with scratch() as directory:
        figures.append(command_line(directory))
    give("What a request costs", __doc__, figures)


if __name__ == "__main__":
    main()
