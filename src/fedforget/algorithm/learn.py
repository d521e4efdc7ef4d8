"""Learning: Algorithm 1 (FATS). One loop trains, resumes, recomputes and replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedforget.algorithm.draws import PrfPriorities, Priorities, draw_clients_with_replacement, multiplicities
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Aggregator, Federation, ServerMemory, State, TrainTask
from fedforget.algorithm.seeds import SeedSource

OnRound = Callable[[int, State], object]  # a true value stops the loop after that round
Progress = Callable[[int], None]  # called with the number of each round that is done
DrawSlots = Callable[[Priorities, IdSet, int, int], list[Id]]  # same contract as ``draw_clients_with_replacement``


@dataclass(slots=True)
class Server:
    """The server: its plan, its random source, its memory, and how it reaches the clients.

    ``draw_slots`` may return cached draws, equal to those of ``draw_clients_with_replacement``.
    """

    plan: Plan
    priorities: Priorities
    memory: ServerMemory
    federation: Federation
    aggregate: Aggregator
    draw_slots: DrawSlots | None = None

    def slots(self, round_: int) -> list[Id]:
        """Draw the clients in the K slots of a round (Algorithm 1, line 7)."""
        draw = self.draw_slots or draw_clients_with_replacement
        return draw(self.priorities, self.memory.roster, round_, self.plan.clients_per_round)

    def drawn_after(self, round_: int) -> set[Id]:
        """Return the clients that the rounds after this one have drawn, including the round that may be under way."""
        last = min(self.memory.rounds_done + 1, self.plan.rounds)
        return {client for later in range(round_ + 1, last + 1) for client in self.slots(later)}

    def reseed(self, seeds: SeedSource) -> None:
        """Give the server and every client a new seed."""
        clients, own = {client: seeds.client(client) for client in self.memory.roster}, seeds.server()
        self.federation.reseed(clients)
        self.memory.reseed(own, {client: seed.commitment for client, seed in clients.items()})
        self.priorities = PrfPriorities(own.value)


def reporting(progress: Progress | None) -> OnRound | None:
    """Return a callback for ``learn`` that reports the number of each round."""
    return None if progress is None else lambda round_, _: progress(round_)


def learn(server: Server, until: int, on_round: OnRound | None = None) -> None:
    """Run Algorithm 1: for each round without a model, derive its draws, train, aggregate, commit.

    A client drawn m times trains once and counts m/K in the average (Section 5.2's equivalent procedure).
    """
    memory = server.memory
    if memory.rounds_done >= until or not len(memory.roster):
        return
    state = memory.load(memory.rounds_done)  # θ^(t-1)
    for round_ in range(memory.rounds_done + 1, until + 1):
        slots = server.slots(round_)  # P^(t)
        clients = list(multiplicities(slots))
        replies = server.federation.train([TrainTask(round_, client, state.model) for client in clients])
        state = server.aggregate(state, slots, replies)  # θ^(t)
        memory.commit(round_, state, clients)
        if on_round is not None and on_round(round_, state):
            return
