"""Entries 12 to 15 of ``docs/errata.md``: what the published figures show, against exact expectations."""

from __future__ import annotations

import pytest

from fedforget.planner.costs import forgetting_cost
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
