"""The draws-only simulation gives what the production learn and forget give, first use by first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedforget.algorithm.draws import PrfPriorities, draw_batches_without_replacement
from fedforget.algorithm.forget import Request, forget
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import LocalRound, State, Trained, TrainReply
from fedforget.algorithm.seeds import SeedSource
from fedforget.experiments import simulate
from fedforget.federation.local import LocalFederation

CLIENTS, SAMPLES, ROUNDS, STEPS = 12, 9, 10, 4
SEEDS = SeedSource("simulate")


class Nothing:
    """A learner and an aggregator that compute nothing: only the draws count."""

    def train(self, work: LocalRound) -> Trained:
        return Trained(work.model)

    def __call__(self, state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State:
        return state


def production(slots: int, batch: int) -> Server:
    """The production server after all rounds, with the seeds that the simulation uses."""
    plan = Plan(slots, batch, STEPS, ROUNDS)
    members: dict[Id, IdSet] = {client: IdSet(range(SAMPLES)) for client in range(CLIENTS)}
    clients = ClientsInMemory(members, {client: SEEDS.client(client).value for client in members})
    memory = ServerInMemory(plan, IdSet(members), State(None))
    federation = LocalFederation(plan, clients, Nothing())
    server = Server(plan, PrfPriorities(SEEDS.server().value), memory, federation, Nothing())
    learn(server, ROUNDS)
    return server


@pytest.fixture(scope="module")
def slots() -> Any:
    return simulate.draw_slots(SEEDS, CLIENTS, ROUNDS, 4)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_first_rounds_are_those_of_production(slots: Any, count: int) -> None:
    found = simulate.first_rounds(slots, CLIENTS, (1, 2, 4))[count]
    expected = production(count, 2).memory
    assert [expected.first_round(client) or 0 for client in range(CLIENTS)] == found.tolist()


@pytest.mark.parametrize(("count", "batch"), [(1, 1), (2, 3), (4, 2)])
def test_first_steps_are_those_of_production(slots: Any, count: int, batch: int) -> None:
    clients = production(count, batch).federation.memory  # type: ignore[attr-defined]
    for client in range(CLIENTS):
        for sample in range(SAMPLES):
            ranked = simulate.rank_target(SEEDS, slots, client, SAMPLES, sample, STEPS)
            assert ranked.first_step(count, batch) == clients.first_steps(client).get(sample, 0)


def test_ranks_say_which_batches_hold_the_sample(slots: Any) -> None:
    client = int(slots[0, 0])
    ranked = simulate.rank_target(SEEDS, slots, client, SAMPLES, 3, STEPS)
    priorities, samples = PrfPriorities(SEEDS.client(client).value), IdSet(range(SAMPLES))
    for row, round_ in enumerate(ranked.rounds):
        for batch in range(1, SAMPLES + 1):
            drawn = draw_batches_without_replacement(priorities, client, samples, int(round_), range(STEPS), batch)
            assert (ranked.ranks[row] < batch).tolist() == [3 in held for held in drawn]


def test_a_stream_costs_what_production_recomputes() -> None:
    """Erased one after the other; each time the steps that ``forget`` rewinds are counted."""
    orders = simulate.draw_slot_orders(SEEDS, CLIENTS, ROUNDS, 3, 6)
    targets = [3, 0, 7, 11, 5]
    found = simulate.stream_first_rounds(orders, targets, (2, 3))
    for count in (2, 3):
        server = production(count, 2)
        for target, first in zip(targets, found[count], strict=True):
            decision = forget(server, [Request(target)])
            assert first == (0 if decision.rewind_to == ROUNDS else decision.rewind_to + 1)


def test_a_stream_that_does_not_refill_slots_differs() -> None:
    """The wrong variant keeps the slots of erased clients empty: sooner or later a target is in one of them."""
    targets, differs = list(range(5)), []
    for seed in map(SeedSource, range(5)):
        orders = simulate.draw_slot_orders(seed, CLIENTS, ROUNDS, 3, 6)
        right = simulate.stream_first_rounds(orders, targets, (3,))[3]
        wrong = simulate.first_rounds(orders[..., 0], CLIENTS, (3,))[3][targets].tolist()
        differs.append(right != wrong)
    assert any(differs)


def test_slot_orders_begin_with_the_drawn_client(slots: Any) -> None:
    orders = simulate.draw_slot_orders(SEEDS, CLIENTS, ROUNDS, 4, 3)
    assert np.array_equal(orders[..., 0], slots)
