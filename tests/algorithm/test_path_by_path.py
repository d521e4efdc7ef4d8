"""Forgetting is learning without the data, path by path: for every seed, order, batching and moment of arrival.

The draws are the production ones; the model of a round is the history that led to it (``tests.helpers``), so equal
models are equal histories, and the whole state is compared: kept models, first uses, roster, samples, rounds done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedforget.algorithm import forget as forgetting
from fedforget.algorithm.client import Client
from fedforget.algorithm.draws import Address, PrfPriorities
from fedforget.algorithm.forget import Decision, Request, decide, forget
from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import Plan
from fedforget.errors import UnknownTarget
from tests.helpers import (
    Erasure,
    World,
    arrivals,
    erasures,
    first_uses_in,
    history,
    plans,
    prf_server,
    reference_history,
    targets,
    view,
    without,
    worlds,
)


def learned(world: World, plan: Plan, seed: int, rounds: int) -> Server:
    server = prf_server(world, plan, seed)
    learn(server, rounds)
    return server


def still_there(world: World, batch: Sequence[Request]) -> list[Request]:
    return [each for each in batch if each.client in world and (each.sample in (None, *world[each.client]))]


def check(erasure: Erasure) -> None:
    """After every batch, and when training has gone on to the end, the state is that of never having had the data."""
    world, plan, seed = erasure.world, erasure.plan, erasure.seed
    server = prf_server(world, plan, seed)
    for when, batch in erasure.arrivals:
        learn(server, when)
        requests = still_there(world, batch)
        if requests:
            check_decision(world, plan, seed, decide(server, requests))
            forget(server, requests)
        world = without(world, requests)
        assert view(server) == view(learned(world, plan, seed, when))
    learn(server, plan.rounds)
    assert view(server) == view(learned(world, plan, seed, plan.rounds))
    assert history(server) == reference_history(world, plan, seed, plan.rounds)


def check_decision(world: World, plan: Plan, seed: int, decision: Decision) -> None:
    """The first change is the first use, and nothing before the round of the first change is computed again."""
    rounds, steps = first_uses_in(reference_history(world, plan, seed, decision.goal), plan)
    first = [
        (None if (r := rounds.get(each.client)) is None else (r - 1) * plan.local_steps + 1)
        if each.sample is None
        else steps.get((each.client, each.sample))
        for each in decision.requests
    ]
    assert list(decision.first_changed_steps) == first
    changed = [step for step in first if step is not None]
    assert decision.rewind_to == ((min(changed) - 1) // plan.local_steps if changed else decision.goal)
    assert set(decision.leaving) == world.keys() - without(world, decision.requests).keys()


@settings(max_examples=120)
@given(erasures())
def test_forgetting_is_learning_without_the_data(erasure: Erasure) -> None:
    check(erasure)


@pytest.mark.slow
@settings(max_examples=3000)
@given(erasures())
def test_forgetting_is_learning_without_the_data_at_length(erasure: Erasure) -> None:
    check(erasure)


@settings(max_examples=60)
@given(worlds(), plans(), st.integers(0, 10**6), st.data())
def test_order_batching_and_moment_of_requests_do_not_matter(
    world: World, plan: Plan, seed: int, data: st.DataObject
) -> None:
    requests = data.draw(targets(world))
    ends = []
    for _ in range(3):
        server, left = prf_server(world, plan, seed), world
        for when, batch in data.draw(arrivals(requests, plan.rounds)):
            learn(server, when)
            pending = still_there(left, batch)
            if pending:
                forget(server, pending)
            left = without(left, pending)
        learn(server, plan.rounds)
        ends.append(view(server))
    assert ends[0] == ends[1] == ends[2]


@settings(max_examples=60)
@given(worlds(), plans(), st.integers(0, 10**6))
def test_learning_is_the_definition(world: World, plan: Plan, seed: int) -> None:
    server = learned(world, plan, seed, plan.rounds)
    expected = reference_history(world, plan, seed, plan.rounds)
    assert history(server) == expected
    rounds, steps = first_uses_in(expected, plan)
    seen = view(server)
    assert seen["first rounds"] == {client: rounds.get(client) for client in IdSet(world)}
    noted = {(client, sample): step for client in world for sample, step in seen["clients"][str(client)][2].items()}
    assert noted == steps


@settings(max_examples=40)
@given(worlds(), plans(), st.integers(0, 10**6), st.lists(st.integers(0, 5), max_size=4))
def test_learning_in_parts_gives_the_same_state(world: World, plan: Plan, seed: int, stops: list[int]) -> None:
    server = prf_server(world, plan, seed)
    for stop in stops:
        learn(server, min(stop, plan.rounds))
    learn(server, plan.rounds)
    assert view(server) == view(learned(world, plan, seed, plan.rounds))


@settings(max_examples=30)
@given(worlds(), plans(), st.integers(0, 10**6))
def test_another_seed_is_another_history(world: World, plan: Plan, seed: int) -> None:
    """Else the equalities above would be empty. Streams alone tell two seeds apart, whatever was drawn."""
    assert history(learned(world, plan, seed, 1)) != history(learned(world, plan, seed + 1, 1))


@settings(max_examples=30)
@given(erasures())
def test_deciding_changes_nothing(erasure: Erasure) -> None:
    server = learned(erasure.world, erasure.plan, erasure.seed, erasure.plan.rounds)
    before = view(server)
    decide(server, erasure.requests)
    assert view(server) == before


@settings(max_examples=50)
@given(erasures(), st.integers(1, 3))
def test_applying_a_decision_again_changes_nothing(erasure: Erasure, times: int) -> None:
    """What a crash left half done is done again from the decision."""
    server = learned(erasure.world, erasure.plan, erasure.seed, erasure.plan.rounds)
    decision = decide(server, erasure.requests)
    for _ in range(times):
        forgetting.apply(server, decision)
    learn(server, decision.goal)
    left = without(erasure.world, erasure.requests)
    assert view(server) == view(learned(left, erasure.plan, erasure.seed, erasure.plan.rounds))


def test_duplicate_request_in_a_batch_counts_once() -> None:
    server = learned(WORLD, PLAN, 3, 5)
    forget(server, [Request("a", 0), Request(7), Request("a", 0), Request(7, 5), Request(7)])
    assert view(server) == view(learned(without(WORLD, [Request("a", 0), Request(7)]), PLAN, 3, 5))


@pytest.mark.parametrize("unknown", [Request("nobody"), Request("a", "nothing"), Request("nobody", 0)])
def test_one_unknown_target_refuses_the_whole_batch(unknown: Request) -> None:
    server = learned(WORLD, PLAN, 3, 5)
    before = view(server)
    with pytest.raises(UnknownTarget, match=r"nobody|nothing"):
        forget(server, [Request(7), unknown])
    assert view(server) == before


def test_erasing_every_client_leaves_the_initial_model() -> None:
    server = learned(WORLD, PLAN, 3, 5)
    forget(server, [Request(client) for client in WORLD])
    assert server.memory.rounds_done == 0
    assert history(server) == ()
    learn(server, 5)
    assert server.memory.rounds_done == 0


# ------------------------------------------------------------------------------------------------------- wrong variants

WORLD: World = {0: (0, 1, 2, 3), "a": (0, 1, 2), 7: (5,), "ward-7": (1, 2)}
PLAN = Plan(2, 2, 2, 5)


def cases() -> Iterator[tuple[World, Request, int]]:
    for seed in range(3):
        for client, samples in WORLD.items():
            for request in (Request(client), *(Request(client, sample) for sample in samples)):
                yield WORLD, request, seed


Patch = Callable[[pytest.MonkeyPatch], None]


def rewinds_one_round_too_little(patch: pytest.MonkeyPatch) -> None:
    real = Plan.round_of
    patch.setattr(Plan, "round_of", lambda self, step: real(self, step) + 1)


def keeps_a_client_that_is_empty(patch: pytest.MonkeyPatch) -> None:
    real = Client.what_would_change

    def answer(self: Client, query: Any) -> Any:
        reply = real(self, query)
        return type(reply)(reply.client, reply.first_steps, now_empty=False)

    patch.setattr(Client, "what_would_change", answer)


def clients_keep_later_first_uses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Client, "rewind", lambda *_: None)
    patch.setattr(ClientsInMemory, "rewind", lambda *_: None)


def the_server_keeps_who_left(patch: pytest.MonkeyPatch) -> None:
    real = ServerInMemory.rewind
    patch.setattr(ServerInMemory, "rewind", lambda self, rounds_done, *_: real(self, rounds_done, ()))


def clients_keep_what_was_erased(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Client, "remove", lambda *_: None)
    patch.setattr(ClientsInMemory, "remove", lambda *_: None)


def draws_by_position(patch: pytest.MonkeyPatch) -> None:
    """Priorities of positions instead of ids: an ordinary random stream over the ids present."""
    real = PrfPriorities.__call__
    patch.setattr(PrfPriorities, "__call__", lambda self, where, ids: real(self, where, IdSet(range(len(ids)))))


def draws_afresh(patch: pytest.MonkeyPatch) -> None:
    """Draws that change as soon as an id is missing."""
    real = PrfPriorities.__call__

    def draw(self: PrfPriorities, where: Address, ids: IdSet) -> NDArray[np.uint64]:
        return real(self, replace(where, round=where.round + 1000 * len(ids)), ids)

    patch.setattr(PrfPriorities, "__call__", draw)


def disagreements() -> int:
    """Count the cases in which forgetting differs from learning without the data, with the present code."""
    count = 0
    for world, request, seed in cases():
        try:
            server = learned(world, PLAN, seed, 3)
            forget(server, [request])
            learn(server, PLAN.rounds)
            equal = view(server) == view(learned(without(world, [request]), PLAN, seed, PLAN.rounds))
        except KeyError:  # an erased client was drawn
            equal = False
        count += not equal
    return count


@pytest.mark.parametrize(
    "wrong",
    [
        rewinds_one_round_too_little,
        keeps_a_client_that_is_empty,
        clients_keep_later_first_uses,
        the_server_keeps_who_left,
        clients_keep_what_was_erased,
        draws_by_position,
        draws_afresh,
    ],
)
def test_a_wrong_variant_is_caught(wrong: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disagreements() == 0
    wrong(monkeypatch)
    assert disagreements() > 0
