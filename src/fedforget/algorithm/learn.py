"""Learning: Algorithm 1 (FATS), one loop, for training, resuming, recomputing and replaying alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedforget.algorithm.draws import PrfPriorities, Priorities, draw_clients_with_replacement, multiplicities
from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import NOTHING, Aggregator, Federation, ServerMemory, State, TrainTask
from fedforget.algorithm.seeds import SeedSource

OnRound = Callable[[int, State], object]  # what is true stops the loop after that round


@dataclass(slots=True)
class Server:
    """The server: its plan, its random source, its memory, and how it reaches the clients."""

    plan: Plan
    priorities: Priorities
    memory: ServerMemory
    federation: Federation
    aggregate: Aggregator

    def reseed(self, seeds: SeedSource) -> None:
        """Draw everything anew: other seeds for the server and for every client."""
        clients, own = {client: seeds.client(client) for client in self.memory.roster}, seeds.server()
        self.federation.reseed(clients)
        self.memory.reseed(own, {client: seed.commitment for client, seed in clients.items()})
        self.priorities = PrfPriorities(own.value)


def learn(server: Server, until: int, on_round: OnRound | None = None) -> None:
    """Algorithm 1: for each round from the first one without a model, derive its draws, train, aggregate, commit.

    A client drawn m times trains once and counts m/K in the average (Section 5.2's equivalent procedure).
    """
    memory = server.memory
    if memory.rounds_done >= until or not len(memory.roster):
        return
    state = memory.load(memory.rounds_done)  # θ^(t-1)
    drawn: dict[int, list[Id]] = {}
    for round_ in range(memory.rounds_done + 1, until + 1):
        slots = drawn.pop(round_, None) or _slots(server, round_)  # P^(t)
        clients = list(multiplicities(slots))
        replies = server.federation.train(
            [TrainTask(round_, client, state.model) for client in clients],
            meanwhile=_get_ready(server, round_ + 1, drawn) if round_ < until else NOTHING,
        )
        state = server.aggregate(state, slots, replies)  # θ^(t)
        memory.commit(round_, state, clients)
        if on_round is not None and on_round(round_, state):
            return


def _slots(server: Server, round_: int) -> list[Id]:
    return draw_clients_with_replacement(server.priorities, server.memory.roster, round_, server.plan.clients_per_round)


def _get_ready(server: Server, round_: int, drawn: dict[int, list[Id]]) -> Iterator[None]:
    """Draw a round while the one before it is trained: draws depend on who is there, never on a model."""
    drawn[round_] = _slots(server, round_)
    yield
    for client in multiplicities(drawn[round_]):
        server.federation.get_ready(round_, client)
        yield
