"""Joining is learning with the data from the beginning, path by path; and new seeds are learning with them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.join import decide_joining, join
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Newcomer
from fedforget.algorithm.seeds import SeedSource
from fedforget.federation.local import LocalFederation
from tests.helpers import (
    World,
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

PLAN = Plan(2, 2, 2, 4)
WORLD: World = {0: (0, 1, 2), 1: (0, 1), "a": (0,)}


def learned(world: World, plan: Plan, seed: object, rounds: int) -> Server:
    server = prf_server(world, plan, seed)
    learn(server, rounds)
    return server


def clients_of(server: Server) -> ClientsInMemory:
    assert isinstance(server.federation, LocalFederation)
    assert isinstance(server.federation.memory, ClientsInMemory)
    return server.federation.memory


def missing(world: World, larger: World, seed: object) -> list[Newcomer]:
    """What the larger world has and the other has not."""
    found = []
    for client, samples in larger.items():
        new = tuple((sample, b"") for sample in samples if sample not in world.get(client, ()))
        if new:
            found.append(Newcomer(client, None if client in world else SeedSource(str(seed)).client(client), new))
    return found


@settings(max_examples=60)
@given(worlds(), plans(), st.integers(0, 10**6), st.data())
def test_joining_is_learning_with_the_data_from_the_beginning(
    world: World, plan: Plan, seed: int, data: st.DataObject
) -> None:
    present = without(world, data.draw(targets(world)))
    assume(present)
    done = data.draw(st.integers(0, plan.rounds))
    server, newcomers = learned(present, plan, seed, done), missing(present, world, seed)
    rounds, steps = first_uses_in(reference_history(world, plan, seed, done), plan)
    changes = [plan.step_of(rounds[new.client], 0) for new in newcomers if new.seed and new.client in rounds]
    joined: list[tuple[Id, Id]] = [(new.client, sample) for new in newcomers for sample, _ in new.samples]
    changes += [steps[pair] for pair in joined if pair in steps]
    decision = decide_joining(server, newcomers)
    assert decision.goal == done
    assert decision.rewind_to == (plan.round_of(min(changes)) - 1 if changes else done)
    join(server, newcomers)
    assert view(server) == view(learned(world, plan, seed, done))
    learn(server, plan.rounds)
    assert history(server) == reference_history(world, plan, seed, plan.rounds)


def test_adding_present_data_has_no_effect() -> None:
    server = learned(WORLD, PLAN, 1, 4)
    before, commitments = view(server), dict(clients_of(server).commitments())
    again = Newcomer(0, SeedSource("another").client(0), ((0, b""), (2, b"")))
    server.memory.join({0: b"", "a": b""})
    server.federation.join([again])
    assert view(server) == before
    assert clients_of(server).commitments() == commitments


def test_client_that_joins_brings_its_seed_and_commitment() -> None:
    server = learned(WORLD, PLAN, 1, 4)
    seed = SeedSource("1").client(7)
    server.federation.join([Newcomer(7, seed, ((5, b""),))])
    memory = clients_of(server)
    assert (memory.seed(7), memory.commitments()[7]) == (seed.value, seed.commitment)
    assert memory.sizes() == {0: 3, 1: 2, "a": 1, 7: 1}


def test_known_client_keeps_its_first_round_when_another_joins() -> None:
    memory = learned(WORLD, PLAN, 1, 4).memory
    assert isinstance(memory, ServerInMemory)
    before = memory.first_rounds()
    assert before
    memory.join({7: b"", 0: b""})
    assert memory.first_rounds() == before
    assert set(memory.roster) == {0, 1, "a", 7}


@settings(max_examples=20)
@given(worlds(), plans(), st.integers(0, 10**6))
def test_reseeded_server_learns_as_one_that_began_with_the_new_seeds(world: World, plan: Plan, seed: int) -> None:
    server = learned(world, plan, seed, plan.rounds)
    server.federation.rewind(0)
    server.memory.rewind(0, ())
    new = SeedSource(f"new {seed}")
    server.reseed(new)
    learn(server, plan.rounds)
    assert view(server) == view(learned(world, plan, f"new {seed}", plan.rounds))
    assert clients_of(server).commitments() == {client: new.client(client).commitment for client in world}


def test_decision_names_its_first_changed_step() -> None:
    decision = decide_joining(learned(WORLD, PLAN, 1, 0), [])
    assert decision.first_changed_step is None
    requests = (Request(0), Request(1), Request("a"))
    assert replace(decision, requests=requests, first_changed_steps=(7, None, 3)).first_changed_step == 3
