"""Server and clients of one training in this process's memory: the production loop, without a run directory."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import DrawSlots, Server, learn
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import KEEP_EVERY, Keep, Plan
from fedforget.algorithm.ports import Aggregator, State, TrainReply
from fedforget.algorithm.seeds import SeedSource
from fedforget.baselines.method import Cost, Method, OnRound, Problem
from fedforget.errors import StorageFailed
from fedforget.federation.draw_ahead import drawing_ahead

_IN_MEMORY = 2**28  # bytes of kept states; above this, states go to temporary files


class Simulation:
    """One training: the seeds, the clients present, the server's memory, and the production ``learn``.

    ``keep`` says which states are kept. ``draw_slots`` and ``aggregate`` replace the plan's.
    """

    def __init__(
        self,
        problem: Problem,
        seeds: SeedSource,
        without: Sequence[Request] = (),
        *,
        keep: Keep = KEEP_EVERY,
        draw_slots: DrawSlots | None = None,
        aggregate: Callable[[], Aggregator] | None = None,
    ) -> None:
        members = problem.data.members(without)
        plan = replace(problem.plan, keep=keep)
        require_room(_kept_bytes(plan, problem.model_bytes), f"a training of {plan.rounds} rounds")
        self._engine = problem.engine(plan)
        self._model_bytes = problem.model_bytes
        self._draw_slots, self._aggregate = draw_slots, aggregate
        self._priorities = PrfPriorities(seeds.server().value)
        self.clients = ClientsInMemory(members, {client: seeds.client(client).value for client in members})
        self.memory = ServerInMemory(self._engine.plan, IdSet(members), State(problem.initial))

    @contextlib.contextmanager
    def server(self) -> Iterator[Server]:
        """A server that reaches its clients, in torch's fixed modes."""
        with self._engine.computing(), self._engine.federation(self.clients, self.clients.sizes) as federation:
            server = Server(self._engine.plan, self._priorities, self.memory, federation, self._aggregator())
            if self._draw_slots is None:
                yield drawing_ahead(server)
            else:
                server.draw_slots = self._draw_slots
                yield server

    def learn(self, until: int, on_round: OnRound | None = None) -> Cost:
        """Train up to a round; the cost is counted from the clients that took part."""
        if self.memory.rounds_done >= until:
            return Cost()
        started = self.memory.rounds_done
        with self.server() as server:
            learn(server, until, None if on_round is None else lambda round_, state: on_round(round_, state.model))
            return self._cost(server, started)

    def _cost(self, server: Server, started: int) -> Cost:
        rounds = range(started + 1, self.memory.rounds_done + 1)
        sent = self._model_bytes * sum(len(set(server.slots(round_))) for round_ in rounds)
        return Cost(len(rounds), len(rounds) * self._engine.plan.local_steps, sent, sent)

    def _aggregator(self) -> Aggregator:
        made = self._aggregate() if self._aggregate else self._engine.aggregator()
        return _InTemporaryFiles(made) if _kept_bytes(self._engine.plan, self._model_bytes) > _IN_MEMORY else made

    def resume_at(self, round_: int, state: State) -> None:
        """Go on from a state that another simulation of the same training reached. Earlier states are not known."""
        self.memory = ServerInMemory(self._engine.plan, self.memory.roster, state, round_)

    def first_uses(self) -> list[tuple[Id, Id, int]]:
        """Every first use (client, sample, step) that the clients noted."""
        return [
            (client, sample, step)
            for client in self.memory.roster
            for sample, step in self.clients.first_steps(client).items()
        ]

    def take_over(self, other: Simulation) -> None:
        """Take the rounds of another simulation of the same training, without computing them again."""
        with other.server() as server:
            for round_ in range(1, other.memory.rounds_done + 1):
                self.memory.commit(round_, other.memory.load(round_), sorted(set(server.slots(round_)), key=str))
        self.clients.note(other.first_uses())


class SimulatedMethod(Method):
    """A method that trains by one ``Simulation``. A subclass starts it in ``__init__`` and writes ``remove``."""

    simulation: Simulation

    @property
    def rounds_done(self) -> int:
        return self.simulation.memory.rounds_done

    @property
    def state(self) -> State:
        return self.simulation.memory.load(self.rounds_done)

    def learn(self, until: int, on_round: OnRound | None = None) -> Cost:
        return self.simulation.learn(until, on_round)


def _kept_bytes(plan: Plan, model_bytes: int) -> int:
    return plan.kept_count(plan.rounds) * model_bytes


def require_room(needed: int, what: str) -> None:
    """Refuse states that don't fit into the directory for temporary files."""
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    if _IN_MEMORY < needed > free:
        raise StorageFailed(
            f"{what} keeps {needed / 1e9:.1f} GB of states, but {place} has {free / 1e9:.1f} GB",
            hint="free some space, or name another directory: TMPDIR=DIR",
        )


class _InTemporaryFiles:
    """Lays each state out in a memory-mapped file without a name, so that many large states need no memory."""

    def __init__(self, inner: Aggregator) -> None:
        self._inner = inner

    def __call__(self, state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State:
        made = self._inner(state, slots, replies)
        return State({name: _mapped(array) for name, array in made.model.items()}, made.optimizer)


def _mapped(array: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryFile(prefix="fedforget-state-") as file:
        mapped = np.memmap(file, array.dtype, "w+", shape=array.shape)  # the mapping outlives the closed file
    mapped[...] = array
    return np.asarray(mapped)
