"""Entries 12 to 16 of ``docs/errata.md``: what the published figures show, against exact expectations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedforget.data.places import find
from fedforget.data.registry import dataset_of
from fedforget.errors import DataMissing
from fedforget.experiments.published import OURS, Published
from fedforget.planner.costs import forgetting_cost, sample_change
from fedforget.planner.round_law import Withdrawal, client_change
from tests.errata.test_errata import check

MNIST = {"clients": 300, "clients_per_round": 5, "batch_size": 10, "local_steps": 10, "rounds": 30}
SHAKESPEARE = {"clients": 630, "clients_per_round": 12, "batch_size": 60, "local_steps": 100, "rounds": 50}
# Read off the published drawings, in the order of the entry's table.
DRAWN_7A = (16.4, 28.5, 37.6, 44.5, 45.1, 46.6, 47.0, 46.3)


def from_first_use(world: dict[str, int]) -> float:
    return forgetting_cost([Withdrawal(200, None)], **world).expected_steps


def from_last_use(world: dict[str, int]) -> float:
    """E·(R − last + 1) on average. Read backwards, the last round is the first: E·E[first; used]."""
    change = float(client_change(world["clients"], world["clients_per_round"]))
    stays = [change * (1 - change) ** (round_ - 1) for round_ in range(1, world["rounds"] + 1)]
    return world["local_steps"] * sum(round_ * chance for round_, chance in enumerate(stays, start=1))


def test_entry_12_client_times_count_from_the_last_use() -> None:
    mnist = {**MNIST, "clients_per_round": 10}
    ratio = from_first_use(SHAKESPEARE) / from_last_use(SHAKESPEARE)
    check(
        12,
        {
            "MNIST, K = 10, ρ_C = 1: from the first use": f"{from_first_use(mnist):.1f}",
            "MNIST, K = 10, ρ_C = 1: from the last use": f"{from_last_use(mnist):.1f}",
            "Shakespeare, M = 630, K = 12: from the first use": f"{from_first_use(SHAKESPEARE):,.0f}",
            "Shakespeare, M = 630, K = 12: from the last use": f"{from_last_use(SHAKESPEARE):,.0f}",
            "Shakespeare, M = 630, K = 12: first over last": f"{ratio:.2f}",
        },
    )
    assert from_last_use(SHAKESPEARE) == pytest.approx(1327, rel=0.012)  # as drawn
    assert from_last_use(mnist) == pytest.approx(82.9, rel=0.012)
    assert from_first_use(SHAKESPEARE) != pytest.approx(1327, rel=0.3)  # the wrong reading fails


def test_entry_13_figure_6_has_fifty_rounds() -> None:
    def largest_slots(clients: int, rounds: int) -> int:
        return max(slots for slots in range(2, 21, 2) if slots * rounds <= clients)

    check(
        13,
        {
            "FRS, R = 30: steps": "3,000",
            "FRS, R = 50: steps": f"{50 * 100:,}",
            "largest even K with ρ_C ≤ 1 at M = 420, R = 30": largest_slots(420, 30),
            "largest even K with ρ_C ≤ 1 at M = 420, R = 50": largest_slots(420, 50),
            "largest even K with ρ_C ≤ 1 at M = 630, R = 50": largest_slots(630, 50),
        },
    )


def sample_time(batch: int) -> float:
    return forgetting_cost([Withdrawal(200, 1)], **{**MNIST, "batch_size": batch}).expected_steps_from_first_use


def test_entry_14_figure_7a_levels_off_too_early() -> None:
    batches = range(5, 41, 5)
    exact = [sample_time(batch) for batch in batches]
    check(
        14,
        {
            f"ρ_S = {batch / 40:g}: steps from the first use": f"{steps:.1f}"
            for batch, steps in zip(batches, exact, strict=True)
        },
    )
    apart = [abs(drawn - steps) / steps for drawn, steps in zip(DRAWN_7A, exact, strict=True)]
    assert max(apart[:4]) < 0.015
    assert min(apart[4:]) > 0.08


def test_entry_15_ten_requests_are_not_stable() -> None:
    def cost(rounds: int) -> tuple[str, str]:
        found = forgetting_cost([Withdrawal(200, 1)] * 10, **{**MNIST, "rounds": rounds})
        return f"{found.probability:.2f}", f"{found.expected_steps / (10 * rounds):.2f}"

    check(
        15,
        {
            f"ten samples after {rounds} rounds: P(recompute), expected share of the steps": ", ".join(cost(rounds))
            for rounds in (20, 40, 60)
        },
    )


FIGURE_6A = {"clients": 660, "local_steps": 100, "rounds": 50}
DRAWN_6A = [(batch, int(slots), steps) for batch in (40, 60, 80)
            for slots, steps in Published(OURS).curve("6a", f"FATS b={batch}", "steps")]  # fmt: skip
Expectation = Callable[[int, int], float]  # of (b, K)


def one_sample(size: int = 5_573, *, to_the_step: bool = False, **changes: int) -> Expectation:
    def steps(batch: int, slots: int) -> float:
        world = {**FIGURE_6A, **changes, "clients_per_round": slots, "batch_size": batch}
        cost = forgetting_cost([Withdrawal(size, 1)], **world)
        return cost.expected_steps_from_first_use if to_the_step else cost.expected_steps

    return steps


def share_used(batch: int, slots: int) -> float:
    world = {**FIGURE_6A, "clients_per_round": slots, "batch_size": batch}
    return forgetting_cost([Withdrawal(5_573, 1)], **world).probability


def one_sample_from_last_use(batch: int, slots: int) -> float:
    change = float(sample_change(5_573, clients=660, clients_per_round=slots, batch_size=batch, local_steps=100))
    return 100 * sum(round_ * change * (1 - change) ** (round_ - 1) for round_ in range(1, 51))


def drawn_over(expectation: Expectation) -> tuple[float, float]:
    ratios = [steps / expectation(batch, slots) for batch, slots, steps in DRAWN_6A]
    return min(ratios), max(ratios)


def test_entry_16_figure_6a_is_a_third_too_low() -> None:
    def words(expectation: Expectation) -> str:
        return "{:.2f} to {:.2f}".format(*drawn_over(expectation))

    exact = one_sample()
    assert len(DRAWN_6A) == 16
    check(
        16,
        {
            "b = 40, K = 2: exact, drawn": f"{exact(40, 2):.0f}, {DRAWN_6A[0][2]:.0f}",
            "b = 60, K = 12: exact, drawn": f"{exact(60, 12):,.0f}, 871",
            "b = 80, K = 8: exact, drawn": f"{exact(80, 8):,.0f}, 674",
            "drawn over exact, all 16 points": words(exact),
            "counted from the step of the first use, not from its round": words(one_sample(to_the_step=True)),
            "counted from the last use": words(one_sample_from_last_use),
            "samples that were never used left out": words(lambda b, K: exact(b, K) / share_used(b, K)),
            "R = 30, as in Table 2": words(one_sample(rounds=30)),
            "M = 630": words(one_sample(clients=630)),
            "all 1,129 roles of LEAF: N = 3,743": words(one_sample(3_743, clients=1_129)),
            "fitted: M = 1,129 and N = 4,500": words(one_sample(4_500, clients=1_129)),
            "fitted: R = 38 and N = 4,300": words(one_sample(4_300, rounds=38)),
        },
    )
    for other in (exact, one_sample_from_last_use, one_sample(rounds=30), one_sample(3_743, clients=1_129)):
        least, most = drawn_over(other)
        assert most < 0.97 or least > 1.03  # not within the drawing's exactness at any point
    assert 871 in [steps for *_, steps in DRAWN_6A]


def test_entry_16_the_roles_own_sizes_do_not_explain_it_either() -> None:
    """Samples of large roles are used less often. Weighted by samples, 9 to 15 % remain."""
    try:
        source = find(dataset_of("shakespeare"), online=False)
    except DataMissing:
        pytest.skip("needs the real Shakespeare")
    sizes = np.array([len(group.train) for group in (source.groups or {}).values()])
    assert (len(sizes), sizes.sum()) == (660, 3_678_451)

    def weighted(batch: int, slots: int) -> float:
        return float(sum(size / sizes.sum() * one_sample(int(size))(batch, slots) for size in sizes))

    few = [point for point in DRAWN_6A if point[:2] in {(40, 2), (40, 12), (60, 4), (60, 12), (80, 2), (80, 8)}]
    ratios = [steps / weighted(batch, slots) for batch, slots, steps in few]
    assert 0.845 < min(ratios) < 0.855
    assert 0.905 < max(ratios) < 0.92
