"""Forgetting: Algorithms 2 and 3, corrected. Remove the ids, rewind to before the first draw that held one, learn.

The unit of rewinding is the round: no local model is ever stored, and the draws of the changed round are those of the
seeds on whoever is left, never drawn afresh (see ``docs/errata.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedforget.algorithm.ids import Id, canonical_id, id_block
from fedforget.algorithm.learn import OnRound, Server, learn
from fedforget.algorithm.ports import ForgetQuery, RemoveOrder
from fedforget.errors import UnknownTarget, shown


@dataclass(frozen=True, slots=True)
class Request:
    """Forget one sample of a client, or (``sample`` None) the whole client."""

    client: Id
    sample: Id | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", canonical_id(self.client))
        if self.sample is not None:
            object.__setattr__(self, "sample", canonical_id(self.sample))

    @property
    def level(self) -> str:
        return "client" if self.sample is None else "sample"

    def __str__(self) -> str:
        client = f"client {shown(str(self.client))}"
        return client if self.sample is None else f"sample {shown(str(self.sample))} of {client}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a batch of requests changes. Everything that applying it needs, so that a crash can be finished from it."""

    requests: tuple[Request, ...]
    first_changed_steps: tuple[int | None, ...]  # t_S or t_C of each request; None if no draw held it
    leaving: tuple[Id, ...]  # clients that go, asked for or emptied
    goal: int  # rounds done when the batch arrived: learning goes on to there
    rewind_to: int  # the last round that stays valid; the goal if no draw changed

    @property
    def first_changed_step(self) -> int | None:
        return min((step for step in self.first_changed_steps if step is not None), default=None)


def decide(server: Server, requests: Sequence[Request]) -> Decision:
    """Look up the first use of everything asked for (Algorithm 2, lines 1-4; Algorithm 3, lines 1-4). Changes nothing.

    Whether a sample was used only its client knows: it answers with the first step, and whether it would be empty.
    """
    memory, plan = server.memory, server.plan
    for request in requests:
        if request.client not in memory.roster:
            raise UnknownTarget(f"{Request(request.client)} is not in the federation", hint="see `fedforget clients`")
    steps: dict[Request, int | None] = {}
    leaving = {request.client for request in requests if request.sample is None}
    for client in leaving:
        first_round = memory.first_round(client)
        steps[Request(client)] = None if first_round is None else plan.step_of(first_round, 0)
    queries = [ForgetQuery(client, samples) for client, samples in _samples_by_client(requests).items()]
    for query, reply in zip(queries, server.federation.what_would_change(queries), strict=True):
        steps |= {
            Request(query.client, sample): step for sample, step in zip(query.samples, reply.first_steps, strict=True)
        }
        if reply.now_empty:
            leaving.add(query.client)
    first = min((step for step in steps.values() if step is not None), default=None)
    return Decision(
        requests=tuple(requests),
        first_changed_steps=tuple(steps[request] for request in requests),
        leaving=tuple(sorted(leaving, key=id_block)),
        goal=memory.rounds_done,
        rewind_to=memory.rounds_done if first is None else plan.round_of(first) - 1,
    )


def apply(server: Server, decision: Decision) -> None:
    """Remove the ids at their clients and rewind every party to before the first change. Idempotent."""
    leaving = set(decision.leaving)
    orders = [RemoveOrder(client, None) for client in decision.leaving]
    orders += [
        RemoveOrder(client, samples)
        for client, samples in _samples_by_client(decision.requests).items()
        if client not in leaving
    ]
    back_to = server.memory.kept_at_or_before(decision.rewind_to)
    server.federation.remove(orders)
    server.federation.rewind(back_to)
    server.memory.rewind(back_to, decision.leaving)


def forget(server: Server, requests: Sequence[Request], on_round: OnRound | None = None) -> Decision:
    """Algorithms 2 and 3 for any batch of requests: decide, remove and rewind, learn."""
    decision = decide(server, requests)
    apply(server, decision)
    learn(server, decision.goal, on_round)
    return decision


def _samples_by_client(requests: Iterable[Request]) -> dict[Id, tuple[Id, ...]]:
    grouped: dict[Id, dict[Id, None]] = {}
    for request in requests:
        if request.sample is not None:
            grouped.setdefault(request.client, {})[request.sample] = None
    return {client: tuple(samples) for client, samples in grouped.items()}
