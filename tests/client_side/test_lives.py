"""Clients with state directories: lives with requests of their own end in the states of one process, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from fedforget.algorithm.forget import Request, forget
from fedforget.algorithm.ids import Id
from fedforget.algorithm.join import join
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.notes import notes_digest_of_client
from fedforget.algorithm.ports import Newcomer
from fedforget.client_side import directory
from fedforget.federation.local import LocalFederation
from tests.client_side.deployment import PLAN, Deployment, answer, samples_of
from tests.helpers import Erasure, World, clients_view, erasures, prf_server, scratch, server_view, without

WORLD: World = {0: (0, 1, 2, 3), "ward-7": ("a", "b", 5), 7: (0, 9), "03": ("x", "y", "z", 1, 2)}
FUNCTION = ("client.toml", "client.book", "uses.db", "plan.toml")


@settings(max_examples=4)
@given(erasures())
def test_lives_end_in_the_states_of_one_process(erasure: Erasure) -> None:
    live(erasure)


@pytest.mark.slow
@settings(max_examples=60)
@given(erasures())
def test_lives_end_in_the_states_of_one_process_at_length(erasure: Erasure) -> None:
    live(erasure)


def live(erasure: Erasure) -> None:
    """Clients make the requests of an erasure themselves; after each batch every old message comes once more."""
    left: World = dict(erasure.world)
    with scratch() as place:
        lived, inline = (
            Deployment(place, left, erasure.plan, erasure.seed),
            prf_server(left, erasure.plan, erasure.seed),
        )
        for when, batch in erasure.arrivals:
            lived.learn(when)
            learn(inline, when)
            wanted = [each for each in batch if each.client in left]
            pending = [each for each in wanted if each.sample is None or each.sample in left[each.client]]
            for request in pending:
                state = lived.clients[request.client]
                state.leave() if request.sample is None else state.forget([request.sample])
            sent = list(lived.nodes.sent)
            lived.meet()
            forget(inline, pending)
            assert views(lived) == inline_view(inline)
            for client, old in sent[-6:]:
                answer(lived.clients[client], old)
            assert views(lived) == inline_view(inline)
            left = without(left, pending)
        lived.learn(erasure.plan.rounds)
        learn(inline, erasure.plan.rounds)
        assert views(lived) == inline_view(inline)


def views(deployment: Deployment) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for client in deployment.server.memory.roster:
        with directory.reading(deployment.clients[client].path) as state:
            found |= clients_view(state.memory, [client])
    return server_view(deployment.server.memory) | {"clients": found}


def inline_view(server: Server) -> dict[str, Any]:
    federation = server.federation
    assert isinstance(federation, LocalFederation)
    return server_view(server.memory) | {"clients": clients_view(federation.memory, server.memory.roster)}


def function_of(deployment: Deployment, client: Id) -> dict[str, bytes]:
    path = deployment.clients[client].path
    return {name: (path / name).read_bytes() for name in FUNCTION if (path / name).exists()}


def test_life_ends_in_the_states_of_one_process_and_of_one_that_never_had_the_data() -> None:
    with scratch() as place:
        lived = Deployment(place / "lived", WORLD)
        inline = prf_server(WORLD, PLAN, 4)
        lived.learn(4)
        learn(inline, 4)
        lived.clients[0].forget([1, 3])
        lived.clients["03"].sync(samples_of(["x", "z", 1, 2, "new"]), confirm=1)
        lived.clients[7].leave()
        lived.meet()
        forget(inline, [Request(0, 1), Request(0, 3), Request("03", "y"), Request(7)])
        join(inline, [Newcomer("03", None, (("new", bytes(16)),))])
        assert views(lived) == inline_view(inline)
        lived.learn(6)
        learn(inline, 6)
        assert views(lived) == inline_view(inline)

        left: World = {0: (0, 2), "ward-7": ("a", "b", 5), "03": ("x", "z", 1, 2, "new")}
        never = Deployment(place / "never", left)
        never.learn(6)
        assert {client: function_of(lived, client) for client in left} == {
            client: function_of(never, client) for client in left
        }


def test_reported_digests_and_roots_are_those_of_the_clients_files(tmp_path: Path) -> None:
    lived = Deployment(tmp_path, WORLD)
    lived.learn(6)
    lived.meet()
    for client, state in lived.clients.items():
        told = lived.nodes.standing[client]
        with directory.reading(state.path) as found:
            notes = notes_digest_of_client(found.memory.first_steps(client), found.memory.witnesses(client))
            assert (told.root, told.notes) == (found.book.root, notes)


@pytest.mark.parametrize("twice", [False, True])
def test_changed_content_is_erased_and_added(tmp_path: Path, *, twice: bool) -> None:
    lived = Deployment(tmp_path / "lived", WORLD)
    lived.learn(6)
    changed = {**samples_of(["x", "y", "z", 1, 2]), **samples_of(["y"], version=1)}
    for _ in range(1 + twice):
        lived.clients["03"].sync(changed, confirm=None if _ else 1)
    lived.meet()
    never = Deployment(tmp_path / "never", {**WORLD, "03": ("x", "z", 1, 2)})
    never.clients["03"].sync(changed)
    never.meet()
    never.learn(6)
    assert function_of(lived, "03") == function_of(never, "03")
    assert lived.clients["03"].sync(changed).found.new == ()
