"""Lives of requests, enumerated: the production processor over every order of priorities of a tiny world.

Requests are deferred, cover each other, are cancelled, and arrive while rounds are recomputed; data that were left out
join; a process crashes and another one finishes. The law of the state at the end must be that of learning on what
remains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, canonical_id
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Federation, Newcomer, RemoveOrder
from fedforget.algorithm.seeds import Seed
from fedforget.errors import ClientUnreachable
from fedforget.evidence.laws import Enumeration, History, Oracle, Progress, World, stored_history, symbolic_server
from fedforget.federation.local import LocalFederation
from fedforget.requests.lifecycle import Basis, Stage, Submission
from fedforget.requests.memory import BatchesInMemory, BookInMemory, InboxInMemory, WorkInMemory, processor_in_memory
from fedforget.requests.processor import Processor

_ANY_SEED = Seed(bytes(32), bytes(32))  # the oracle draws, whatever the seed


@dataclass(frozen=True, slots=True)
class Forget:
    """Requests that are carried out at once."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Defer:
    """Requests that wait."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Arrive:
    """Requests that are handed in while the next event recomputes rounds, or right after it if it recomputes none."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request that waits is cancelled."""

    request: Request


@dataclass(frozen=True, slots=True)
class RunPending:
    """Everything that waits is carried out by one rewind."""


@dataclass(frozen=True, slots=True)
class Add:
    """Samples join; ``is_new``: so does their client."""

    client: int
    samples: tuple[int, ...]
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Learn:
    """Training goes on to a round."""

    rounds: int


@dataclass(frozen=True, slots=True)
class Crash:
    """The next event's process dies when a batch has come to a stage, or (None) after the first round it computes.

    Another process finishes what it left.
    """

    at: Stage | None


@dataclass(frozen=True, slots=True)
class FallSilent:
    """A client on another machine answers no order from now on, so a batch that removes some of its samples waits."""

    client: int


Event = Forget | Defer | Arrive | Cancel | RunPending | Add | Learn | Crash | FallSilent


class _Crashed(BaseException):
    """The process is dead. A BaseException, so that no handler of the processor catches it."""


def enumerate_life(world: World, events: Sequence[Event], plan: Plan, progress: Progress | None = None) -> Enumeration:
    """The law of the history after a life of requests, and the probability that learned rounds were changed."""

    everything = {client: list(ids) for client, ids in world.items()}
    for event in events:
        if isinstance(event, Add):
            there = everything.setdefault(event.client, [])
            there += [sample for sample in event.samples if sample not in there]

    def run(oracle: Oracle) -> tuple[History, bool]:
        life = _Life(symbolic_server(world, oracle, plan, everything))
        if not any(isinstance(event, Learn) for event in events):
            learn(life.processor.server, plan.rounds)  # the requests come after training
        for event in events:
            life.live(event)
        learn(life.processor.server, plan.rounds)
        return stored_history(life.processor.server), life.changed

    return Enumeration.of(run, progress)


