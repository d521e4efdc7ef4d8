"""Equality in law, by enumeration, in worlds that ``fedforget prove`` does not have."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import comb, factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedforget.algorithm import forget as forgetting
from fedforget.algorithm.contents import one_by_one
from fedforget.algorithm.forget import Decision, Request, forget
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.plan import Keep, Plan
from fedforget.algorithm.ports import State
from fedforget.algorithm.seeds import SeedSource
from fedforget.disk.database import Database
from fedforget.errors import InvalidId, InvalidInput, UnknownTarget
from fedforget.evidence.laws import (
    Law,
    Oracle,
    World,
    enumerate_orders,
    remaining_world,
    textbook_law,
    total_variation,
)
from fedforget.evidence.worlds import STANDARD
from fedforget.federation.local import LocalFederation
from fedforget.store import server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.client_store import ClientStore
from fedforget.store.model_files import ModelFiles
from fedforget.store.server_store import ServerStore
from fedforget.store.uses import Uses
from tests.evidence.laws import law_after_forgetting, law_of_learning
from tests.helpers import HistoryIsTheModel, scratch

WORDS: World = {"a": ("x", "y"), "b": ("x",)}
MIXED: World = {"ward-7": (0, "03"), 7: ("a", "b"), 2**63 - 1: (5,)}
THREE: World = {0: (0, 1, "z")}


def sample(client: Any, identifier: Any, *arrival: int) -> tuple[Any, ...]:
    return ("sample", client, identifier, *arrival)


def client(identifier: Any, *arrival: int) -> tuple[Any, ...]:
    return ("client", identifier, *arrival)


def distance(world: World, requests: Sequence[Any], *, keep: Keep = "every", **numbers: Any) -> Fraction:
    law = law_after_forgetting(world, requests, **numbers, keep=keep)
    assert sum(law.values()) == 1
    return total_variation(law, textbook_law(remaining_world(world, requests), **numbers))


# --------------------------------------------------------------------------------------------------- the textbook's law


@pytest.mark.parametrize("world", [WORDS, MIXED, THREE], ids=["words", "mixed", "three"])
@pytest.mark.parametrize("numbers", [(1, 1, 1, 1), (2, 1, 1, 2), (2, 2, 2, 1), (3, 1, 1, 1)], ids=str)
def test_the_textbook_is_uniform_and_independent(world: World, numbers: tuple[int, int, int, int]) -> None:
    """Its marginals in closed form: slots are uniform and independent, batches uniform subsets."""
    K, b, E, R = numbers
    law = textbook_law(world, K=K, b=b, E=E, R=R)
    assert sum(law.values()) == 1
    slots: dict[Any, Fraction] = defaultdict(Fraction)
    batches: dict[Any, Fraction] = defaultdict(Fraction)
    for history, chance in law.items():
        slots[tuple(round_[0] for round_ in history)] += chance
        for who, drawn in history[-1][1]:
            batches[who, drawn] += chance
    assert set(slots.values()) == {Fraction(1, len(world) ** (K * R))}
    takes_part = 1 - Fraction(len(world) - 1, len(world)) ** K
    for who, ids in world.items():
        subsets = comb(len(ids), min(b, len(ids))) ** E
        drawn = [chance for (name, _), chance in batches.items() if name == who]
        assert drawn == [takes_part / subsets] * subsets


# ------------------------------------------------------------------------------------------------------ production code


@pytest.mark.parametrize("world", [WORDS, MIXED, THREE], ids=["words", "mixed", "three"])
@pytest.mark.parametrize("numbers", [(1, 1, 2, 1), (2, 2, 1, 1), (1, 2, 1, 2)], ids=str)
def test_learning_has_the_textbooks_law(world: World, numbers: tuple[int, int, int, int]) -> None:
    K, b, E, R = numbers
    law = law_of_learning(world, K=K, b=b, E=E, R=R)
    assert sum(law.values()) == 1
    assert total_variation(law, textbook_law(world, K=K, b=b, E=E, R=R)) == 0


CASES = [
    (WORDS, (sample("a", "x"),), (2, 1, 1, 2)),
    (WORDS, (sample("b", "x"), sample("a", "y")), (1, 1, 2, 2)),
    (WORDS, (client("b", 1), sample("a", "x", 2)), (2, 1, 1, 2)),
    (MIXED, (sample("ward-7", "03"), client(2**63 - 1)), (1, 1, 1, 2)),
    (MIXED, ([sample(7, "a"), client("ward-7")],), (2, 1, 1, 1)),
    (MIXED, ([sample("ward-7", 0, 1), sample("ward-7", "03", 1)], sample(7, "b")), (1, 1, 1, 2)),
    (THREE, (sample(0, "z"), sample(0, 1)), (1, 2, 2, 1)),
    (THREE, (sample(0, "z", 1), client(0)), (1, 1, 1, 2)),
    ({"a": ("x",), "b": ("x",), "c": ("x", "y")}, (client("a", 0), client("b", 1)), (2, 1, 1, 2)),
]


@pytest.mark.parametrize("keep", ["every", 2, "ends"])
@pytest.mark.parametrize(("world", "requests", "numbers"), CASES)
def test_forgetting_has_the_textbooks_law(world: World, requests: Any, numbers: Any, keep: Keep) -> None:
    K, b, E, R = numbers
    assert distance(world, requests, keep=keep, K=K, b=b, E=E, R=R) == 0


def test_none_of_these_is_a_standard_world() -> None:
    standard = [dict(case.world) for case in STANDARD]
    assert all(dict(world) not in standard for world, _, _ in CASES)


def test_repeated_request_changes_nothing() -> None:
    twice = [sample("a", "x"), sample("a", "x"), client("b"), sample("b", "x")]
    assert distance(WORDS, twice, K=2, b=1, E=1, R=1) == 0


def test_decimal_string_ids_give_the_same_law() -> None:
    """3 and "3" are one id, of a client here and of a sample there."""
    spelled: World = {"3": (3, "4"), 4: ("3",)}
    assert distance(spelled, [sample(3, "3")], K=1, b=1, E=1, R=2) == 0


@st.composite
def tiny(draw: st.DrawFn) -> tuple[World, list[Any], dict[str, int], Keep]:
    names: list[Id] = [0, 1, "a", "03"]
    world = {who: tuple(names[: draw(st.integers(1, 3))]) for who in names[: draw(st.integers(1, 3))]}
    numbers = {"K": draw(st.integers(1, 2)), "b": draw(st.integers(1, 2)), "E": draw(st.integers(1, 2))}
    numbers["R"] = draw(st.integers(1, 2))
    most = max(factorial(len(ids)) for ids in world.values())
    slots, rounds = numbers["K"], numbers["R"]
    addresses = min(slots, len(world)) * numbers["E"] * rounds
    assume(factorial(len(world)) ** (slots * rounds) * most**addresses <= 5000)
    asked = [sample(who, each) for who, ids in world.items() for each in ids] + [client(who) for who in world]
    chosen = draw(st.lists(st.sampled_from(asked), min_size=1, max_size=3))
    moments = sorted(draw(st.integers(0, rounds)) for _ in chosen)
    requests = [(*request, moment) for request, moment in zip(chosen, moments, strict=True)]
    return world, requests, numbers, draw(st.sampled_from(["every", "ends"]))


@settings(max_examples=120)
@given(tiny())
def test_forgetting_has_the_textbooks_law_in_any_tiny_world(case: Any) -> None:
    world, requests, numbers, keep = case
    assert distance(world, requests, keep=keep, **numbers) == 0


@pytest.mark.slow
@settings(max_examples=1000)
@given(tiny())
def test_forgetting_has_the_textbooks_law_in_many_tiny_worlds(case: Any) -> None:
    world, requests, numbers, keep = case
    assert distance(world, requests, keep=keep, **numbers) == 0


NO_REQUESTS: list[Any] = [
    ("sample", 0), ("client", 0, 1, 2), ("row", 0), (), None, 7, "sample", [None], [()], ["row", 0], ([],), ({},),
]  # fmt: skip


@pytest.mark.parametrize("entry", NO_REQUESTS, ids=str)
def test_malformed_request_is_refused(entry: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a request"):
        law_after_forgetting(WORDS, [entry], K=1, b=1, E=1, R=1)
    with pytest.raises(InvalidInput, match="is not a request"):
        remaining_world(WORDS, [entry])


@pytest.mark.parametrize("arrival", [-1, 3, 0.5, 1.0, "1", None, True, False], ids=repr)
def test_impossible_arrival_round_is_refused(arrival: Any) -> None:
    """Alone and beside others: the last of a batch would hide the first."""
    for entry in (client("b", arrival), [client("b", arrival), sample("a", "x", 2)]):
        with pytest.raises(InvalidInput, match="cannot arrive after"):
            law_after_forgetting(WORDS, [entry], K=1, b=1, E=1, R=2)


@pytest.mark.parametrize(
    "request_", [client("c"), client(0), sample("b", "y"), sample("c", "x"), [client("c")]], ids=str
)
def test_unknown_target_in_a_world_is_refused(request_: Any) -> None:
    with pytest.raises(UnknownTarget, match="the world has no"):
        law_after_forgetting(WORDS, [client("b"), request_], K=1, b=1, E=1, R=1)


@pytest.mark.parametrize("world", [{0: (0,), "0": (1,)}, {0: (1, "1")}, {0: (), "0": (1,)}], ids=str)
def test_world_with_a_duplicate_id_is_refused(world: World) -> None:
    """Two spellings of one id would be two in the textbook and one in production."""
    numbers: dict[str, Any] = {"K": 1, "b": 1, "E": 1, "R": 1}
    with pytest.raises(InvalidId, match="duplicate"):
        law_of_learning(world, **numbers)
    with pytest.raises(InvalidId, match="duplicate"):
        law_after_forgetting(world, [sample(0, 1)], **numbers)
    with pytest.raises(InvalidId, match="duplicate"):
        textbook_law(world, **numbers)
    with pytest.raises(InvalidId, match="duplicate"):
        remaining_world(world, [])


def test_requests_as_json_lists_are_accepted() -> None:
    world: World = {0: (0, 1), 1: (0,)}
    as_lists = [["sample", 0, 1, 1], ["client", 1]]
    as_tuples = [sample(0, 1, 1), client(1)]
    numbers: dict[str, Any] = {"K": 1, "b": 1, "E": 1, "R": 2}
    assert remaining_world(world, as_lists) == remaining_world(world, as_tuples) == {0: (0,)}
    assert law_after_forgetting(world, as_lists, **numbers) == law_after_forgetting(world, as_tuples, **numbers)
    assert distance(world, [as_lists], **numbers) == 0


def test_request_for_already_erased_target_is_accepted() -> None:
    gone = [client("b", 0), sample("b", "x", 1), client("b", 2)]
    assert distance(WORDS, gone, K=1, b=1, E=1, R=2) == 0


def test_total_variation_of_known_laws() -> None:
    one: Law = {("a",): Fraction(1, 2), ("b",): Fraction(1, 2)}
    other: Law = {("a",): Fraction(1, 3), ("c",): Fraction(2, 3)}
    assert total_variation(one, one) == 0
    assert total_variation(one, other) == Fraction(2, 3)
    assert total_variation(one, {("d",): Fraction(1)}) == 1


# ------------------------------------------------------------------------------------------------------- wrong variants


def test_rewinding_too_little_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = forgetting.decide

    def late(server: Server, requests: Sequence[Request]) -> Decision:
        decision = real(server, requests)
        return replace(decision, rewind_to=min(decision.rewind_to + 1, decision.goal))

    monkeypatch.setattr(forgetting, "decide", late)
    assert distance(WORDS, [sample("a", "x")], K=1, b=1, E=1, R=2) > 0


def test_an_emptied_client_that_stays_drawn_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot would train on nothing."""
    real = forgetting.decide
    monkeypatch.setattr(forgetting, "decide", lambda server, requests: replace(real(server, requests), leaving=()))
    assert distance(WORDS, [sample("b", "x")], K=1, b=1, E=1, R=1) > 0


