"""Exactness in law, by enumeration: run the production code on every order of priorities of a tiny world.

An oracle replaces the PRF: at each address it enumerates every order of the ids, with exact probabilities. Learn,
forget and rewind are the production code. The "model" of a round is the previous model plus the tuple of the
mini-batches drawn in that round, so the history is read from the *stored* model and never derived again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations, product
from math import factorial, prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.draws import Address
from fedforget.algorithm.forget import Request, forget
from fedforget.algorithm.ids import Id, IdSet, canonical_id
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import LocalRound, State, Trained, TrainReply
from fedforget.errors import InvalidInput, UnknownTarget
from fedforget.federation.local import LocalFederation

World = Mapping[Any, Sequence[Any]]  # client → its sample ids
History = tuple[Any, ...]  # of rounds (slots, ((client, (batch, …)), …))
Law = dict[History, Fraction]
Progress = Callable[[int], None]


@lru_cache
def _orders(size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(permutations(range(size)))


class Oracle:
    """Priorities for one combination of orders. ``choices`` holds the order of each address, in order of first use."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = list(choices)
        self._counts: list[int] = []  # the number of options of each choice
        self._orders: dict[Address, list[Id]] = {}  # ascending priorities

    def __call__(self, address: Address, ids: IdSet) -> NDArray[np.uint64]:
        order = self._orders.get(address)
        if order is None:
            ranks = _orders(len(ids))[self._choose(factorial(len(ids)))]
            order = self._orders[address] = sorted(ids, key=dict(zip(ids, ranks, strict=True)).__getitem__)
        for newcomer in (identifier for identifier in ids if identifier not in order):
            order.insert(self._choose(len(order) + 1), newcomer)  # uniform over positions
        priorities = np.zeros((len(ids), 2), np.uint64)
        priorities[:, 1] = [order.index(identifier) for identifier in ids]  # the high halves tie
        return priorities

    def stream(self, address: Address) -> bytes:  # noqa: ARG002 (no random layers in a model made of tuples)
        return bytes(16)

    def _choose(self, count: int) -> int:
        if len(self._counts) == len(self._choices):
            self._choices.append(0)
        self._counts.append(count)
        return self._choices[len(self._counts) - 1]

    @property
    def probability(self) -> Fraction:
        return Fraction(1, prod(self._counts))

    def next_choices(self) -> list[int] | None:
        """Return the next combination in depth-first order, or None after the last."""
        choices = self._choices[: len(self._counts)]
        while choices and choices[-1] + 1 == self._counts[len(choices) - 1]:
            choices.pop()
        return [*choices[:-1], choices[-1] + 1] if choices else None


def enumerate_orders(run: Callable[[Oracle], History], progress: Progress | None = None) -> Law:
    """Return the law of ``run``'s result over every order of the priorities that it draws."""
    law: Law = {}
    choices: list[int] | None = []
    count = 0
    while choices is not None:
        oracle = Oracle(choices)
        history = run(oracle)
        law[history] = law.get(history, Fraction(0)) + oracle.probability
        choices = oracle.next_choices()
        count += 1
        if progress is not None:
            progress(count)
    return law


