"""Forgetting: Algorithms 2 and 3, corrected. Remove the ids, rewind to before the first draw that held one, learn.

The unit of rewinding is the round, because no local model is stored. The changed round derives its draws from the same
seeds and the remaining ids; it never redraws them (see ``docs/errata.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedforget.algorithm.ids import Id, canonical_id, id_block
from fedforget.algorithm.learn import OnRound, Server, learn
from fedforget.algorithm.ports import ForgetQuery, Newcomer, RemoveOrder
from fedforget.algorithm.seeds import SeedSource
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
        """``"sample"`` or ``"client"``."""
        return "client" if self.sample is None else "sample"

    def __str__(self) -> str:
        client = f"client {shown(str(self.client))}"
        return client if self.sample is None else f"sample {shown(str(self.sample))} of {client}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a batch changes: everything that is needed to carry it out, also after a crash."""

    requests: tuple[Request, ...]
    first_changed_steps: tuple[int | None, ...]  # t_S or t_C of each request; None if no draw held it
    leaving: tuple[Id, ...]  # clients that leave: erased by request, or emptied
    goal: int  # rounds done when the batch arrived: learning continues up to it
    rewind_to: int  # the last round that remains valid; equal to the goal if no draw changed
    joining: tuple[Newcomer, ...] = ()
    new_seeds: bytes | None = None  # the root of new seeds for all parties
    batch_id: str = ""  # assigned by the journal

    @property
    def first_changed_step(self) -> int | None:
        return min((step for step in self.first_changed_steps if step is not None), default=None)


class Journal(Protocol):
    """Records the progress of a decision, so that the next process can finish it after a crash."""

    def begin(self, decision: Decision) -> Decision:
        """Make the decision durable and return it as it will be carried out. If that fails, nothing has changed.

        The journal sets the batch id. It may raise the goal to that of an unfinished batch, rewind further, and add
        requests whose targets leave anyway.
        """

    def removed(self, decision: Decision) -> None:
        """Record that the ids are removed (or have joined) and the state is rewound."""

    def recomputed(self, decision: Decision) -> None:
        """Record that learning has reached the decision's goal."""


class NoJournal:
    """A ``Journal`` for memory without a disk: it records nothing."""

    def begin(self, decision: Decision) -> Decision:
        return decision

    def removed(self, decision: Decision) -> None: ...

    def recomputed(self, decision: Decision) -> None: ...


def forget(
    server: Server, requests: Sequence[Request], journal: Journal | None = None, on_round: OnRound | None = None
) -> Decision:
    """Run Algorithms 2 and 3 for a batch of requests: decide, remove and rewind, learn."""
    journal = journal or NoJournal()
    decision = journal.begin(decide(server, requests))
    carry_out(server, decision, journal, on_round)
    return decision


def decide(server: Server, requests: Sequence[Request]) -> Decision:
    """Look up the first use of every target (Algorithm 2, lines 1-4; Algorithm 3, lines 1-4). Changes nothing.

    Only its client knows whether a sample was used. The client replies with the first step, and whether it would be
    empty.
    """
    memory, plan = server.memory, server.plan
    for request in requests:
        if request.client not in memory.roster:
            missing = Request(request.client)
            raise UnknownTarget(f"there is no {missing} in the federation", hint="see `fedforget clients`")
    steps: dict[Request, int | None] = {}
    leaving = {request.client for request in requests if request.sample is None}
    for client in leaving:
        first_round = memory.first_round(client)
        steps[Request(client)] = None if first_round is None else plan.step_of(first_round, 0)
    by_client = _samples_by_client(requests)
    queries = [ForgetQuery(client, samples, client in leaving) for client, samples in by_client.items()]
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


def carry_out(server: Server, decision: Decision, journal: Journal, on_round: OnRound | None = None) -> None:
    """Remove, rewind and learn (Algorithm 2, line 5; Algorithm 3, line 5)."""
    remove(server, decision, journal)
    learn(server, decision.goal, on_round)
    if server.memory.rounds_done >= decision.goal or not len(server.memory.roster):  # otherwise ``on_round`` stopped it
        journal.recomputed(decision)


def remove(server: Server, decision: Decision, journal: Journal) -> None:
    """Apply a decision, up to the point where learning continues."""
    apply(server, decision)
    journal.removed(decision)


def apply(server: Server, decision: Decision) -> None:
    """Remove the ids at their clients, rewind every party to before the first change, add newcomers. Idempotent."""
    leaving = set(decision.leaving)
    orders = [RemoveOrder(client, None) for client in decision.leaving]
    orders += [
        RemoveOrder(client, samples)
        for client, samples in _samples_by_client(decision.requests).items()
        if client not in leaving
    ]
    server.memory.begin(decision.batch_id)
    back_to = server.memory.kept_at_or_before(decision.rewind_to)
    server.federation.remove(orders)
    server.federation.rewind(back_to)
    server.memory.rewind(back_to, decision.leaving, decision.batch_id)
    if decision.joining:
        server.federation.join(decision.joining)
        commitments = {new.client: new.commitment for new in decision.joining}
        server.memory.join({client: found for client, found in commitments.items() if found is not None})
    if decision.new_seeds is not None:
        server.reseed(SeedSource(decision.new_seeds))


def _samples_by_client(requests: Iterable[Request]) -> dict[Id, tuple[Id, ...]]:
    grouped: dict[Id, dict[Id, None]] = {}
    for request in requests:
        if request.sample is not None:
            grouped.setdefault(request.client, {})[request.sample] = None
    return {client: tuple(samples) for client, samples in grouped.items()}
