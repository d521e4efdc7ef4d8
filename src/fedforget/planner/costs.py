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

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from fractions import Fraction
from typing import Any, Generic, TypeVar

import numpy as np

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.planner.geometric import Floats, change_within, expected_rounds_redone

Number = TypeVar("Number", float, Fraction)

_NEGLIGIBLE = 1e-30  # relative to the largest probability: far below the rounding error
_UNDERFLOW = 750.0  # exp of minus this is zero
_TABLE_CELLS = 2**17
_FEW = 1000  # up to this count, binomial coefficients are computed exactly


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What one client withdraws: ``lost`` (w_j) of its ``samples`` (N_j); ``None`` if the whole client leaves."""

    samples: int
    lost: int | None

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise ValueError(f"a client cannot have {self.samples} samples")
        if self.lost is not None and not 0 <= self.lost <= self.samples:
            raise ValueError(f"a client with {self.samples} samples cannot lose {self.lost}")


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


@dataclass(frozen=True, slots=True)
class Training:
    """M, K, b, E and R."""

    clients: int
    clients_per_round: int
    batch_size: int
    local_steps: int
    rounds: int

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name == "rounds" else 1
            if getattr(self, field.name) < least:
                raise ValueError(f"{field.name} must be at least {least}, not {getattr(self, field.name)}")

    def check(self, withdrawals: Sequence[Withdrawal]) -> None:
        if len(withdrawals) > self.clients:
            raise ValueError(f"{len(withdrawals)} clients lose samples, but there are only {self.clients}")


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


def client_change(clients: int, clients_per_round: int | Floats) -> Any:
    """Return p_c = 1 − (1 − 1/M)^K, the probability that a round changes if one client leaves. Accepts arrays.

    >>> round(float(client_change(100, 5)), 6)
    0.04901
    """
    return change_within(1 / clients, clients_per_round)


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
    misses = [_exact_miss(withdrawal, batch_size) for withdrawal in withdrawals]
    stays = [_exact_stay([miss**step for miss in misses], training) for step in range(1, local_steps + 1)]
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
    change_sum, change = _round_changes(withdrawals, training)
    if training.rounds == 0 or change == 0.0:
        return ForgettingCost(0.0, 0.0, 0.0)
    probability = float(change_within(change, training.rounds))
    later_rounds = training.local_steps * float(expected_rounds_redone(change, training.rounds - 1))
    return ForgettingCost(
        probability=probability,
        expected_steps=training.local_steps * float(expected_rounds_redone(change, training.rounds)),
        expected_steps_from_first_use=later_rounds + probability / change * change_sum,
    )


def _round_changes(withdrawals: Sequence[Withdrawal], training: Training) -> tuple[float, float]:
    """Return Σ (1 − q_i) over a round's steps, and 1 − Q. For one withdrawal 1 − q_i = p_c·a_i, a geometric sum."""
    if len(withdrawals) == 1:
        held = -math.expm1(_log_miss(withdrawals[0].samples, withdrawals[0].lost, training.batch_size))
        drawn = float(client_change(training.clients, training.clients_per_round))
        steps = training.local_steps
        return drawn * float(expected_rounds_redone(held, steps)), drawn * float(change_within(held, steps))
    change_sum, change = 0.0, 0.0
    for changes in _step_changes(withdrawals, training):
        change_sum += float(changes.sum())
        change = min(float(changes[-1]), 1.0)
    return change_sum, change


def _step_changes(withdrawals: Sequence[Withdrawal], training: Training) -> Iterator[Floats]:
    """Yield 1 − q_i for i = 1 to E, in blocks; clients with the same β form one group."""
    groups = Counter(_log_miss(samples, lost, training.batch_size) for samples, lost in map(astuple, withdrawals))
    certain = groups.pop(-math.inf, 0)
    groups.pop(0.0, None)
    width = max(1, _TABLE_CELLS // (1 + groups.total()))
    for start in range(1, training.local_steps + 1, width):
        steps = np.arange(start, min(start + width, training.local_steps + 1), dtype=np.float64)
        law = np.ones((1, len(steps)))  # of B_i without the clients where β = 1: a row per value, a column per i
        for log_miss, count in groups.items():
            law = _convolved(law, _binomial(count, log_miss * steps))
        affected = np.arange(certain, certain + len(law))
        with np.errstate(divide="ignore"):  # log 0 if every client is affected
            drawn = -np.expm1(training.clients_per_round * np.log1p(-affected / training.clients))
        yield drawn @ law


def _log_miss(samples: int, lost: int | None, batch_size: int) -> float:
    """Return log(1 − β_j). The ratio of binomials is a product of min(b_j, w_j) factors."""
    size = min(batch_size, samples)
    if lost is None or (lost > 0 and size + lost > samples):
        return -math.inf
    fewer, more = sorted((size, lost))
    if fewer * more > _UNDERFLOW * samples:
        return -math.inf
    return float(np.log1p(-more / (samples - np.arange(fewer, dtype=np.float64))).sum())


def _binomial(count: int, log_miss: Floats) -> Floats:
    """Return the law of the number of hits among ``count``: a row per number, a column per ``log_miss``."""
    hit = -np.expm1(log_miss)
    if count == 1:
        return np.stack([np.exp(log_miss), hit])
    hits = np.arange(count + 1)[:, np.newaxis]
    law = np.exp(_log_ways(count)[:, np.newaxis] + hits * np.log(hit) + (count - hits) * log_miss)
    return _trimmed(law / law.sum(axis=0))


def _log_ways(count: int) -> Floats:
    """Return log C(count, k) for each k. Large ones share an error that normalising the law cancels."""
    if count <= _FEW:
        return np.array([math.log(math.comb(count, chosen)) for chosen in range(count + 1)])
    factorials = np.array([math.lgamma(number + 1) for number in range(count + 1)])
    return np.asarray(factorials[-1] - factorials - factorials[::-1])


def _convolved(law: Floats, other: Floats) -> Floats:
    """Return the law of the sum, column by column."""
    short, long = sorted((law, other), key=len)
    total = np.zeros((len(short) + len(long) - 1, long.shape[1]))
    for shift, row in enumerate(short):
        total[shift : shift + len(long)] += row * long
    return _trimmed(total)


def _trimmed(law: Floats) -> Floats:
    """Drop the largest values, whose probability is negligible."""
    rows = np.flatnonzero((law[1:] > _NEGLIGIBLE * law[1:].max(axis=0)).any(axis=1))
    return law[: rows[-1] + 2]


def _exact_miss(withdrawal: Withdrawal, batch_size: int) -> Fraction:
    """Return 1 − β_j."""
    if withdrawal.lost is None:
        return Fraction(0)
    size = min(batch_size, withdrawal.samples)
    return Fraction(math.comb(withdrawal.samples - withdrawal.lost, size), math.comb(withdrawal.samples, size))


def _exact_stay(misses: Sequence[Fraction], training: Training) -> Fraction:
    """Return E[(1 − B/M)^K] for clients whose draws miss the lost samples with these probabilities."""
    law = [Fraction(1)]
    for miss in misses:
        pairs = zip([*law, Fraction(0)], [Fraction(0), *law], strict=True)
        law = [same * miss + fewer * (1 - miss) for same, fewer in pairs]
    untouched = (Fraction(training.clients - affected, training.clients) for affected in range(len(law)))
    weighted = (weight * rest**training.clients_per_round for weight, rest in zip(law, untouched, strict=True))
    return sum(weighted, Fraction(0))