def test_draws_from_an_ordinary_stream_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank of a place instead of an id: right for learning, wrong as soon as another id takes the place."""

    def by_position(self: Oracle, address: Any, ids: IdSet) -> Any:
        return real(self, address, IdSet(range(len(ids))))

    real = Oracle.__call__
    three: World = {0: (0,), 1: (0,), 2: (0,)}
    monkeypatch.setattr(Oracle, "__call__", by_position)
    assert law_of_learning(three, K=1, b=1, E=1, R=1) == textbook_law(three, K=1, b=1, E=1, R=1)
    assert distance(three, [client(0)], K=1, b=1, E=1, R=1) > 0


# -------------------------------------------------------------------------------------------------------------- on disk


def on_disk(directory: Path, world: World, oracle: Oracle, plan: Plan) -> tuple[Server, list[Database | Books]]:
    """The production server and clients, their memories on disk, with the oracle's priorities."""
    (directory / "models").mkdir(parents=True)
    server_db = Database(directory / "server.db", server_store.SCHEMA, create=True)
    uses_db = Database(directory / "uses.db", uses.SCHEMA, create=True)
    seeds, models = SeedSource("law"), ModelFiles(directory / "models")
    ServerStore.create(
        server_db,
        models,
        seed=seeds.server(),
        seed_origin="given",
        tree_key=seeds.tree_key(),
        plan_digest="0" * 64,
        commitments={who: seeds.client(who).commitment for who in world},
        initial=HistoryIsTheModel.initial(),
    )
    books = Books(directory, seeds.tree_key())
    contents = one_by_one(lambda who: (IdSet(world[who]), bytes(16 * len(world[who]))))
    books.create({who: seeds.client(who) for who in world}, contents)
    clients = ClientStore(books, Uses(uses_db))
    model = HistoryIsTheModel()
    federation = LocalFederation(plan, clients, model, priorities=lambda _: oracle)
    return Server(plan, oracle, ServerStore(server_db, models, plan), federation, model), [server_db, uses_db, books]


