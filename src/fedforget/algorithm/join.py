"""Joining: add samples and clients later, as if they had been present from the beginning.

Joining is forgetting in reverse. On the larger set a draw changes only if it holds a newcomer, so the server rewinds to
before the first draw that would have held one, and learns again from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedforget.algorithm.draws import draw_clients_with_replacement
from fedforget.algorithm.forget import Decision, Journal, NoJournal, carry_out
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import OnRound, Server
from fedforget.algorithm.ports import JoinQuery, Newcomer


def join(
    server: Server, newcomers: Sequence[Newcomer], journal: Journal | None = None, on_round: OnRound | None = None
) -> Decision:
    """Add samples and clients, as if they had been present from the beginning."""
    journal = journal or NoJournal()
    decision = journal.begin(decide_joining(server, newcomers))
    carry_out(server, decision, journal, on_round)
    return decision


def decide_joining(server: Server, newcomers: Sequence[Newcomer]) -> Decision:
    """Decide what adding these newcomers changes. Changes nothing itself."""
    step = first_change(server, {new.client: [sample for sample, _ in new.samples] for new in newcomers})
    goal = server.memory.rounds_done
    rewind_to = goal if step is None else server.plan.round_of(step) - 1
    return Decision((), (), (), goal, rewind_to, joining=tuple(newcomers))


def first_change(server: Server, joining: Mapping[Id, Sequence[Id]]) -> int | None:
    """Return the first step whose draw would have held one of these samples or a new client; None if none would.

    The server derives every slot again on the larger roster, up to the first that holds a new client. Each client
    derives its own mini-batches.
    """
    memory, plan = server.memory, server.plan
    new = {client for client in joining if client not in memory.roster}
    larger = IdSet((*memory.roster, *new), what="client") if new else memory.roster
    took_part: dict[Id, list[int]] = {client: [] for client in joining if client not in new}
    steps: list[int] = []
    for round_ in range(1, memory.rounds_done + 1):
        slots = set(draw_clients_with_replacement(server.priorities, larger, round_, plan.clients_per_round))
        for client in slots & took_part.keys():
            took_part[client].append(round_)
        if slots & new:
            steps.append(plan.step_of(round_, 0))
            break
    queries = [JoinQuery(client, tuple(joining[client]), tuple(rounds)) for client, rounds in took_part.items()]
    replies = server.federation.what_would_join(queries)
    return min((*steps, *(reply.first_step for reply in replies if reply.first_step is not None)), default=None)
