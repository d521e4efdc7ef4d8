"""The search for K, b and E, against trying everything."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.algorithm.plan import Plan
from fedforget.errors import PlanRefused
from fedforget.planner import search
from fedforget.planner.costs import forgetting_cost
from fedforget.planner.round_law import Withdrawal
from fedforget.planner.search import Choice, Limits, Needs, cheapest_plans


def costs_of(plan: Plan, sizes: dict[int, int], share: float) -> tuple[dict[str, float], float]:
    """What the limits are about, and the objective, straight from the law."""
    clients, in_all = sum(sizes.values()), sum(n * count for n, count in sizes.items())
    world = {
        "clients": clients, "clients_per_round": plan.clients_per_round, "batch_size": plan.batch_size,
        "local_steps": plan.local_steps, "rounds": plan.rounds,
    }  # fmt: skip
    leaving = forgetting_cost([Withdrawal(1, None)], **world)
    going = {n: forgetting_cost([Withdrawal(n, 1)], **world) for n in sizes}
    every_size = [n for n, count in sizes.items() for _ in range(count)]
    limited = {
        "rho_s": plan.realised_rho_s(every_size),
        "rho_c": plan.realised_rho_c(clients),
        "sample_probability": max(cost.probability for cost in going.values()),
        "client_probability": leaving.probability,
    }
    sample = sum(n * count / in_all * going[n].expected_steps for n, count in sizes.items())
    return limited, share * sample + (1 - share) * leaving.expected_steps


def by_trying(sizes: dict[int, int], needs: Needs, limits: Limits, share: float) -> dict[int, float]:
    """The least objective for each E, over all K and b up to where more of them cannot be needed."""
    largest = sum(n * count for n, count in sizes.items()) // sum(sizes.values())
    best: dict[int, float] = {}
    for steps in range(needs.least_local_steps, min(needs.most_local_steps, needs.steps) + 1):
        if needs.steps % steps or needs.steps // steps > needs.most_rounds:
            continue
        for batch in range(needs.batch_size, largest + 1):
            for slots in range(needs.clients_per_round, max(needs.clients_per_round, needs.samples_per_step) + 1):
                if slots * batch < needs.samples_per_step:
                    continue
                limited, objective = costs_of(Plan(slots, batch, steps, needs.steps // steps), sizes, share)
                if all(value <= getattr(limits, name) * (1 + 1e-12) for name, value in limited.items()):
                    best[steps] = min(best.get(steps, math.inf), objective)
    return best


SIZES = st.dictionaries(st.integers(1, 12), st.integers(1, 6), min_size=1, max_size=3)
NEEDS = st.builds(
    Needs,
    steps=st.integers(1, 12),
    samples_per_step=st.integers(1, 10),
    clients_per_round=st.integers(1, 3),
    batch_size=st.integers(1, 3),
    most_local_steps=st.integers(1, 12),
    most_rounds=st.integers(1, 12),
)
BOUND = st.just(math.inf) | st.floats(0.05, 3)
LIMITS = st.builds(Limits, BOUND, BOUND, BOUND, BOUND)


@given(SIZES, NEEDS, LIMITS, st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=150)
def test_search_result_is_the_cheapest_feasible_plan(sizes, needs, limits, share):
    tried = by_trying(sizes, needs, limits, share)
    try:
        found = cheapest_plans(sizes, needs, limits, share)
    except PlanRefused:
        assert tried == {}
        return
    assert {choice.local_steps: choice.expected_steps for choice in found} == pytest.approx(tried, rel=1e-9)
    assert [c.expected_steps for c in found] == sorted(c.expected_steps for c in found)
    for choice in found:
        check(choice, sizes, needs, limits, share)


def check(choice: Choice, sizes, needs: Needs, limits: Limits, share: float) -> None:
    assert choice.local_steps * choice.rounds == needs.steps
    assert choice.clients_per_round * choice.batch_size >= needs.samples_per_step
    assert choice.clients_per_round >= needs.clients_per_round
    assert choice.batch_size >= needs.batch_size
    assert choice.excess(limits) <= 1
    plan = Plan(choice.clients_per_round, choice.batch_size, choice.local_steps, choice.rounds)
    limited, objective = costs_of(plan, sizes, share)
    assert choice.expected_steps == pytest.approx(objective, rel=1e-9)
    assert {name: getattr(choice, name) for name in limited} == pytest.approx(limited, rel=1e-9)


def test_exhaustive_search_catches_wrong_variants(monkeypatch):
    sizes, needs = {12: 5}, Needs(steps=12, samples_per_step=10, clients_per_round=2, most_local_steps=4)
    tried = min(by_trying(sizes, needs, Limits(), 0.5).values())
    assert cheapest_plans(sizes, needs)[0].expected_steps == pytest.approx(tried)
    right = search._least_pairs

    def without_the_first(sizes, needs):
        slots, batches = right(sizes, needs)
        return slots[1:], batches[1:]

    monkeypatch.setattr(search, "_least_pairs", without_the_first)
    assert cheapest_plans(sizes, needs)[0].expected_steps > 1.01 * tried


def test_sample_share_changes_the_best_plan():
    """Two clients with many samples: drawing both hardly matters to a sample, but to a client it does."""
    sizes, needs = {1000: 2}, Needs(steps=5, samples_per_step=100, most_local_steps=1)
    of_samples, of_clients = (cheapest_plans(sizes, needs, None, share)[0] for share in (1.0, 0.0))
    assert (of_samples.clients_per_round, of_samples.batch_size) == (100, 1)
    assert (of_clients.clients_per_round, of_clients.batch_size) == (1, 100)


def test_limit_can_exclude_the_cheapest_plan():
    sizes, needs, share = {100: 2}, Needs(steps=5, samples_per_step=12, most_local_steps=1), 0.0
    limits = Limits(sample_probability=0.13)
    free, limited = cheapest_plans(sizes, needs, None, share)[0], cheapest_plans(sizes, needs, limits, share)[0]
    assert free.sample_probability > 0.13 >= limited.sample_probability
    assert limited.expected_steps == pytest.approx(by_trying(sizes, needs, limits, share)[1], rel=1e-9)


def test_ties_are_broken_in_the_documented_order():
    found = cheapest_plans({1: 1}, Needs(steps=6, samples_per_step=2, most_local_steps=6))  # everything always changes
    assert [choice.expected_steps for choice in found] == [6.0] * 4
    assert [choice.rounds for choice in found] == [1, 2, 3, 6]
    assert {choice.clients_per_round for choice in found} == {2}


@pytest.mark.parametrize(
    ("needs", "limits", "named"),
    [
        (Needs(steps=300, samples_per_step=50, most_local_steps=10), Limits(rho_s=0.1), "rho_s = 0.25 instead of 0.1"),
        (Needs(steps=300, samples_per_step=50, most_local_steps=10), Limits(rho_c=0.05), "rho_c = 0.1 instead of 0.05"),
        (Needs(steps=300, batch_size=201, most_local_steps=10), Limits(), "batches of 201"),
        (Needs(steps=7, least_local_steps=2, most_local_steps=6), Limits(), "divides 7"),
        (Needs(steps=300, most_local_steps=10, most_rounds=20), Limits(), "divides 300"),
    ],
)
def test_infeasible_search_is_refused_with_a_hint(needs, limits, named):
    with pytest.raises(PlanRefused, match=named) as refusal:
        cheapest_plans({200: 300}, needs, limits)
    assert refusal.value.hint


def test_impossible_needs_and_limits_are_refused():
    for name in ("steps", "samples_per_step", "clients_per_round", "batch_size", "most_local_steps", "most_rounds"):
        with pytest.raises(PlanRefused, match=name.replace("_", " ")):
            Needs(**{"steps": 10, name: 0})
    for value in (0.0, -1.0, math.nan):
        with pytest.raises(PlanRefused, match="rho_c"):
            Limits(rho_c=value)
    with pytest.raises(PlanRefused, match="share"):
        cheapest_plans({5: 5}, Needs(steps=10), None, 1.5)


def test_search_with_a_million_clients_is_fast():
    began = time.monotonic()
    needs = Needs(steps=720_720, samples_per_step=100_000, most_local_steps=1000)
    found = cheapest_plans({500: 10**6}, needs, Limits(rho_c=1.0))
    assert found[0].clients_per_round * found[0].batch_size >= 100_000
    assert time.monotonic() - began < 2.0