def law_on_disk(world: World, requests: Sequence[Request], plan: Plan) -> Law:
    def run(oracle: Oracle) -> Any:
        with scratch() as directory:
            server, opened = on_disk(directory / "run", world, oracle, plan)
            learn(server, plan.rounds)
            if requests:
                forget(server, requests)
            rounds = HistoryIsTheModel.decode(server.memory.load(server.memory.rounds_done).model)
            for part in opened:
                part.close()
        return tuple((slots, tuple((who, batches) for who, batches, _ in trained)) for slots, trained in rounds)

    return enumerate_orders(run)


@pytest.mark.parametrize("keep", ["every", "ends"])
@pytest.mark.parametrize(
    ("requests", "left"),
    [
        ((), {"a": (0, 1), 7: (0,)}),
        ((Request("a", 0),), {"a": (1,), 7: (0,)}),
        ((Request(7, 0),), {"a": (0, 1)}),
        ((Request("a"),), {7: (0,)}),
        ((Request("a", 1), Request(7)), {"a": (0,)}),
    ],
    ids=str,
)
def test_histories_stored_on_disk_have_the_textbooks_law(
    requests: tuple[Request, ...], left: World, keep: Keep
) -> None:
    world: World = {"a": (0, 1), 7: (0,)}
    law = law_on_disk(world, requests, Plan(1, 1, 1, 2, keep=keep))
    assert sum(law.values()) == 1
    assert total_variation(law, textbook_law(left, K=1, b=1, E=1, R=2)) == 0


def test_histories_survive_being_stored() -> None:
    """So that a law on disk is that of what was drawn."""
    history = [[["a", 7], [["a", [[0, 1], ["٣"]], ["00"]]]]]
    stored = State({"history": np.frombuffer(json.dumps(history).encode(), np.uint8)})
    assert HistoryIsTheModel.decode(stored.model) == ((("a", 7), (("a", ((0, 1), ("٣",)), ("00",)),)),)
