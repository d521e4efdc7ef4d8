"""All clients in this process, one after the other, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from fedforget.algorithm.client import Client
from fedforget.algorithm.draws import PrfPriorities, Priorities
from fedforget.algorithm.ids import Id, id_block
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import (
    NOTHING,
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
from fedforget.errors import FedForgetError, TrainingFailed, shown
from fedforget.federation import shortage


class InlineFederation:
    """A ``Federation`` whose clients live here. Their memory is asked for a client when it is first needed."""

    def __init__(
        self,
        plan: Plan,
        memory: ClientMemory,
        learner: LocalLearner,
        priorities: Callable[[bytes], Priorities] = PrfPriorities,
    ) -> None:
        self._plan = plan
        self.memory = memory
        self._learner = learner
        self._priorities = priorities
        self._clients: dict[Id, Client] = {}

    def who_are_you(self) -> list[Presence]:
        commitments = self.memory.commitments()
        return [Presence(client, commitments[client]) for client in sorted(commitments, key=id_block)]

    def train(self, tasks: Sequence[TrainTask], meanwhile: Iterator[None] = NOTHING) -> list[TrainReply]:
        works, uses = [], []
        try:
            for task in tasks:
                work, first_uses = self._client(task.client).local_round(task)
                works.append(work)
                uses += first_uses
            trained = self._train_all(works, meanwhile)
            self.memory.note(uses, self._witnesses(works, trained))
        except BaseException:
            self._clients.clear()  # what they noted of a round that failed never happened: their memory knows better
            raise
        return [TrainReply(task.client, each.model) for task, each in zip(tasks, trained, strict=True)]

    def _witnesses(self, works: Sequence[LocalRound], trained: Sequence[Trained]) -> list[tuple[Id, int, bytes]]:
        return [
            (work.client, work.round, self._client(work.client).witness(work.round, each.checksum))
            for work, each in zip(works, trained, strict=True)
            if each.checksum is not None
        ]

    def repeats(self, task: TrainTask, leaving: Collection[Id] = ()) -> bool | None:
        noted = self.memory.witnesses(task.client).get(task.round)
        if noted is None:
            return None
        client = self._client(task.client)
        checksum = self._train_one(client.first_steps(task, leaving)).checksum
        return checksum is not None and client.witness(task.round, checksum) == noted

    def get_ready(self, round_: int, client: Id) -> None:
        self._client(client).get_ready(round_)

    def _train_all(self, works: Sequence[LocalRound], meanwhile: Iterator[None]) -> list[Trained]:  # noqa: ARG002 (never idle)
        return [self._train_one(work) for work in works]

    def _train_one(self, work: LocalRound) -> Trained:
        try:
            return self._learner.train(work)
        except FedForgetError:
            raise
        except Exception as error:
            remedy = shortage.REMEDY if shortage.is_lack_of_memory(error) else "correct the model or the data"
            raise TrainingFailed(
                f"client {shown(work.client)} failed in round {work.round}: {type(error).__name__}: {error}",
                hint=f"{remedy} and give the same command again",
            ) from error

    def close(self) -> None:
        """There is nothing to end."""

    def what_would_change(self, queries: Sequence[ForgetQuery]) -> list[ForgetReply]:
        return [self._client(query.client).what_would_change(query) for query in queries]

    def what_would_join(self, queries: Sequence[JoinQuery]) -> list[JoinReply]:
        return [self._client(query.client).what_would_join(query) for query in queries]

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        self.memory.remove(orders)
        for order in orders:
            if order.samples is None:
                self._clients.pop(order.client, None)
            elif order.client in self._clients:
                self._clients[order.client].remove(order.samples)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        self.memory.join(newcomers)
        for new in newcomers:
            self._clients.pop(new.client, None)

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        self.memory.reseed(seeds)
        self._clients.clear()

    def rewind(self, rounds_done: int) -> None:
        last_step = rounds_done * self._plan.local_steps
        self.memory.rewind(rounds_done, last_step)
        for client in self._clients.values():
            client.rewind(last_step)

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
