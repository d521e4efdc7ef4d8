"""Memory and disk are one contract: the same operations give the same observable state.

Both are compared with each other and with dictionaries, in any order of commits, rewinds, removals and reopenings.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedforget.algorithm.contents import one_by_one
from fedforget.algorithm.first_use import FirstUse
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import Keep, Plan
from fedforget.algorithm.ports import WITNESS_BYTES, RemoveOrder, State
from fedforget.algorithm.seeds import Seed, SeedSource
from fedforget.disk.database import Database
from fedforget.store import server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.client_store import ClientStore
from fedforget.store.model_files import ModelFiles
from fedforget.store.server_store import ServerStore
from fedforget.store.uses import Uses
from tests.helpers import World, clients_view, comparable, scratch, server_view, worlds

SEEDS = SeedSource("memory")


def state(content: int) -> State:
    """One of a few states, so that rounds happen to have equal ones."""
    model = {"w": np.full((2, 2), content, np.float32), "seen": np.array([content], np.int64)}
    return State(model, {"m/w": np.full((2, 2), content / 3)} if content % 2 else None)


class Disk:
    """Both stores in a directory, as a run has them."""

    def __init__(self, directory: Path, plan: Plan, world: World) -> None:
        self.directory, self.plan = directory, plan
        self.models = ModelFiles(directory / "models")
        (directory / "models").mkdir()
        databases = self._open(create=True)
        ServerStore.create(
            databases[0],
            self.models,
            seed=SEEDS.server(),
            seed_origin="given",
            tree_key=bytes(32),
            plan_digest="0" * 64,
            commitments={client: SEEDS.client(client).commitment for client in world},
            initial=state(0),
        )
        seeds = {client: SEEDS.client(client) for client in world}
        Books(directory, bytes(32)).create(seeds, one_by_one(lambda c: (IdSet(world[c]), bytes(16 * len(world[c])))))
        self._use(databases)

    def _open(self, *, create: bool = False) -> tuple[Database, Database]:
        paths = ("server.db", server_store.SCHEMA), ("uses.db", uses.SCHEMA)
        made = [Database(self.directory / n, schema, create=create, writable=True) for n, schema in paths]
        return made[0], made[1]

    def _use(self, databases: tuple[Database, Database]) -> None:
        self.databases = databases
        self.server = ServerStore(databases[0], self.models, self.plan)
        self.clients = ClientStore(Books(self.directory, bytes(32)), Uses(databases[1]))

    def reopen(self, *, canonical: bool) -> None:
        for database in self.databases:
            database.close_canonical() if canonical else database.close()
        self._use(self._open())

    def close(self) -> None:
        for database in self.databases:
            database.close()


class Memories(RuleBasedStateMachine):
    """The same operations on memory, on disk and on dictionaries."""

    keep: Keep = "every"

    def __init__(self) -> None:
        super().__init__()
        self.cleanup = contextlib.ExitStack()

    @initialize(world=worlds(clients=4, samples=4))
    def begin(self, world: World) -> None:
        self.plan = Plan(1, 1, 2, 99, keep=self.keep)
        directory = self.cleanup.enter_context(scratch())
        samples = {client: IdSet(ids) for client, ids in world.items()}
        self.server = ServerInMemory(self.plan, IdSet(world), state(0))
        seeds = {client: SEEDS.client(client) for client in world}
        self.clients = ClientsInMemory(
            samples, {c: seed.value for c, seed in seeds.items()}, {c: seed.commitment for c, seed in seeds.items()}
        )
        self.disk = Disk(directory, self.plan, world)
        self.cleanup.callback(self.disk.close)
        self.states = [state(0)]  # of round 0, 1, …
        self.first_rounds: dict[Id, int | None] = dict.fromkeys(world)
        self.first_steps: dict[Id, dict[Id, int | None]] = {c: dict.fromkeys(ids) for c, ids in world.items()}
        self.witnesses: dict[Id, dict[int, bytes]] = {client: {} for client in world}

    def teardown(self) -> None:
        self.cleanup.close()

    def choose(self, data: st.DataObject, ids: Any, **sizes: Any) -> list[Any]:
        return data.draw(st.lists(st.sampled_from(list(ids)), unique=True, **sizes)) if ids else []

    @precondition(lambda self: self.first_rounds)
    @rule(content=st.integers(0, 3), data=st.data())
    def commit(self, content: int, data: st.DataObject) -> None:
        drawn, round_ = self.choose(data, self.first_rounds, min_size=1), len(self.states)
        for memory in (self.server, self.disk.server):
            memory.commit(round_, state(content), drawn)
        self.states.append(state(content))
        self.first_rounds |= {client: round_ for client in drawn if self.first_rounds[client] is None}

    @rule(data=st.data(), times=st.integers(1, 2))
    def rewind(self, data: st.DataObject, times: int) -> None:
        target = data.draw(st.integers(0, len(self.states)))
        back_to = self.server.kept_at_or_before(target)
        assert self.disk.server.kept_at_or_before(target) == back_to <= target
        leaving = self.choose(data, self.first_rounds, max_size=2)
        for memory in (self.server, self.disk.server):
            for _ in range(times):
                memory.rewind(back_to, leaving)
        self.states = self.states[: back_to + 1]
        self.first_rounds = {
            client: round_ if round_ and round_ <= back_to else None
            for client, round_ in self.first_rounds.items()
            if client not in leaving
        }

    @precondition(lambda self: self.first_steps)
    @rule(data=st.data(), step=st.integers(1, 20))
    def note(self, data: st.DataObject, step: int) -> None:
        unused = [(c, s) for c, steps in self.first_steps.items() for s, first in steps.items() if first is None]
        uses = [(client, sample, step) for client, sample in self.choose(data, unused)]
        round_ = self.plan.round_of(step)
        trained = self.choose(data, self.witnesses)
        size = WITNESS_BYTES
        witnesses = [(client, round_, f"{client} {step}".encode().ljust(size)[-size:]) for client in trained]
        for memory in (self.clients, self.disk.clients):
            memory.note(uses, witnesses)
        for client, sample, _ in uses:
            self.first_steps[client][sample] = step
        for client, _, witness in witnesses:
            self.witnesses[client][round_] = witness

    @precondition(lambda self: self.first_steps)
    @rule(data=st.data(), whole=st.booleans())
    def remove(self, data: st.DataObject, whole: bool) -> None:
        (client,) = self.choose(data, self.first_steps, min_size=1, max_size=1)
        samples = None if whole else tuple(self.choose(data, [*self.first_steps[client], "not there"]))
        if samples is not None and set(self.first_steps[client]) <= set(samples):
            samples = None  # a client that loses its last sample leaves
        for memory in (self.clients, self.disk.clients):
            memory.remove([RemoveOrder(client, samples), RemoveOrder("nobody", None)])
        if samples is None:
            del self.first_steps[client]
            del self.witnesses[client]
        else:
            for sample in samples:
                self.first_steps[client].pop(sample, None)

    @rule(last_step=st.integers(0, 20))
    def rewind_clients(self, last_step: int) -> None:
        for memory in (self.clients, self.disk.clients):
            memory.rewind(self.plan.round_of(last_step), last_step)
        for client, noted in self.witnesses.items():
            left = {round_: witness for round_, witness in noted.items() if round_ <= self.plan.round_of(last_step)}
            self.witnesses[client] = left
        for steps in self.first_steps.values():
            steps.update({sample: None for sample, first in steps.items() if first and first > last_step})

    @rule(canonical=st.booleans())
    def reopen(self, canonical: bool) -> None:
        self.disk.reopen(canonical=canonical)

    @invariant()
    def everything_observable_is_equal(self) -> None:
        done, every = len(self.states) - 1, {"every": 1, "ends": 10**9}.get(str(self.keep), self.keep)
        kept = [round_ for round_ in range(done + 1) if round_ == done or round_ % int(every) == 0]
        expected = {
            "rounds done": done,
            "roster": IdSet(self.first_rounds).ids,
            "first rounds": self.first_rounds,
            "kept": {round_: comparable(self.states[round_]) for round_ in kept},
        }
        assert server_view(self.server) == expected
        assert server_view(self.disk.server) == expected
        assert self.server.first_rounds() == self.disk.server.first_rounds()
        files = {path.name for path in (self.disk.directory / "models").iterdir()}
        assert files == {f"{name}.safetensors" for name in self.disk.server.kept().values()}

    @invariant()
    def clients_are_equal(self) -> None:
        for memory in (self.clients, self.disk.clients):
            seen = clients_view(memory, self.first_steps)
            assert memory.commitments() == {client: SEEDS.client(client).commitment for client in self.first_steps}
            for client, steps in self.first_steps.items():
                samples, _, first, witnesses, seed = seen[str(client)]
                assert samples == IdSet(steps).ids
                assert first == {sample: step for sample, step in steps.items() if step is not None}
                assert witnesses == self.witnesses[client]
                assert seed == SEEDS.client(client).value
        assert self.disk.clients.clients() == IdSet(self.first_steps)
        noted = self.disk.clients.database.rows("SELECT DISTINCT client FROM witnesses")
        assert {client for (client,) in noted} == {client for client, found in self.witnesses.items() if found}


def run(keep: Keep, examples: int, steps: int) -> None:
    machine = type(f"Keeps{keep}", (Memories,), {"keep": keep})
    chosen = settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize("keep", ["every", 2, 3, "ends"])
def test_memory_and_disk_agree(keep: Keep) -> None:
    run(keep, examples=6, steps=15)


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["every", 2, 3, "ends"])
def test_memory_and_disk_agree_at_length(keep: Keep) -> None:
    run(keep, examples=80, steps=40)


class Script:
    """In the place of Hypothesis's data: draws what it is told."""

    def __init__(self, *values: Any) -> None:
        self._values = list(values)

    def draw(self, _: Any) -> Any:
        return self._values.pop(0)


