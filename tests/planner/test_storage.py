"""Storage and traffic against every draw of tiny worlds."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fedforget.algorithm.plan import Plan, ServerOptimizer
from fedforget.planner.costs import forgetting_cost
from fedforget.planner.round_law import Withdrawal
from fedforget.planner.storage import (
    client_bytes,
    client_forgetting_traffic,
    expected_distinct_clients,
    learning_traffic,
    sample_forgetting_traffic,
    server_bytes,
    state_bytes,
)

MODEL = 1000
Law = dict[tuple[bool, int], Fraction]  # of a round: whether it changes, and how many clients train when it is replayed


def sample_round(plan: Plan, clients: int, samples: int) -> Law:
    """Client 0 loses a sample: no other client is drawn instead, so the same clients train again."""
    size = min(plan.batch_size, samples)
    held = 1 - (1 - Fraction(size, samples)) ** plan.local_steps
    law: Law = defaultdict(Fraction)
    for slots in itertools.product(range(clients), repeat=plan.clients_per_round):
        weight, distinct = Fraction(1, clients**plan.clients_per_round), len(set(slots))
        law[True, distinct] += weight * (held if 0 in slots else 0)
        law[False, distinct] += weight * (1 - held if 0 in slots else 1)
    return law


def client_round(plan: Plan, clients: int) -> Law:
    """Client 0 leaves: where it was first in line, the next takes its place."""
    law: Law = defaultdict(Fraction)
    orders = [(first, second) for first in range(clients) for second in range(clients) if first != second]
    for lines in itertools.product(orders, repeat=plan.clients_per_round):
        left = {second if first == 0 else first for first, second in lines}
        law[any(first == 0 for first, _ in lines), len(left)] += Fraction(1, len(orders) ** plan.clients_per_round)
    return law


def histories(law: Law, rounds: int) -> Iterator[tuple[Fraction, list[tuple[bool, int]]]]:
    for history in itertools.product(law.items(), repeat=rounds):
        yield math.prod((weight for _, weight in history), start=Fraction(1)), [outcome for outcome, _ in history]


def enumerated(law: Law, plan: Plan) -> tuple[Fraction, Fraction, Fraction]:
    """Rounds recomputed, rounds replayed, models trained."""
    recomputed = replayed = trained = Fraction(0)
    for weight, history in histories(law, plan.rounds):
        first = next((r for r, (changed, _) in enumerate(history, start=1) if changed), None)
        if first is not None:
            kept = max(r for r in range(first) if plan.is_kept(r, plan.rounds))
            recomputed += weight * (plan.rounds - first + 1)
            replayed += weight * (plan.rounds - kept)
            trained += weight * sum(count for _, count in history[kept:])
    return recomputed, replayed, trained


@pytest.mark.parametrize("keep", ["every", 2, 3, "ends"])
@pytest.mark.parametrize(
    ("clients", "samples", "slots", "batch", "steps", "rounds"),
    [
        (3, 3, 2, 1, 2, 4),
        (2, 2, 3, 1, 1, 5),
        (4, 5, 2, 2, 1, 3),
        (3, 2, 1, 2, 2, 4),
        (2, 3, 2, 3, 1, 4),
        (1, 2, 2, 1, 1, 4),
    ],
)
def test_every_draw_of_a_tiny_world(clients, samples, slots, batch, steps, rounds, keep):
    plan = Plan(slots, batch, steps, rounds, keep=keep)
    told = sample_forgetting_traffic(plan, clients, samples, MODEL)
    exact = enumerated(sample_round(plan, clients, samples), plan)
    assert (told.rounds_recomputed, told.rounds_replayed, told.trainings) == pytest.approx(
        tuple(map(float, exact)), rel=1e-12
    )
    assert told.bytes == pytest.approx(2 * MODEL * float(exact[2]), rel=1e-12)
    if clients > 1:
        told = client_forgetting_traffic(plan, clients, MODEL)
        exact = enumerated(client_round(plan, clients), plan)
        assert (told.rounds_recomputed, told.rounds_replayed, told.trainings) == pytest.approx(
            tuple(map(float, exact)), rel=1e-12
        )


def test_the_enumeration_tells_wrong_variants_apart():
    plan, clients, samples = Plan(2, 1, 2, 4, keep=2), 3, 3
    recomputed, replayed, trained = enumerated(sample_round(plan, clients, samples), plan)
    assert replayed > recomputed
    independent = float(replayed) * expected_distinct_clients(clients, 2)  # as if a change told nothing of who is drawn
    assert float(trained) > 1.01 * independent
    left = enumerated(client_round(plan, clients), plan)
    as_before = float(left[1]) * expected_distinct_clients(clients, 2)  # as if no client had left
    assert as_before > 1.01 * float(left[2])


def test_losing_the_last_sample_counts_as_losing_the_client():
    plan = Plan(2, 3, 2, 5, keep=2)
    assert sample_forgetting_traffic(plan, 4, 1, MODEL) == client_forgetting_traffic(plan, 4, MODEL)
    assert client_forgetting_traffic(plan, 1, MODEL).bytes == 0, "no client is left"
    assert learning_traffic(plan, 0, MODEL).bytes == 0


def test_rounds_recomputed_are_those_of_the_law():
    plan = Plan(7, 4, 6, 25, keep=10)
    world = {"clients": 50, "clients_per_round": 7, "batch_size": 4, "local_steps": 6, "rounds": 25}
    for told, loss in (
        (sample_forgetting_traffic(plan, 50, 30, MODEL), Withdrawal(30, 1)),
        (client_forgetting_traffic(plan, 50, MODEL), Withdrawal(30, None)),
    ):
        assert 6 * told.rounds_recomputed == pytest.approx(forgetting_cost([loss], **world).expected_steps, rel=1e-12)
        ends = replace(plan, keep="ends")
        every = replace(plan, keep="every")
        assert told.rounds_recomputed < told.rounds_replayed < 25
        assert told.rounds_recomputed == _again(every, loss).rounds_replayed
        assert _again(ends, loss).rounds_replayed == pytest.approx(
            25 * forgetting_cost([loss], **world).probability, rel=1e-12
        )


def _again(plan: Plan, loss: Withdrawal):
    if loss.lost is None:
        return client_forgetting_traffic(plan, 50, MODEL)
    return sample_forgetting_traffic(plan, 50, loss.samples, MODEL)


@pytest.mark.parametrize(("clients", "slots"), [(1, 3), (3, 1), (3, 4), (4, 3)])
def test_distinct_clients(clients: int, slots: int) -> None:
    draws = list(itertools.product(range(clients), repeat=slots))
    assert expected_distinct_clients(clients, slots) == pytest.approx(np.mean([len(set(d)) for d in draws]), rel=1e-12)


def test_a_million_clients_lose_no_digits():
    plan = Plan(100, 10, 10, 1000)
    told = sample_forgetting_traffic(plan, 10**6, 200, MODEL)
    assert told.trainings == pytest.approx(told.rounds_replayed * 100, rel=1e-3)
    assert told.trainings >= told.rounds_replayed * expected_distinct_clients(10**6, 100)


def test_storage_counts_kept_states_roster_and_samples():
    plan = Plan(2, 3, 2, 10, keep=4)  # rounds 0, 4, 8 and 10
    assert state_bytes(plan, MODEL) == MODEL
    assert state_bytes(replace(plan, server=ServerOptimizer("fedadam")), MODEL) == 5 * MODEL
    assert server_bytes(plan, 100, MODEL) - server_bytes(plan, 0, MODEL) == 100 * 48
    assert server_bytes(plan, 0, MODEL) == 4 * MODEL
    assert client_bytes(11) - client_bytes(10) == 48