class _BatchesAreTheModel:
    """A learner whose local model is the tuple of its mini-batches, and an aggregator that appends each round."""

    def __init__(self, world: World) -> None:
        self._labels = {canonical_id(client): client for client in world}
        self._sample_labels = {
            canonical_id(client): {canonical_id(sample): sample for sample in ids} for client, ids in world.items()
        }

    def train(self, work: LocalRound) -> Trained:
        labels = self._sample_labels[work.client]
        batches = tuple(tuple(_in_order(labels[sample] for sample in batch)) for batch in work.batches)
        return Trained(batches)

    def __call__(self, state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State:
        trained = {self._labels[reply.client]: reply.model for reply in replies}
        round_ = (
            tuple(self._labels[client] for client in slots),
            tuple((client, trained[client]) for client in _in_order(trained)),
        )
        return State((*state.model, round_))


def symbolic_server(world: World, oracle: Oracle, plan: Plan, everything: World | None = None) -> Server:
    """Return the production server and clients on a tiny world, with the oracle's priorities and tuples as models.

    ``everything`` also holds the samples and clients that may join later.
    """
    _require_distinct(world)
    samples = {canonical_id(client): IdSet(ids) for client, ids in world.items() if len(ids)}
    model = _BatchesAreTheModel(everything or world)
    clients = ClientsInMemory(samples, dict.fromkeys(samples, b""))
    federation = LocalFederation(plan, clients, model, priorities=lambda _: oracle)
    return Server(plan, oracle, ServerInMemory(plan, IdSet(samples), State(())), federation, model)


def stored_history(server: Server) -> History:
    """Return the history that the stored model consists of."""
    history: History = server.memory.load(server.memory.rounds_done).model
    return history


@dataclass(frozen=True, slots=True)
class Enumeration:
    """The law of a history, and the probability that a request changed a round that was learned already."""

    law: Law
    change_probability: Fraction

    @classmethod
    def of(cls, run: Callable[[Oracle], tuple[History, bool]], progress: Progress | None = None) -> Enumeration:
        """Enumerate ``run``, which returns a history and whether it changed learned rounds."""
        joint = enumerate_orders(run, progress)
        law: Law = {}
        for (history, _), chance in joint.items():
            law[history] = law.get(history, Fraction(0)) + chance
        return cls(law, sum((chance for (_, changed), chance in joint.items() if changed), Fraction(0)))


def enumerate_forgetting(
    world: World, requests: Sequence[Any], plan: Plan, progress: Progress | None = None
) -> Enumeration:
    """Return the law of the history after production ``learn`` and ``forget`` of a stream of requests.

    A request is ``("sample", client, id)`` or ``("client", client)``, with an optional element for the rounds done when
    it arrives, 0 to R (default R); a list of requests arrives at once. Training continues to R afterwards.
    """
    _require_distinct(world)
    arrivals = [_parse(entry, plan.rounds) for entry in requests]
    _require_sound(world, arrivals, plan.rounds)

    def run(oracle: Oracle) -> tuple[History, bool]:
        server, changed = symbolic_server(world, oracle, plan), False
        for batch, rounds_done in arrivals:
            learn(server, rounds_done)
            pending = _present_targets(server, batch)
            if pending:
                before = stored_history(server)
                forget(server, pending)
                changed |= stored_history(server) != before
        learn(server, plan.rounds)
        return stored_history(server), changed

    return Enumeration.of(run, progress)


def textbook_law(world: World, *, K: int, b: int, E: int, R: int) -> Law:
    """Return the law of R rounds: K independent uniform slots, and per client E uniform min(b, N_k)-subsets."""
    _require_distinct(world)
    if not any(len(ids) for ids in world.values()):
        return {(): Fraction(1)}
    one_round = dict(_textbook_rounds(world, K, b, E))
    law: Law = {(): Fraction(1)}
    for _ in range(R):
        law = {
            (*history, round_): chance * share for history, chance in law.items() for round_, share in one_round.items()
        }
    return law


def _textbook_rounds(world: World, K: int, b: int, E: int) -> Iterator[tuple[Any, Fraction]]:
    present = [client for client, ids in world.items() if len(ids)]
    for slots in product(present, repeat=K):
        distinct = _in_order(set(slots))
        subsets = [list(combinations(_in_order(world[client]), min(b, len(world[client])))) for client in distinct]
        chance = Fraction(1, len(present) ** K * prod(len(choices) ** E for choices in subsets))
        for batches in product(*(product(choices, repeat=E) for choices in subsets)):
            yield (slots, tuple(zip(distinct, batches, strict=True))), chance


def remaining_world(world: World, requests: Sequence[Any]) -> dict[Any, tuple[Any, ...]]:
    """Return the world without the requested samples and clients."""
    _require_distinct(world)
    left = {client: list(ids) for client, ids in world.items()}
    for batch, _ in (_parse(entry, 0) for entry in requests):
        for request in batch:
            for client in list(left):
                if canonical_id(client) != request.client:
                    continue
                kept = [] if request.sample is None else left[client]
                left[client] = [sample for sample in kept if canonical_id(sample) != request.sample]
    return {client: tuple(ids) for client, ids in left.items() if ids}


def total_variation(one: Law, other: Law) -> Fraction:
    """Return the exact total variation distance of two laws: 0 if and only if they are equal."""
    histories = one.keys() | other.keys()
    return sum((abs(one.get(h, Fraction(0)) - other.get(h, Fraction(0))) for h in histories), Fraction(0)) / 2


def _parse(entry: Any, default: int) -> tuple[list[Request], int]:
    if isinstance(entry, list) and not (entry and isinstance(entry[0], str)):
        parts = [_parse(each, default) for each in entry]
        return [request for batch, _ in parts for request in batch], max((when for _, when in parts), default=default)
    kind = entry[0] if isinstance(entry, Sequence) and entry else None
    arity = {"sample": 3, "client": 2}.get(kind, 0) if isinstance(kind, str) else 0
    if not arity or len(entry) not in (arity, arity + 1):
        raise InvalidInput(f"{entry!r} is not a request", hint='use ("sample", client, id) or ("client", client)')
    when = entry[arity] if len(entry) > arity else default
    if not isinstance(when, int) or isinstance(when, bool) or when < 0:
        raise InvalidInput(f"a request cannot arrive after {when!r} rounds", hint="give a whole number, 0 or more")
    return [Request(entry[1], entry[2] if kind == "sample" else None)], when


def _require_distinct(world: World) -> None:
    """Require distinct ids: two spellings of one id would count twice in the textbook law and once in production."""
    IdSet(world, what="client")
    for ids in world.values():
        IdSet(ids, what="sample")


def _require_sound(world: World, arrivals: Sequence[tuple[Sequence[Request], int]], rounds: int) -> None:
    """Require requests that name existing targets and arrive within the run. Others would prove nothing."""
    there = {canonical_id(client): set(map(canonical_id, ids)) for client, ids in world.items()}
    for batch, when in arrivals:
        if when > rounds:
            raise InvalidInput(f"a request cannot arrive after {when} rounds", hint=f"give 0 to {rounds}")
        for request in batch:
            if request.client not in there or (
                request.sample is not None and request.sample not in there[request.client]
            ):
                raise UnknownTarget(f"the world has no {request}", hint="name a client or sample of the world")


def _present_targets(server: Server, batch: Sequence[Request]) -> list[Request]:
    """Drop requests whose target is already erased."""
    clients = cast(LocalFederation, server.federation).memory
    return [
        request
        for request in dict.fromkeys(batch)
        if request.client in server.memory.roster
        and (request.sample is None or request.sample in clients.samples(request.client))
    ]


def _in_order(labels: Any) -> list[Any]:
    """Sort labels ascending, numbers before strings."""
    return sorted(labels, key=lambda label: (isinstance(label, str), label))
