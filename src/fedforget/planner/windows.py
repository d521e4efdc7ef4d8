"""The savings of collecting requests for a window and rewinding once for all of them.

Every sample and every client withdraws once, independently of the others, at a constant rate. Let U_s(r) and U_c(r) be
the shares of samples and of clients that the first r rounds have used. A window with μ_s and μ_c requests on average
leaves these rounds unchanged with probability

    E[exp(−μ_s·U_s(r) − μ_c·U_c(r))]  ≥  exp(−μ_s·E U_s(r) − μ_c·E U_c(r)),          (Jensen)

and expected shares are known: E U_s(r) is the probability that r rounds use a sample (``geometric``), averaged over the
samples. So a window's cost here is an upper bound, and its saving a lower bound; both are close in large federations,
where shares hardly vary. All numbers are for the present federation; as it shrinks, requests handled one by one cost
even more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedforget.algorithm.plan import Plan
from fedforget.planner.costs import sample_change
from fedforget.planner.geometric import Floats, change_within, expected_rounds_redone
from fedforget.planner.round_law import client_change

_SERIES, _SURE = 1e-3, 500.0  # below: two terms of the series suffice; above: e^−λ is negligible
_MOST_ROUNDS = 2**16  # beyond this, a block of rounds is approximated by its middle


@dataclass(frozen=True, slots=True)
class Requests:
    """The rate of requests per day, and the share that are for one sample rather than a client."""

    per_day: float
    sample_share: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.per_day) and self.per_day > 0):
            raise ValueError(f"there cannot be {self.per_day} requests a day")
        if not 0 <= self.sample_share <= 1:
            raise ValueError(f"a share lies between 0 and 1, not at {self.sample_share}")


@dataclass(frozen=True, slots=True)
class HandlingCost:
    """The expected cost of a policy: steps from the start of the first changed round on."""

    recomputations_per_day: float
    steps_per_day: float
    steps_per_request: float


@dataclass(frozen=True, slots=True)
class WindowCost:
    """An upper bound on a window's cost, and a lower bound on the steps it saves per request."""

    days: float
    requests: float  # expected
    cost: HandlingCost
    saving: float
    mean_wait_days: float


def one_by_one(requests: Requests, sizes: Mapping[int, int], plan: Plan) -> HandlingCost:
    """Return the cost of handling each request at once, in the present federation.

    ``sizes`` maps a number of samples to the number of clients that have it.

    >>> plan = Plan(clients_per_round=1, batch_size=1, local_steps=1, rounds=1)
    >>> one_by_one(Requests(per_day=10, sample_share=0), {5: 2}, plan)  # a client is drawn with probability 1/2
    HandlingCost(recomputations_per_day=5.0, steps_per_day=5.0, steps_per_request=0.5)
    """
    (of_sample, of_client), weight = _uses(sizes, plan, np.array([plan.rounds])), requests.sample_share
    probability = weight * float(of_sample[0]) + (1 - weight) * float(of_client[0])
    clients, in_all = _count(sizes)
    sample_rounds = sum(
        number * samples / in_all * float(expected_rounds_redone(_sample_change(samples, clients, plan), plan.rounds))
        for samples, number in sizes.items()
    )
    client_rounds = float(expected_rounds_redone(client_change(clients, plan.clients_per_round), plan.rounds))
    steps = plan.local_steps * (weight * sample_rounds + (1 - weight) * client_rounds)
    return HandlingCost(requests.per_day * probability, requests.per_day * steps, steps)


def in_windows(requests: Requests, days: float, sizes: Mapping[int, int], plan: Plan) -> WindowCost:
    """Return the cost of handling all requests of a window together, with at most one recomputation.

    >>> plan = Plan(clients_per_round=5, batch_size=10, local_steps=2, rounds=20)
    >>> week = in_windows(Requests(per_day=2, sample_share=0.5), 7, {50: 100}, plan)
    >>> round(week.requests, 2), round(week.cost.steps_per_request, 2), round(week.saving, 2)
    (13.76, 2.64, 0.76)
    """
    if not (math.isfinite(days) and days > 0):
        raise ValueError(f"a window cannot have {days} days")
    clients, in_all = _count(sizes)
    of_samples = days * requests.per_day * requests.sample_share
    of_clients = days * requests.per_day * (1 - requests.sample_share)
    gone = [(number, rate / number) for number, rate in ((in_all, of_samples), (clients, of_clients))]
    numbers = [-number * math.expm1(-each) for number, each in gone]
    expected = sum(numbers)
    wait = days * sum(number * _mean_wait(each) for number, (_, each) in zip(numbers, gone, strict=True)) / expected
    width = -(-plan.rounds // _MOST_ROUNDS)
    ends = np.minimum(np.arange(width, plan.rounds + width, width, dtype=np.float64), plan.rounds)
    lengths = np.diff(ends, prepend=0.0)
    middles = np.append(ends - (lengths - 1) / 2, plan.rounds)
    sample_use, client_use = _uses(sizes, plan, middles)
    changed = -np.expm1(-of_samples * sample_use - of_clients * client_use)
    steps = plan.local_steps * float(changed[:-1] @ lengths)
    alone = one_by_one(requests, sizes, plan).steps_per_request
    cost = HandlingCost(float(changed[-1]) / days, steps / days, steps / expected)
    return WindowCost(days, expected, cost, max(0.0, 1 - cost.steps_per_request / alone), wait)


def _mean_wait(rate: float) -> float:
    """Return the expected share of a window that remains after its first withdrawal, at this rate per window.

    One half at a low rate; at a high rate withdrawals come early: 1 − 1/λ + 1/(e^λ − 1).

    >>> [round(_mean_wait(rate), 4) for rate in (0.0, 1e-9, 0.1, 15.0)]
    [0.5, 0.5, 0.5083, 0.9333]
    """
    if rate < _SERIES:
        return 0.5 + rate / 12
    return 1 - 1 / rate + (1 / math.expm1(rate) if rate < _SURE else 0.0)


def _uses(sizes: Mapping[int, int], plan: Plan, rounds: Floats) -> tuple[Floats, Floats]:
    """Return the expected shares of samples and of clients that this many rounds use."""
    clients, in_all = _count(sizes)
    samples = np.zeros(len(rounds))
    for size, number in sizes.items():
        samples += number * size / in_all * change_within(_sample_change(size, clients, plan), rounds)
    return samples, change_within(client_change(clients, plan.clients_per_round), rounds)


def _sample_change(samples: int, clients: int, plan: Plan) -> float:
    change = sample_change(
        samples,
        clients=clients,
        clients_per_round=plan.clients_per_round,
        batch_size=plan.batch_size,
        local_steps=plan.local_steps,
    )
    return float(change)


def _count(sizes: Mapping[int, int]) -> tuple[int, int]:
    return sum(sizes.values()), sum(size * number for size, number in sizes.items())
