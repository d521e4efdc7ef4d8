"""Training with every round on disk, against a bare PyTorch loop that does the same steps and saves nothing.

The two take turns run by run, in one process, and each ratio is of neighbours. (Turns round by round gave lower ratios:
the loop itself was slower then.) The loop is given its slots and batches in advance; the run draws them, averages in
float64, writes a model file and commits two databases a round. "Rounds" is the time between the first and the last
commit, "whole train" also opens the run, checks the data, measures accuracy and closes. The ratio of processor time
leaves out waiting for the disk, and what other programs do to the clock.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.federations import SEED, SMALL, digits, mlp, noise
from benchmarks.harness import Figure, give, median_figure, options, scratch
from fedforget.algorithm.draws import (
    PrfPriorities,
    draw_batch_without_replacement,
    draw_clients_with_replacement,
    multiplicities,
)
from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.algorithm.seeds import SeedSource
from fedforget.data.client_data import ClientData
from fedforget.data.federated import FederatedData
from fedforget.run import Run

LIMIT = 1.5
PLANS = (
    Plan(5, 10, 10, 30, LocalOptimizer(lr=0.1)),
    Plan(5, 10, 10, 30, LocalOptimizer(lr=0.1, momentum=0.9)),
    Plan(6, 8, 5, 40, LocalOptimizer(lr=0.1)),
    Plan(6, 8, 5, 40, LocalOptimizer(lr=0.1, momentum=0.9)),
)


@dataclass(frozen=True, slots=True)
class LocalWork:
    """One client's part of a round: how many slots it fills, its data and the rows of each batch."""

    count: int
    x: Tensor
    y: Tensor
    batches: Sequence[Tensor]


def _tensors(client: ClientData) -> tuple[Tensor, Tensor]:
    pairs = [client.sample(identifier) for identifier in client.ids]
    return torch.from_numpy(np.stack([x for x, _ in pairs])), torch.from_numpy(np.stack([y for _, y in pairs]))


def drawn_in_advance(plan: Plan, data: FederatedData) -> list[list[LocalWork]]:
    """The rounds that a run with this plan and these seeds will draw."""
    source = SeedSource(SEED)
    server = PrfPriorities(source.server().value)
    clients = {client: PrfPriorities(source.client(client).value) for client in data.roster}
    shelves = {client: _tensors(data[client]) for client in data.roster}

    def work(round_: int, client: Id, count: int) -> LocalWork:
        batches = [
            torch.from_numpy(
                draw_batch_without_replacement(clients[client], client, data[client].ids, round_, step, plan.batch_size)
            )
            for step in range(plan.local_steps)
        ]
        x, y = shelves[client]
        return LocalWork(count, x, y, batches)

    return [
        [work(round_, client, count) for client, count in multiplicities(slots).items()]
        for round_ in range(1, plan.rounds + 1)
        for slots in [draw_clients_with_replacement(server, data.roster, round_, plan.clients_per_round)]
    ]


class BareLoop:
    """Federated averaging as one writes it in plain PyTorch."""

    def __init__(self, plan: Plan, module: nn.Module, sums: torch.dtype = torch.float32) -> None:
        self._plan = plan
        self._module = module
        self._sums = sums
        self.model = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def round(self, work: Sequence[LocalWork]) -> None:
        module, local = self._module, self._plan.local
        total = {name: torch.zeros_like(tensor, dtype=self._sums) for name, tensor in self.model.items()}
        for part in work:
            module.load_state_dict(self.model)
            optimizer = torch.optim.SGD(module.parameters(), lr=local.lr, momentum=local.momentum)
            for rows in part.batches:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(part.x[rows]), part.y[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for name, tensor in module.state_dict().items():
                total[name] += part.count * tensor
        self.model = {name: (tensor / self._plan.clients_per_round).float() for name, tensor in total.items()}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: all rounds, those after the first, everything by the clock and by the processor."""

    rounds: list[float]
    whole: float
    processor: float

    @property
    def later(self) -> float:
        return sum(self.rounds[1:])


def timed(action: Callable[[Callable[[int], None]], object]) -> Times:
    """Runs what reports each of its rounds."""
    gc.collect()
    processor, marks = time.process_time(), [time.perf_counter()]
    action(lambda _: marks.append(time.perf_counter()))
    end = time.perf_counter()
    return Times([after - before for before, after in pairwise(marks)], end - marks[0], time.process_time() - processor)


def take_turns(directory: Path, plan: Plan, data: FederatedData, work: list[list[LocalWork]]) -> tuple[Times, Times]:
    """One loop and one run over the same rounds."""
    loop = BareLoop(plan, mlp(SMALL))

    def bare(on_round: Callable[[int], None]) -> None:
        for round_, parts in enumerate(work, start=1):
            loop.round(parts)
            on_round(round_)

    of_loop = timed(bare)
    run = Run(directory, plan, model=mlp(SMALL), data=data, seed=SEED)
    return of_loop, timed(lambda on_round: run.train(on_round=on_round))


def require_same_steps(directory: Path, plan: Plan, data: FederatedData, work: list[list[LocalWork]]) -> None:
    """A loop that adds as the run does, in float64, must end in the run's model, bit for bit. It is never timed."""
    loop = BareLoop(plan, mlp(SMALL), torch.float64)
    for parts in work:
        loop.round(parts)
    run = Run(directory / "check", plan, model=mlp(SMALL), data=data, seed=SEED)
    run.train()
    exported = torch.load(run.export(directory / "check.pt"), weights_only=True)
    if not all(torch.equal(exported[name], tensor) for name, tensor in loop.model.items()):
        raise SystemExit("the loop and the run did not do the same: their models differ")


def measure(name: str, data: FederatedData, plan: Plan, repetitions: int, limit: float | None) -> list[Figure]:
    work = drawn_in_advance(plan, data)
    with scratch() as directory:
        require_same_steps(directory, plan, data, work)
        takes = [take_turns(directory / str(number), plan, data, work) for number in range(repetitions + 1)][1:]
    local_steps = statistics.mean(len(parts) for parts in work) * plan.local_steps
    label = (
        f"{name}, K={plan.clients_per_round} E={plan.local_steps} b={plan.batch_size} R={plan.rounds} "
        f"momentum={plan.local.momentum:g}"
    )
    bare = statistics.median(statistics.median(loop.rounds) for loop, _ in takes)
    rounds = statistics.median(statistics.median(run.rounds) for _, run in takes)
    whole = statistics.median(run.whole for _, run in takes)
    unit = "× the bare loop"
    return [
        median_figure(
            f"{label}: rounds",
            [run.later / loop.later for loop, run in takes],
            unit,
            at_most=limit,
            note=f"{1e3 * rounds:.1f} ms against {1e3 * bare:.1f} ms a round of {local_steps:.1f} local steps",
        ),
        median_figure(
            f"{label}: whole train",
            [run.whole / loop.whole for loop, run in takes],
            unit,
            at_most=limit,
            note=f"{whole:.2f} s",
        ),
        median_figure(f"{label}: processor time", [run.processor / loop.processor for loop, run in takes], unit),
    ]


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    repetitions = 3 if chosen.quick else 15
    figures = []
    for plan in PLANS[:1] if chosen.quick else PLANS:
        figures += measure("digits of 60 clients", digits(60), plan, repetitions, LIMIT)
    if not chosen.quick:
        figures += measure("noise of 300 × 200 samples", noise(300, 200), PLANS[0], 3, None)
    give("Training, against a bare PyTorch loop", __doc__, figures)


if __name__ == "__main__":
    main()
