"""A federation whose clients are in this process: it derives their draws and stores their notes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from fedforget.algorithm.client import Client, LocalDraws, forget_reply
from fedforget.algorithm.draws import PrfPriorities, Priorities, multiplicities
from fedforget.algorithm.ids import Id, id_block
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import (
    ClientMemory,
    ForgetQuery,
    ForgetReply,
    JoinQuery,
    JoinReply,
    LocalLearner,
    LocalRound,
    Newcomer,
    Presence,
    RemoveOrder,
    Trained,
    TrainReply,
    TrainTask,
)
from fedforget.algorithm.seeds import Seed
from fedforget.algorithm.witness import same_first_step
from fedforget.federation.draw_ahead import SlotsAhead
from fedforget.federation.learner_failures import as_training_failed


class RoundTrainer(Protocol):
    """Computes the local rounds of a round."""

    def train(self, works: Sequence[LocalRound], idle: Iterator[None]) -> list[Trained]:
        """Train each local round and return the results in the same order.

        While it waits for other processes, a trainer advances ``idle``: useful work for this process.
        """

    def samples_change(self) -> None:
        """Drop cached samples, because samples are about to leave or to join."""

    def close(self) -> None:
        """Stop the processes that the trainer started."""


class InlineTrainer:
    """Computes local rounds in this process, one after the other, on one thread."""

    def __init__(self, learner: LocalLearner) -> None:
        self._learner = learner

    def train(self, works: Sequence[LocalRound], idle: Iterator[None]) -> list[Trained]:  # noqa: ARG002 (never idle)
        return [self.train_one(work) for work in works]

    def train_one(self, work: LocalRound) -> Trained:
        with as_training_failed(work):
            return self._learner.train(work)

    def samples_change(self) -> None:
        """Do nothing: this trainer caches no samples."""

    def close(self) -> None:
        """Do nothing: this trainer starts no process."""


class LocalFederation:
    """A ``Federation`` whose clients are in this process. It loads a client from the memory on first use.

    ``trainer`` computes the local rounds; without one, this process computes them one after the other.
    """

    def __init__(
        self,
        plan: Plan,
        memory: ClientMemory,
        learner: LocalLearner,
        priorities: Callable[[bytes], Priorities] = PrfPriorities,
        trainer: RoundTrainer | None = None,
    ) -> None:
        self._plan = plan
        self.memory = memory
        self._learner = learner
        self._inline = InlineTrainer(learner)
        self._trainer = trainer or self._inline
        self._priorities = priorities
        self._clients: dict[Id, Client] = {}
        self._slots_ahead: SlotsAhead | None = None
        self._ahead: dict[tuple[Id, int], LocalDraws] = {}  # draws of the next round, by client and round

    def restarted(self) -> LocalFederation:
        """Return the federation of another process on the same memory."""
        return LocalFederation(self._plan, self.memory, self._learner, self._priorities)

    def who_are_you(self) -> list[Presence]:
        commitments = self.memory.commitments()
        return [Presence(client, commitments[client]) for client in sorted(commitments, key=id_block)]

    def draw_ahead(self, slots: SlotsAhead) -> None:
        """Draw the next round for the server and its clients while the trainer waits."""
        self._slots_ahead = slots

    def train(self, tasks: Sequence[TrainTask]) -> list[TrainReply]:
        works, uses = [], []
        try:
            for task in tasks:
                draws = self._ahead.pop((task.client, task.round), None)
                work, first_uses = self._client(task.client).local_round(task, draws)
                works.append(work)
                uses += first_uses
            trained = self._trainer.train(works, self._draw_next(tasks))
            self.memory.note(uses, self._witnesses(works, trained))
        except BaseException:
            self._forget_clients()  # they noted uses of the failed round; the memory did not
            raise
        return [TrainReply(task.client, each.model) for task, each in zip(tasks, trained, strict=True)]

    def _draw_next(self, tasks: Sequence[TrainTask]) -> Iterator[None]:
        """Draw the round after these tasks: first its slots, then the mini-batches of one client per step."""
        if self._slots_ahead is None or not tasks or tasks[0].round >= self._plan.rounds:
            return
        round_ = tasks[0].round
        self._ahead.clear()
        clients = multiplicities(self._slots_ahead.after(round_))
        yield
        for client in clients:
            self._ahead[client, round_ + 1] = self._client(client).draws(round_ + 1)
            yield

    def _witnesses(self, works: Sequence[LocalRound], trained: Sequence[Trained]) -> list[tuple[Id, int, bytes]]:
        return [
            (work.client, work.round, self._client(work.client).witness(work.round, each.checksum, each.first_step))
            for work, each in zip(works, trained, strict=True)
            if each.checksum is not None
        ]

    def repeats(self, task: TrainTask, leaving: Collection[Id] = (), *, bitwise: bool = True) -> bool | None:
        noted = self.memory.witnesses(task.client).get(task.round)
        if noted is None:
            return None
        client = self._client(task.client)
        trained = self._inline.train_one(client.first_steps(task, leaving))
        if trained.checksum is None:
            return False
        repeated = client.witness(task.round, trained.checksum, trained.first_step)
        return repeated == noted if bitwise else same_first_step(noted, repeated, task.model)

    def close(self) -> None:
        self._trainer.close()

    def what_would_change(self, queries: Sequence[ForgetQuery]) -> list[ForgetReply]:
        return [self._forget_reply(query) for query in queries]

    def _forget_reply(self, query: ForgetQuery) -> ForgetReply:
        """Ask a client. One that this process has not loaded is not loaded for it: nothing has to be drawn."""
        client = query.client
        if client in self._clients:
            return self._clients[client].what_would_change(query)
        return forget_reply(query, self.memory.samples(client), self.memory.first_steps(client))

    def what_would_join(self, queries: Sequence[JoinQuery]) -> list[JoinReply]:
        return [self._client(query.client).what_would_join(query) for query in queries]

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        self._samples_change()
        self.memory.remove(orders)
        for order in orders:
            if order.samples is None:
                self._clients.pop(order.client, None)
            elif order.client in self._clients:
                self._clients[order.client].remove(order.samples)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        self._samples_change()
        self.memory.join(newcomers)
        for new in newcomers:
            self._clients.pop(new.client, None)

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        self.memory.reseed(seeds)
        self._forget_clients()

    def rewind(self, rounds_done: int) -> None:
        last_step = rounds_done * self._plan.local_steps
        self.memory.rewind(rounds_done, last_step)
        for client in self._clients.values():
            client.rewind(last_step)

    def _samples_change(self) -> None:
        self._trainer.samples_change()
        self._ahead.clear()  # they were drawn from the old samples

    def _forget_clients(self) -> None:
        """Drop all loaded clients; each is loaded again on its next use."""
        self._clients.clear()
        self._ahead.clear()

    def _client(self, client: Id) -> Client:
        if client not in self._clients:
            memory = self.memory
            self._clients[client] = Client(
                client,
                memory.samples(client),
                self._priorities(memory.seed(client)),
                self._plan,
                memory.first_steps(client),
            )
        return self._clients[client]
