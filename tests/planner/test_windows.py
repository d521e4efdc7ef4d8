"""Windows of requests, against every draw of tiny worlds and against simulated withdrawals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.algorithm.plan import Plan
from fedforget.planner import windows
from fedforget.planner.costs import exact_forgetting_cost
from fedforget.planner.round_law import Withdrawal
from fedforget.planner.windows import Requests, in_windows, one_by_one

FALSE_ALARM = 1e-6


def alone(requests: Requests, sizes: dict[int, int], plan: Plan) -> tuple[float, float]:
    """Probability and expected steps of one request of the mix, from the law in fractions."""
    world = {
        "clients": sum(sizes.values()), "clients_per_round": plan.clients_per_round, "batch_size": plan.batch_size,
        "local_steps": plan.local_steps, "rounds": plan.rounds,
    }  # fmt: skip
    in_all, share = sum(n * count for n, count in sizes.items()), requests.sample_share
    parts = [
        (share * n * count / in_all, exact_forgetting_cost([Withdrawal(n, 1)], **world)) for n, count in sizes.items()
    ]
    parts.append((1 - share, exact_forgetting_cost([Withdrawal(1, None)], **world)))
    return sum(w * float(c.probability) for w, c in parts), sum(w * float(c.expected_steps) for w, c in parts)


MIXES = st.builds(Requests, st.floats(0.01, 50), st.sampled_from([0.0, 0.3, 1.0]))
SIZES = st.dictionaries(st.integers(1, 30), st.integers(1, 5), min_size=1, max_size=4)
PLANS = st.builds(Plan, st.integers(1, 6), st.integers(1, 10), st.integers(1, 4), st.integers(1, 20))


@given(MIXES, SIZES, PLANS)
@settings(max_examples=100)
def test_one_by_one_is_the_law_of_one_request(requests, sizes, plan):
    probability, steps = alone(requests, sizes, plan)
    told = one_by_one(requests, sizes, plan)
    assert told.steps_per_request == pytest.approx(steps, rel=1e-9)
    assert told.steps_per_day == pytest.approx(requests.per_day * steps, rel=1e-9)
    assert told.recomputations_per_day == pytest.approx(requests.per_day * probability, rel=1e-9)


@given(MIXES, SIZES, PLANS, st.floats(0.01, 100))
@settings(max_examples=100)
def test_windows_save_and_longer_ones_save_more(requests, sizes, plan, days):
    moment, short, long = (in_windows(requests, d, sizes, plan) for d in (1e-7, days, 2 * days))
    now = one_by_one(requests, sizes, plan)
    assert moment.cost.steps_per_day == pytest.approx(now.steps_per_day, rel=1e-4)
    assert short.cost.steps_per_day <= now.steps_per_day * (1 + 1e-9)
    assert long.cost.steps_per_day <= short.cost.steps_per_day * (1 + 1e-9)
    assert short.cost.steps_per_day * days <= plan.steps * (1 + 1e-9)
    assert 0 <= short.saving <= 1
    assert short.cost.recomputations_per_day * days <= 1
    assert days / 2 <= short.mean_wait_days < days
    assert short.requests <= requests.per_day * days * (1 + 1e-9)


@pytest.mark.parametrize(("sizes", "share", "days"), [({1: 1}, 0.5, 30.0), ({4: 3}, 0.7, 30.0), ({200: 300}, 0.5, 7.0)])
def test_mean_wait_matches_numerical_integration(sizes, share, days):
    """Every sample and client withdraws at a constant rate: integrate over a window."""
    clients, in_all = sum(sizes.values()), sum(size * number for size, number in sizes.items())
    edges = np.linspace(0, days, 200_001)
    middles = (edges[1:] + edges[:-1]) / 2
    leaving = sum(
        rate * np.exp(-rate / number * middles) for number, rate in ((in_all, share), (clients, 1 - share)) if rate
    )
    expected = float(((days - middles) * leaving).sum() / leaving.sum())
    window = in_windows(Requests(1.0, share), days, sizes, Plan(1, 1, 1, 1))
    assert window.mean_wait_days == pytest.approx(expected, rel=1e-6)


# Every draw of tiny worlds


def uses(plan: Plan, sizes: list[int]) -> Iterator[tuple[set[int], set[tuple[int, int]]]]:
    """The clients and samples that one round uses, once for each equally likely outcome."""
    batches = [list(itertools.combinations(range(n), min(plan.batch_size, n))) for n in sizes]
    for slots in itertools.product(range(len(sizes)), repeat=plan.clients_per_round):
        for drawn in itertools.product(*(itertools.product(part, repeat=plan.local_steps) for part in batches)):
            here = set(slots)
            yield here, {(client, sample) for client in here for batch in drawn[client] for sample in batch}


def enumerated_steps(requests: Requests, days: float, sizes: list[int], plan: Plan) -> float:
    """Expected steps of one window: after each prefix of rounds, every target that it used may have withdrawn."""
    each_sample = requests.per_day * requests.sample_share * days / sum(sizes)
    each_client = requests.per_day * (1 - requests.sample_share) * days / len(sizes)
    outcomes, total = list(uses(plan, sizes)), 0.0
    for history in itertools.product(outcomes, repeat=plan.rounds):
        clients: set[int] = set()
        samples: set[tuple[int, int]] = set()
        for here, held in history:
            clients, samples = clients | here, samples | held
            total -= math.expm1(-each_client * len(clients) - each_sample * len(samples))
    return plan.local_steps * total / len(outcomes) ** plan.rounds


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("sizes", "plan"),
    [([2, 2], Plan(1, 1, 1, 3)), ([1, 2, 3], Plan(2, 1, 1, 2)), ([2, 3], Plan(1, 2, 2, 2)), ([3], Plan(2, 1, 1, 3))],
)
def test_window_cost_is_at_most_the_bound(sizes, plan, share):
    counted = {n: sizes.count(n) for n in sizes}
    for days in (0.1, 1.0, 5.0):
        requests = Requests(2.0, share)
        exact, told = enumerated_steps(requests, days, sizes, plan), in_windows(requests, days, counted, plan)
        said = told.cost.steps_per_day * days
        assert exact <= said * (1 + 1e-12)
        assert said <= 1.12 * exact, "the bound is close even here"
        assert told.saving <= 1 - exact / told.requests / alone(requests, counted, plan)[1] + 1e-12
        one_each = requests.per_day * days * alone(requests, counted, plan)[1]
        assert days < 1 or not math.isclose(exact, one_each, rel_tol=0.1), "not the cost of as many single requests"


# Simulated withdrawals


def simulated_steps(generator, requests: Requests, days: float, clients: int, samples: int, plan: Plan, histories: int):
    """Simulate draws and withdrawals, and count from the first round that used a withdrawn target."""
    shape = (histories, plan.rounds, clients)
    slots = generator.integers(clients, size=(histories, plan.rounds, plan.clients_per_round))
    drawn = np.zeros(shape, bool)
    np.put_along_axis(drawn, slots, True, axis=2)
    gone = generator.random((histories, clients)) < -math.expm1(
        -requests.per_day * (1 - requests.sample_share) * days / clients
    )
    lost = generator.random((histories, clients, samples)) < -math.expm1(
        -requests.per_day * requests.sample_share * days / (clients * samples)
    )
    changed = (drawn & gone[:, np.newaxis]).any(axis=2)
    for _ in range(plan.local_steps):
        order = generator.random((*shape, samples)).argsort(axis=3)[..., : plan.batch_size]
        held = np.take_along_axis(np.broadcast_to(lost[:, np.newaxis], (*shape, samples)), order, axis=3).any(axis=3)
        changed |= (drawn & held).any(axis=2)
    first = np.concatenate([changed, np.ones((histories, 1), bool)], axis=1).argmax(axis=1)
    return plan.local_steps * (plan.rounds - first), gone.sum(axis=1) + lost.sum(axis=(1, 2))


def test_simulated_withdrawals():
    """Four comparisons by Hoeffding's inequality, each with a false alarm in at most one of a million seeds.

    The true cost lies at most 3 % below the bound here; the number of requests is held to six standard errors.
    """
    requests, days, clients, samples, plan = Requests(1.5, 0.6), 2.0, 20, 8, Plan(2, 2, 2, 6)
    steps, asked = simulated_steps(np.random.default_rng(1), requests, days, clients, samples, plan, 20_000)
    told = in_windows(requests, days, {samples: clients}, plan)
    allowed = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * len(steps)))
    said = told.cost.steps_per_day * days
    assert steps.mean() <= said + plan.steps * allowed
    assert steps.mean() >= 0.97 * said - plan.steps * allowed
    probability = told.cost.recomputations_per_day * days
    assert 0.97 * probability - allowed <= (steps > 0).mean() <= probability + allowed
    assert asked.mean() == pytest.approx(told.requests, abs=6 * asked.std() / math.sqrt(len(asked)))
    separate = requests.per_day * days * one_by_one(requests, {samples: clients}, plan).steps_per_request
    assert abs(steps.mean() - separate) > plan.steps * allowed, "the simulation tells a window from single requests"


def test_a_large_federation_is_close_to_the_bound():
    """The mean over draws of the exact conditional cost, within five standard errors (about one alarm in a million)."""
    clients, samples, plan, requests, days = 300, 20, Plan(10, 4, 3, 12), Requests(3.0, 0.5), 7.0
    generator, costs = np.random.default_rng(2), []
    each_sample = requests.per_day * days * 0.5 / (clients * samples)
    each_client = requests.per_day * days * 0.5 / clients
    for _ in range(300):
        used, met, cost = np.zeros((clients, samples), bool), np.zeros(clients, bool), 0.0
        for _ in range(plan.rounds):
            here = np.unique(generator.integers(clients, size=plan.clients_per_round))
            met[here] = True
            order = generator.random((len(here), plan.local_steps, samples)).argsort(axis=2)[..., : plan.batch_size]
            used[here[:, np.newaxis, np.newaxis], order] = True
            cost -= plan.local_steps * math.expm1(-each_client * met.sum() - each_sample * used.sum())
        costs.append(cost)
    told = in_windows(requests, days, {samples: clients}, plan).cost.steps_per_day * days
    error = 5 * np.std(costs) / math.sqrt(len(costs))
    assert np.mean(costs) - error <= told
    assert told <= 1.001 * (np.mean(costs) + error)


# Edges


def test_many_rounds_count_in_blocks(monkeypatch):
    plan, requests = Plan(3, 5, 2, 5000), Requests(2.0, 0.5)
    exact = in_windows(requests, 3.0, {40: 5000}, plan)
    monkeypatch.setattr(windows, "_MOST_ROUNDS", 128)
    rough = in_windows(requests, 3.0, {40: 5000}, plan)
    assert rough.cost.steps_per_day == pytest.approx(exact.cost.steps_per_day, rel=1e-4)
    assert rough.cost.recomputations_per_day == exact.cost.recomputations_per_day


def test_window_in_which_every_client_withdraws():
    window = in_windows(Requests(1000.0, 0.0), 30.0, {5: 10}, Plan(2, 2, 2, 8))
    assert window.requests == pytest.approx(10)
    assert window.cost.steps_per_day * 30 == pytest.approx(16)


@pytest.mark.parametrize(
    ("rate", "share"), [(0, 0.5), (-1, 0.5), (math.inf, 0.5), (math.nan, 0.5), (1, -0.1), (1, 1.1)]
)
def test_impossible_request_rates_are_refused(rate, share):
    with pytest.raises(ValueError, match=r"requests a day|share"):
        Requests(rate, share)


@pytest.mark.parametrize("days", [0, -1, math.inf, math.nan])
def test_impossible_windows_are_refused(days):
    with pytest.raises(ValueError, match="window"):
        in_windows(Requests(1, 0.5), days, {5: 10}, Plan(2, 2, 2, 8))
