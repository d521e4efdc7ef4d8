"""Flower without its processes: a Grid that calls ClientApps, and loses, repeats, delays and reorders on request."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.memory import ClientsInMemory
from fedforget.algorithm.plan import LocalOptimizer, Plan
from fedforget.algorithm.ports import LocalLearner, Newcomer, RemoveOrder
from fedforget.algorithm.seeds import Seed
from fedforget.federation import local_rounds
from fedforget.federation.flower.client import Compute, client_app_of
from fedforget.federation.flower.grid import GridWire
from fedforget.federation.flower.nodes import GridNodes
from fedforget.federation.flower.post import GridPost
from fedforget.federation.flower.trainer import FlowerTrainer
from fedforget.federation.learner_failures import as_training_failed
from fedforget.federation.parcels import Parcel, require_like
from fedforget.federation.party import ClientParty, EpochInMemory
from fedforget.federation.remote import RemoteFederation

RUN = "a-run"


class OwnPart:
    """The part of a shared memory that belongs to one client: what a client's own machine holds."""

    def __init__(self, memory: ClientsInMemory, client: Id) -> None:
        self._memory, self._client = memory, client

    def commitments(self) -> Mapping[Id, bytes]:
        return {client: each for client, each in self._memory.commitments().items() if client == self._client}

    def samples(self, client: Id) -> IdSet:
        return self._memory.samples(client)

    def first_steps(self, client: Id) -> Mapping[Id, int]:
        return self._memory.first_steps(client)

    def seed(self, client: Id) -> bytes:
        return self._memory.seed(client)

    def witnesses(self, client: Id) -> Mapping[int, bytes]:
        return self._memory.witnesses(client)

    def note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]] = ()) -> None:
        self._memory.note(uses, witnesses)

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        self._memory.remove(orders)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        self._memory.join(newcomers)

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        self._memory.reseed(seeds)

    def rewind(self, rounds_done: int, last_step: int) -> None:
        if self._client in self._memory.commitments():
            self._memory.rewind_client(self._client, rounds_done, last_step)


Fault = Callable[[Message], Message | Error | None]


class InProcessGrid(Grid):
    """Calls each node's ClientApp when a reply is pulled. ``fault`` may return an error, or None for no answer yet."""

    def __init__(self, apps: Mapping[int, ClientApp], node_configs: Mapping[int, Any] | None = None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.apps = dict(apps)
        self._configs = node_configs or {}
        self.fault: Fault = lambda message: message
        self.deliver_twice = self.newest_first = False
        self.delivered: list[Message] = []
        self._numbers = itertools.count(1)
        self._sent: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError  # the deployed Grid sleeps for seconds in it

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        identifiers = []
        for message in messages:
            identifier = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = identifier
            self._sent[identifier] = message
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [reply for each in message_ids if each in self._sent and (reply := self._reply(each)) is not None]
        return found[::-1] if self.newest_first else found

    def _reply(self, identifier: str) -> Message | None:
        message = self._sent[identifier]
        outcome = self.fault(message)
        if outcome is None:
            return None
        del self._sent[identifier]
        if isinstance(outcome, Error):
            return Message(outcome, reply_to=message)
        if self.deliver_twice:
            self.deliver(message)
        return self.deliver(message)

    def deliver(self, message: Message) -> Message:
        """Hand a message to its node, as an old one may come late."""
        self.delivered.append(message)
        node = message.metadata.dst_node_id
        config = self._configs.get(node, {"partition-id": list(self.apps).index(node)})
        context = Context(1, node, config, RecordDict(), {})
        try:
            return self.apps[node](message, context)
        except Exception as error:  # noqa: BLE001 (Flower turns it into this error)
            return Message(Error(2, str(error)), reply_to=message)


class Clock:
    """A clock that moves when the wire waits."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += seconds


def app_of(party: ClientParty) -> ClientApp:
    @contextlib.contextmanager
    def opened(_: Context) -> Iterator[ClientParty]:
        yield party

    return client_app_of(opened)


class InNodes:
    """Nodes that compute local rounds for any client, as in a simulation, and a trainer that reaches them."""

    def __init__(self, compute: Compute, *, nodes: int = 3, **others: Any) -> None:
        self.grid = InProcessGrid({100 + place: client_app_of(compute=compute) for place in range(nodes)})
        self.clock = Clock()
        self.nodes = GridNodes(
            GridPost(self.grid),
            patience=60,
            introduction=5,
            poll=1,
            tries=4,
            clock=self.clock.now,
            wait=self.clock.wait,
        )
        self.trainer = FlowerTrainer(self.nodes, LocalOptimizer(), {}, **others)


def computing(learner: LocalLearner) -> Compute:
    """A node's work with any learner."""

    def compute(parcel: Parcel) -> Parcel:
        work = local_rounds.work_in(parcel).work
        with as_training_failed(work):
            return local_rounds.answer(learner.train(work))

    return compute


class InFlower:
    """Every client of a memory as a node of an in-process Flower, and a federation that reaches them."""

    def __init__(
        self,
        plan: Plan,
        memory: ClientsInMemory,
        learner: LocalLearner,
        *,
        check: Any = require_like,
        drawn_after: Callable[[int], Collection[Id]] | None = None,
    ) -> None:
        self.parties = {
            client: ClientParty(RUN, client, plan, OwnPart(memory, client), learner, EpochInMemory(), PrfPriorities)
            for client in memory.commitments()
        }
        apps = [app_of(party) for party in self.parties.values()]
        self.grid = InProcessGrid(dict(enumerate(apps, start=100)))
        self.nodes: dict[Id, int] = {}
        self.clock = Clock()
        wire = GridWire(
            GridPost(self.grid),
            self.nodes,
            patience=60,
            introduction=5,
            poll=1,
            clock=self.clock.now,
            wait=self.clock.wait,
        )
        self.federation = RemoteFederation(
            wire, RUN, EpochInMemory(), drawn_after or (lambda _: list(self.parties)), check=check
        )

    def node_of(self, client: Id) -> int:
        return 100 + list(self.parties).index(client)