class _Life:
    """One life, with one oracle."""

    def __init__(self, server: Server) -> None:
        self._inbox, self._arriving = InboxInMemory(), list[Submission]()
        self._batches = BatchesInMemory(BookInMemory(), self._reached)
        self._crash: Crash | None = None
        self._silent: set[Id] = set()
        self.processor = self._process(server)
        self.changed = False

    def _process(self, server: Server) -> Processor:
        """Start a process on what is stored: nothing else outlasts a crash."""
        federation = cast(LocalFederation, server.federation).restarted()
        reached = cast(Federation, _WithSilentClients(federation, self._silent, self._leaving))
        work = WorkInMemory(self._after_round)
        return processor_in_memory(
            replace(server, federation=reached), federation.memory, work, self._inbox, self._batches
        )

    def _leaving(self) -> set[Id]:
        return {client for intent in self._batches.unfinished() for client in intent.decision.leaving}

    @property
    def _book(self) -> BookInMemory:
        return self._batches.book

    def _after_round(self) -> None:
        """Submit what arrives while rounds are computed."""
        while self._arriving:
            self._inbox.leave(self._arriving.pop(0))
        self._reached(None)

    def _reached(self, stage: Stage | None) -> None:
        if self._crash is not None and self._crash.at == stage:
            self._crash = None
            raise _Crashed

    def live(self, event: Event) -> None:
        processor = self.processor
        match event:
            case Learn(rounds):
                processor.finish()
                learn(processor.server, rounds)
            case Defer(requests):
                processor.intake.accept(_submission(requests))
            case Arrive(requests):
                self._arriving.append(_submission(requests))
            case Crash():
                self._crash = event
            case FallSilent(client):
                self._silent.add(canonical_id(client))
            case Cancel(request):
                waiting = {each: identifier for identifier, each in self._book.pending().items()}
                self._book.cancel(waiting[request])
            case Forget(requests):
                self._carry_out(lambda: processor.submit(_submission(requests)))
            case RunPending():
                self._carry_out(lambda: processor.forget(self._book.pending()))
            case Add():
                self._carry_out(lambda: processor.add(_newcomers(event), {"basis": Basis.EXOGENOUS}))

    def _carry_out(self, command: Callable[[], object]) -> None:
        """What one command does. Requests that found no recomputation to join come right after it."""
        before = stored_history(self.processor.server)
        self.processor.accept_inbox()
        self._finish(command)
        while self._arriving:
            submission = self._arriving.pop(0)
            self._finish(lambda submission=submission: self.processor.submit(submission))  # type: ignore[misc]
        self.changed |= stored_history(self.processor.server) != before

    def _finish(self, command: Callable[[], object]) -> None:
        """Run a command to its end. If its process crashes, another one finishes what is stored.

        A command that a silent client stops leaves its batch to the next one.
        """
        try:
            command()
            self.processor.finish()
        except _Crashed:
            self.processor = self._process(self.processor.server)
            self.processor.accept_inbox()
            self.processor.finish()
        except ClientUnreachable:
            self.processor = self._process(self.processor.server)


class _WithSilentClients:
    """A ``Federation`` that waits for silent clients to remove samples, unless a batch erases them as a whole."""

    def __init__(self, federation: LocalFederation, silent: Collection[Id], leaving: Callable[[], set[Id]]) -> None:
        self._federation, self._silent, self._leaving = federation, silent, leaving

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        leaving = self._leaving()
        needed = [order for order in orders if order.samples is None or order.client not in leaving]
        for order in needed:
            if order.samples is not None and order.client in self._silent:
                raise ClientUnreachable(f"client {order.client} does not answer")
        self._federation.remove(needed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)


def world_after(world: World, events: Sequence[Event]) -> dict[Any, tuple[Any, ...]]:
    """What is left of a world after a life of requests: plain set arithmetic."""
    left = {(client, sample) for client, ids in world.items() for sample in ids}
    pending: list[Request] = []
    arriving: list[Request] = []

    def erased(requests: Sequence[Request]) -> set[tuple[Any, Any]]:
        return {(c, s) for c, s in left if Request(c) in requests or Request(c, s) in requests}

    for event in events:
        match event:
            case Defer(requests):
                pending += requests
            case Arrive(requests):
                arriving += requests
            case Cancel(request):
                pending.remove(request)
            case Add(client, samples):
                left |= {(client, sample) for sample in samples}
            case Forget(requests):
                left -= erased(requests)
            case RunPending():
                left -= erased(pending)
        if not isinstance(event, Defer | Arrive | Cancel | Learn | Crash | FallSilent):
            left -= erased(arriving)
            arriving = []
    return {client: tuple(sorted(s for c, s in left if c == client)) for client in sorted({c for c, _ in left})}


def _submission(requests: tuple[Request, ...]) -> Submission:
    return Submission.of(requests, Basis.EXOGENOUS)


def _newcomers(event: Add) -> tuple[Newcomer, ...]:
    seed = _ANY_SEED if event.is_new else None
    return (Newcomer(canonical_id(event.client), seed, tuple((canonical_id(each), b"") for each in event.samples)),)
