"""Learning: Algorithm 1 (FATS), one loop, for training, resuming, recomputing and replaying alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedforget.algorithm.draws import Priorities, draw_clients_with_replacement, multiplicities
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Aggregator, Federation, ServerMemory, State, TrainTask

OnRound = Callable[[int, State], None]


@dataclass(frozen=True, slots=True)
class Server:
    """The server: its plan, its random source, its memory, and how it reaches the clients."""

    plan: Plan
    priorities: Priorities
    memory: ServerMemory
    federation: Federation
    aggregate: Aggregator


def learn(server: Server, until: int, on_round: OnRound | None = None) -> None:
    """Algorithm 1: for each round from the first one without a model, derive its draws, train, aggregate, commit.

    A client drawn m times trains once and counts m/K in the average (Section 5.2's equivalent procedure).
    """
    memory, plan = server.memory, server.plan
    if memory.rounds_done >= until or not len(memory.roster):
        return
    state = memory.load(memory.rounds_done)  # θ^(t-1)
    for round_ in range(memory.rounds_done + 1, until + 1):
        slots = draw_clients_with_replacement(server.priorities, memory.roster, round_, plan.clients_per_round)  # P^(t)
        clients = list(multiplicities(slots))
        replies = server.federation.train([TrainTask(round_, client, state.model) for client in clients])
        state = server.aggregate(state, slots, replies)  # θ^(t)
        memory.commit(round_, state, clients)
        if on_round is not None:
            on_round(round_, state)