def scripted(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds and a rewind, of which one part is done wrongly."""
    machine = type("Scripted", (Memories,), {"keep": "ends"})()
    real = ServerInMemory.rewind

    def rewind(self: ServerInMemory, rounds_done: int, leaving: Any) -> None:
        known = self.first_rounds()
        real(self, rounds_done, leaving)
        self._first_use = FirstUse(self.roster, {c: r for c, r in known.items() if c in self.roster})

    if wrong == "keeps every round":
        monkeypatch.setattr(Plan, "is_kept", lambda *_: True)
    elif wrong == "keeps first rounds":
        monkeypatch.setattr(ServerInMemory, "rewind", rewind)
    elif wrong == "keeps a first step":
        monkeypatch.setattr(ClientStore, "rewind", lambda *_: None)
    elif wrong == "keeps a witness":
        whole = ClientStore.rewind
        monkeypatch.setattr(ClientStore, "rewind", lambda self, _, last_step: whole(self, 99, last_step))
    try:
        machine.begin({"a": (0, 1), 7: (0,)})
        for content, drawn in ((1, ["a"]), (1, [7]), (2, ["a", 7])):
            machine.commit(content, Script(drawn))
        machine.note(Script([("a", 0)], ["a"]), 3)
        machine.everything_observable_is_equal()
        machine.rewind(Script(1, []), 1)
        machine.rewind_clients(2)
        machine.reopen(canonical=True)
        machine.everything_observable_is_equal()
        machine.clients_are_equal()
    finally:
        machine.teardown()


@pytest.mark.parametrize("wrong", ["keeps every round", "keeps first rounds", "keeps a first step", "keeps a witness"])
def test_wrong_memory_fails_the_contract(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        scripted(wrong, monkeypatch)


def test_equal_memory_passes_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted("nothing", monkeypatch)


def test_a_client_has_its_own_seed_on_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path, Plan(1, 1, 1, 1), {1: (0,), "a": (0, 1)})
    for client in (1, "a"):
        assert disk.clients.books.seed(client) == SEEDS.client(client)
    assert isinstance(disk.server.seed, Seed)
    assert disk.server.seed == SEEDS.server()
    assert disk.clients.sizes() == {1: 1, "a": 2}
    disk.close()
