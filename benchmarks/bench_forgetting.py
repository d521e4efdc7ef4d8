"""What forgetting costs on a run that is done, against training it again from scratch.

The world is the one the paper's defaults describe: 300 clients with 200 samples, K=5, E=10, b=10, R=30, so ρ_S = 1/4
and ρ_C = 1/2. A "free" request asks for something that no draw held; it still has to be committed, purged and attested.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.federations import LARGE, SEED, SMALL, mlp, noise
from benchmarks.harness import Figure, give, median_figure, options, scratch
from fedforget.algorithm.forget import Request
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.data.federated import FederatedData
from fedforget.run import Run
from fedforget.store import run_directory


def make(path: Path, plan: Plan, data: FederatedData, hidden: int) -> Run:
    return Run(path, plan, model=mlp(hidden), data=data, seed=SEED)


def took(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def chosen_requests(run: Run) -> dict[str, Request]:
    """One request of each kind on the run as it stands now."""
    plan = run.plan
    with run_directory.reading(run.path) as opened:
        rounds = opened.server.first_rounds()
        idle = [client for client in opened.server.roster if client not in rounds]
        used = {
            (client, sample): plan.round_of(step)
            for client in rounds
            for sample, step in opened.clients.first_steps(client).items()
        }
        drawn = next(iter(rounds))
        unused = [sample for sample in opened.clients.samples(drawn) if (drawn, sample) not in used]

    def nearest(wanted: float) -> Request:
        return Request(*min(used, key=lambda key: (abs(used[key] - wanted), str(key))))

    middle = min(rounds, key=lambda client: (abs(rounds[client] - plan.rounds / 2), str(client)))
    return {
        "a sample never drawn": Request(drawn, unused[0]),
        "a client never drawn": Request(idle[0]),
        "a sample first used in the last round": nearest(plan.rounds),
        "a sample first used half-way": nearest(plan.rounds / 2),
        "a sample first used in round 1": nearest(1),
        "a client first used half-way": Request(middle),
    }


def measure(label: str, data: FederatedData, hidden: int, plan: Plan, repetitions: int) -> list[Figure]:
    created: list[float] = []
    trained: list[float] = []
    asked: dict[str, list[tuple[float, int]]] = {}
    with scratch() as directory:
        for repetition in range(repetitions):
            path = directory / str(repetition)
            start = time.perf_counter()
            run = make(path, plan, data, hidden)
            created.append(time.perf_counter() - start)
            trained.append(took(run.train))
            for kind in chosen_requests(run):
                request = chosen_requests(run)[kind]  # the draws may have changed since the last one
                start = time.perf_counter()
                receipt = run.forget([request])[0]
                asked.setdefault(kind, []).append((time.perf_counter() - start, receipt.recomputed_steps))
    figures = [
        median_figure(f"{label}: making the run directory", created, "s"),
        median_figure(f"{label}: training from scratch", trained, "s", note=f"{plan.steps} steps"),
    ]
    for kind, results in asked.items():
        share = statistics.median(steps / plan.steps for _, steps in results)
        ratio = statistics.median(time_ / whole for (time_, _), whole in zip(results, trained, strict=True))
        figures.append(
            median_figure(
                f"{label}: forgetting {kind}",
                [time_ for time_, _ in results],
                "s",
                note=f"{ratio:.2f} × training from scratch; recomputes {share:.0%} of the steps",
            )
        )
    return figures


def main() -> None:
    chosen = options(__doc__)
    if chosen.quick:
        plan = Plan(5, 2, 5, 30, LocalOptimizer(lr=0.01))
        figures = measure("300 × 20, MLP 64-64-10", noise(300, 20), SMALL, plan, 1)
    else:
        plan = Plan(5, 10, 10, 30, LocalOptimizer(lr=0.01))
        data = noise(300, 200)
        figures = measure("MLP 64-64-10", data, SMALL, plan, 3) + measure("MLP of 2 MB", data, LARGE, plan, 3)
    give("Forgetting, against training from scratch", __doc__, figures)


if __name__ == "__main__":
    main()
