"""Rounds that a federation draws while it waits: the draws of later, unless samples, clients or seeds change first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fedforget.algorithm import draws
from fedforget.algorithm.client import Client
from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request, forget
from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import LocalRound, Trained
from fedforget.algorithm.seeds import SeedSource
from fedforget.federation import draw_ahead
from fedforget.federation.draw_ahead import SlotsAhead, drawing_ahead
from fedforget.federation.local import InlineTrainer, LocalFederation
from tests.helpers import HistoryIsTheModel, World, prf_server, view

WORLD: World = {0: (0, 1, 2, 3), "ward-7": ("a", "b", 5), 7: (0,), "03": ("x", "y", "z", 1, 2)}
PLAN = Plan(clients_per_round=3, batch_size=2, local_steps=2, rounds=6)


class Idles:
    """A trainer that first does everything that it could do while it waits."""

    def __init__(self) -> None:
        self._inline = InlineTrainer(HistoryIsTheModel())

    def train(self, works: Sequence[LocalRound], idle: Iterator[None]) -> list[Trained]:
        for _ in idle:
            pass
        return self._inline.train(works, idle)

    def samples_change(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def server() -> Server:
    """A server that draws every round ahead, with the seeds of ``prf_server``."""
    seeds, model = SeedSource("ahead"), HistoryIsTheModel()
    samples = {client: IdSet(ids) for client, ids in WORLD.items()}
    clients = ClientsInMemory(samples, {client: seeds.client(client).value for client in samples})
    memory = ServerInMemory(PLAN, IdSet(samples), HistoryIsTheModel.initial())
    federation = LocalFederation(PLAN, clients, model, trainer=Idles())
    return drawing_ahead(Server(PLAN, PrfPriorities(seeds.server().value), memory, federation, model))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How often each round of slots (by number) and each local round (by client and number) is drawn."""
    found: Counter[Any] = Counter()
    real_slots, real_batches = draws.draw_clients_with_replacement, Client.draws

    def slots(priorities: Any, roster: IdSet, round_: int, count: int) -> Any:
        found[round_] += 1
        return real_slots(priorities, roster, round_, count)

    def batches(self: Client, round_: int) -> Any:
        found[self.id, round_] += 1
        return real_batches(self, round_)

    monkeypatch.setattr(draw_ahead, "draw_clients_with_replacement", slots)
    monkeypatch.setattr(Client, "draws", batches)
    return found


def test_learning_with_rounds_drawn_ahead_gives_the_same_state_and_draws_nothing_twice(
    server: Server, drawn: Counter[Any]
) -> None:
    learn(server, 6)
    assert set(drawn.values()) == {1}
    rounds = {key for key in drawn if isinstance(key, int)}
    assert rounds == set(range(1, min(7, PLAN.rounds) + 1)), "no round after the plan's last is drawn"
    plain = prf_server(WORLD, PLAN, "ahead")
    learn(plain, 6)
    assert view(server) == view(plain), "no use of a round that is only drawn ahead is noted"


@pytest.mark.parametrize("request_", [Request("03", "y"), Request("ward-7"), Request(7, 0)], ids=str)
def test_forgetting_discards_slots_drawn_ahead(server: Server, request_: Request) -> None:
    plain = prf_server(WORLD, PLAN, "ahead")
    for each in (server, plain):
        learn(each, 3)
        forget(each, [request_])
        learn(each, 6)
    assert view(server) == view(plain)


def test_new_seeds_after_a_round_was_drawn_ahead_give_the_draws_of_the_new_seeds(server: Server) -> None:
    plain = prf_server(WORLD, PLAN, "ahead")
    for each in (server, plain):
        learn(each, 2)
        each.reseed(SeedSource("other"))
        learn(each, 6)
    assert view(server) == view(plain)


def test_slots_drawn_ahead_are_drawn_again_for_another_seed_roster_round_or_number() -> None:
    one, roster = PrfPriorities(bytes(32)), IdSet(range(40))
    for asked in [
        (PrfPriorities(b"1" * 32), roster, 2, 5),
        (one, roster.without([3, 4]), 2, 5),
        (one, roster, 3, 5),
        (one, roster, 2, 6),
        (one, roster, 2, 5),
    ]:
        slots = SlotsAhead()
        slots(one, roster, 1, 5)
        slots.after(1)
        assert slots(*asked) == draws.draw_clients_with_replacement(*asked)


def test_no_slots_are_drawn_ahead_of_an_undrawn_round() -> None:
    slots = SlotsAhead()
    assert slots.after(1) == []
    slots(PrfPriorities(bytes(32)), IdSet(range(4)), 5, 2)
    assert slots.after(1) == []


def test_a_federation_that_cannot_draw_ahead_keeps_its_server_as_it_is(server: Server) -> None:
    other = replace(server, federation=object())  # type: ignore[arg-type]
    assert drawing_ahead(other) is other
