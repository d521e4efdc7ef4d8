"""What it costs to record witnesses: the same training with them and without, run by run in one process.

A witness is a checksum of a client's local model after a few steps. Clients note one in the first ten rounds and in
about every tenth after them; the learner of a later command is compared with it. Rounds of the digits MLP take a few
milliseconds, so this is the most that witnesses can cost. "Rounds" is the time between the first and the last commit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

from benchmarks.bench_training import PLANS, timed
from benchmarks.federations import SEED, SMALL, digits, mlp
from benchmarks.harness import Figure, give, median_figure, options, scratch
from fedforget.algorithm.plan import Plan
from fedforget.data.federated import FederatedData
from fedforget.run import Run

LIMIT = 1.01
ROUNDS = 100


def rounds_of(directory: Path, plan: Plan, data: FederatedData, federation: str, *, witnesses: bool) -> float:
    run = Run(directory, plan, model=mlp(SMALL), data=data, seed=SEED, federation=federation)
    if witnesses:
        return timed(lambda on_round: run.train(on_round=on_round)).later
    with mock.patch.object(Plan, "has_witness", return_value=False):
        return timed(lambda on_round: run.train(on_round=on_round)).later


def measure(plan: Plan, data: FederatedData, federation: str, repetitions: int) -> Figure:
    """Each repetition has the run without witnesses between two with them."""
    ratios = []
    with scratch() as directory:
        for number in range(repetitions + 1):
            times = [
                rounds_of(directory / f"{number}-{turn}", plan, data, federation, witnesses=turn != 1)
                for turn in range(3)
            ]
            ratios.append((times[0] + times[2]) / 2 / times[1])
    return median_figure(
        f"digits of 60 clients, {federation}, K={plan.clients_per_round} E={plan.local_steps}: rounds with witnesses",
        ratios[1:],
        "× without",
        at_most=LIMIT,
    )


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    repetitions = 3 if chosen.quick else 31
    plans = [replace(plan, rounds=ROUNDS) for plan in (PLANS[0], PLANS[2])]
    federations = ("inline",) if chosen.quick else ("inline", "pool")
    figures = [measure(plan, digits(60), federation, repetitions) for plan in plans for federation in federations]
    give("Recording witnesses", __doc__, figures)


if __name__ == "__main__":
    main()
