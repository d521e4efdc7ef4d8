"""The a-priori cost of forgetting: the probability of a recomputation and its expected number of steps.

Lemma 1 and Theorem 1 bound the probability by a union bound. The law itself is short. Of M clients, a round fills K
slots independently and uniformly, and every client drawn does E local steps, each on a uniform subset of min(b, N_j)
of its N_j samples. Client j loses w_j samples, so it holds a lost one

    in one batch with probability                β_j = 1 − C(N_j − w_j, b_j) / C(N_j, b_j),  b_j = min(b, N_j),
    in one of its first i batches with           a_ji = 1 − (1 − β_j)^i,

where β_j = 1 if the whole client leaves. With B_i the sum of independent Bernoulli(a_ji) over the clients that lose
samples, the first i steps of a round stay unchanged with probability q_i = E[(1 − B_i/M)^K]. Rounds are independent.
Q = q_E is the probability that a whole round stays unchanged; everything below follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from fractions import Fraction
from typing import Any, Generic, TypeVar

import numpy as np

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.planner.geometric import Floats, change_within, expected_rounds_redone
from fedforget.planner.round_law import (
    Training,
    Withdrawal,
    client_change,
    exact_miss,
    exact_stay,
    round_changes,
)

Number = TypeVar("Number", float, Fraction)


@dataclass(frozen=True, slots=True)
class ForgettingCost(Generic[Number]):
    """The a-priori cost of a set of requests that are carried out together.

    ``expected_steps`` counts from the start of the first round that changes, ``expected_steps_from_first_use`` from
    its first step that changes (t_S, inclusive). Both count zero if nothing changes.
    """

    probability: Number
    expected_steps: Number
    expected_steps_from_first_use: Number


@dataclass(frozen=True, slots=True)
class StreamCost:
    """The total expected cost of a stream of requests that are carried out one by one."""

    expected_recomputations: float
    expected_steps: float
    expected_steps_from_first_use: float


def client_bound(*, clients: int, clients_per_round: int, rounds: int) -> Fraction:
    """Return ρ_C = K·R/M: Lemma 1's bound on the probability that one client's request changes a draw. May exceed 1.

    >>> client_bound(clients=100, clients_per_round=5, rounds=4)
    Fraction(1, 5)
    """
    Training(clients, clients_per_round, 1, 1, rounds)
    return Fraction(clients_per_round * rounds, clients)


def sample_bound(
    samples: int, *, clients: int, clients_per_round: int, batch_size: int, local_steps: int, rounds: int
) -> Fraction:
    """Return ρ_S = min(b, N)·K·E·R/(N·M): Lemma 1's bound for one sample of a client with N. May exceed 1.

    >>> sample_bound(50, clients=100, clients_per_round=5, batch_size=10, local_steps=2, rounds=4)
    Fraction(2, 25)
    """
    if samples < 1:
        raise ValueError(f"a client with {samples} samples has none to forget")
    Training(clients, clients_per_round, batch_size, local_steps, rounds)
    return Fraction(min(batch_size, samples) * clients_per_round * local_steps * rounds, samples * clients)


def sample_change(
    samples: int,
    *,
    clients: int,
    clients_per_round: int | Floats,
    batch_size: int | Floats,
    local_steps: int | Floats,
) -> Any:
    """Return p_c·(1 − (1 − min(b, N)/N)^E), the probability that a round changes if one of N samples leaves.

    Accepts arrays.

    >>> round(float(sample_change(50, clients=100, clients_per_round=5, batch_size=10, local_steps=2)), 6)
    0.017644
    """
    held = change_within(np.minimum(batch_size, samples) / samples, local_steps)
    return client_change(clients, clients_per_round) * held


def forgetting_cost(
    withdrawals: Sequence[Withdrawal],
    *,
    clients: int,
    clients_per_round: int,
    batch_size: int,
    local_steps: int,
    rounds: int,
) -> ForgettingCost[float]:
    """Return the exact cost that Theorem 1 bounds, for requests of one batch: one ``Withdrawal`` per affected client.

    P(recompute) = 1 − Q^R, in floats that are accurate for small values too. One sample, then one client, of the worlds
    whose bounds are 2/25 and 1/5 above:

    >>> world = dict(clients=100, clients_per_round=5, batch_size=10, local_steps=2, rounds=4)
    >>> one_sample = forgetting_cost([Withdrawal(50, 1)], **world)
    >>> round(one_sample.probability, 6), round(one_sample.expected_steps, 6)
    (0.068728, 0.3467)
    >>> round(forgetting_cost([Withdrawal(50, None)], **world).probability, 6)
    0.182093
    """
    return _cost(withdrawals, Training(clients, clients_per_round, batch_size, local_steps, rounds))


def exact_forgetting_cost(
    withdrawals: Sequence[Withdrawal],
    *,
    clients: int,
    clients_per_round: int,
    batch_size: int,
    local_steps: int,
    rounds: int,
) -> ForgettingCost[Fraction]:
    """Return ``forgetting_cost`` in fractions, for small worlds.

    With g = (1 − Q^R)/(1 − Q) the expected steps are E·(R − Q·g), and E·R − g·(q_1 + … + q_E) from the first use.

    >>> world = dict(clients=2, clients_per_round=1, batch_size=1, local_steps=2, rounds=1)
    >>> cost = exact_forgetting_cost([Withdrawal(2, 1)], **world)  # q_1 = 3/4, q_2 = 5/8
    >>> print(cost.probability, cost.expected_steps, cost.expected_steps_from_first_use)
    3/8 3/4 5/8
    """
    training = Training(clients, clients_per_round, batch_size, local_steps, rounds)
    training.check(withdrawals)
    misses = [exact_miss(withdrawal, batch_size) for withdrawal in withdrawals]
    stays = [exact_stay([miss**step for miss in misses], training) for step in range(1, local_steps + 1)]
    stay = stays[-1]
    powers = rounds + Fraction(0) if stay == 1 else (1 - stay**rounds) / (1 - stay)  # g
    return ForgettingCost(
        probability=1 - stay**rounds,
        expected_steps=local_steps * (rounds - stay * powers),
        expected_steps_from_first_use=local_steps * rounds - powers * sum(stays),
    )


def expected_stream_cost(
    requests: Iterable[Request],
    sizes: Mapping[Id, int],
    *,
    clients: int,
    clients_per_round: int,
    batch_size: int,
    local_steps: int,
    rounds: int,
) -> StreamCost:
    """Return the cost of requests carried out one by one; ``sizes`` holds the sizes of the affected clients.

    Exact unlearning (Theorem 1) leaves the draws of a training without the erased data. So each request costs what it
    would cost alone in the remaining world: M and N shrink each time. Theorem 1's ρ·w bounds the probability that *any*
    of them recomputes, not how often: here it is 3·1/3.

    >>> world = dict(clients=3, clients_per_round=1, batch_size=1, local_steps=1, rounds=1)
    >>> stream = [Request(0), Request(1), Request(2)]
    >>> round(expected_stream_cost(stream, {0: 4, 1: 4, 2: 4}, **world).expected_recomputations, 6)  # 1/3 + 1/2 + 1
    1.833333
    """
    now = Training(clients, clients_per_round, batch_size, local_steps, rounds)
    left, totals = dict(sizes), np.zeros(3)
    for request in requests:
        if not left.get(request.client):
            raise ValueError(f"cannot forget {request}: nothing is left of client {request.client}")
        totals += astuple(_cost([Withdrawal(left[request.client], None if request.sample is None else 1)], now))
        left[request.client] -= left[request.client] if request.sample is None else 1
        if not left[request.client] and now.clients > 1:
            now = replace(now, clients=now.clients - 1)
    return StreamCost(*totals.tolist())


def _cost(withdrawals: Sequence[Withdrawal], training: Training) -> ForgettingCost[float]:
    """Compute ``forgetting_cost`` without subtracting nearly equal numbers."""
    training.check(withdrawals)
    change_sum, change = round_changes(withdrawals, training)
    if training.rounds == 0 or change == 0.0:
        return ForgettingCost(0.0, 0.0, 0.0)
    probability = float(change_within(change, training.rounds))
    later_rounds = training.local_steps * float(expected_rounds_redone(change, training.rounds - 1))
    return ForgettingCost(
        probability=probability,
        expected_steps=training.local_steps * float(expected_rounds_redone(change, training.rounds)),
        expected_steps_from_first_use=later_rounds + probability / change * change_sum,
    )
