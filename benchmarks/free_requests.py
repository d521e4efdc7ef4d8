"""Federations of any number of clients, and requests that no draw ever held."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.harness import Figure, median_figure
from fedforget import LocalOptimizer, Plan, Request, Run
from fedforget.algorithm.streams import numpy_stream
from fedforget.data.adapters import from_arrays
from fedforget.data.federated import FederatedData
from fedforget.store import run_directory

FEATURES, ROUNDS = 4, 10
FEW = 300  # clients
MOST = 1000  # clients of which unused samples are looked up


def federation(clients: int, samples: int) -> FederatedData:
    stream, total = numpy_stream(bytes(16)), clients * samples
    x = stream.standard_normal((total, FEATURES)).astype(np.float32)
    owners, ids = np.repeat(np.arange(clients), samples), np.tile(np.arange(samples), clients)
    return from_arrays(x, stream.integers(0, 2, total), clients=owners, ids=ids)


def plan_for(clients: int) -> Plan:
    """The paper's plan for MNIST where there are few clients."""
    slots, batch, steps = (5, 10, 10) if clients <= FEW else (50, 2, 5)
    return Plan(slots, batch, steps, ROUNDS, LocalOptimizer(lr=0.1))


def make(directory: Path, clients: int, data: FederatedData) -> Run:
    return Run(directory, plan_for(clients), model=nn.Linear(FEATURES, 2), data=data, seed=1)


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a call, by the clock and of the processor. The rest is waiting, for the disk or for other programs."""

    clock: float
    processor: float


def timed(call: Callable[[], object]) -> Took:
    start, before = time.perf_counter(), time.process_time()
    call()
    return Took(time.perf_counter() - start, time.process_time() - before)


def median_clock(times: Sequence[Took]) -> float:
    return statistics.median(each.clock for each in times)


def seconds_figure(name: str, times: Sequence[Took], *, unit: str = "s", note: str = "", **others: Any) -> Figure:
    """The median of repetitions by the clock; the processor's in the note."""
    scale = {"s": 1.0, "ms": 1e3}[unit]
    used = statistics.median(each.processor for each in times)
    beside = f"processor: {1e3 * used:.1f} ms" if used < 1 else f"processor: {used:.2f} s"
    note = f"{note}; {beside}" if note else beside
    if len(times) == 1:
        return Figure(name, scale * times[0].clock, unit, note=note, **others)
    return median_figure(name, [scale * each.clock for each in times], unit, note=note, **others)


def free(run: Run, requests: Iterator[Request], count: int) -> list[Took]:
    """What each of the next requests takes, to its durable receipt."""
    return [
        timed(lambda request=request: run.forget(request, basis="exogenous"))  # type: ignore[misc]
        for request in itertools.islice(requests, count)
    ]


def deferred(run: Run, requests: Iterator[Request], count: int) -> list[Took]:
    return [
        timed(lambda request=request: run.forget(request, basis="exogenous", defer=True))  # type: ignore[misc]
        for request in itertools.islice(requests, count)
    ]


def never_used(run: Run, clients_at_most: int = MOST) -> Iterator[Request]:
    """Samples that no step has used, of different clients in turn; none empties its client."""
    with run_directory.reading(run.path) as found:
        roster = found.server.roster
        clients = itertools.islice(roster, 0, None, max(1, len(roster) // clients_at_most))
        chosen = []
        for client in clients:
            used = found.clients.first_steps(client)
            samples = [sample for sample in found.clients.samples(client) if sample not in used]
            chosen.append([Request(client, sample) for sample in samples])
    for row in itertools.zip_longest(*(requests[:-1] for requests in chosen)):
        yield from (request for request in row if request is not None)


def never_drawn(run: Run, count: int) -> Iterator[Request]:
    """Clients that no round has drawn."""
    with run_directory.reading(run.path) as found:
        drawn = found.server.first_rounds()
        return iter([Request(client) for client in found.server.roster if client not in drawn][:count])
