"""A deployment without its network: clients with state directories on disk, and a server that reaches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request, forget
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.join import join
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.memory import ServerInMemory
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Newcomer
from fedforget.algorithm.seeds import SeedSource
from fedforget.client_side import ClientState, open_client
from fedforget.client_side.opened import Learning, OpenClient
from fedforget.errors import FedForgetError
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.federation.party import EpochInMemory
from fedforget.federation.remote import RemoteFederation
from fedforget.federation.signing import verified
from fedforget.federation.standing import Standing, addition_id, standing_in, withdrawal_id
from fedforget.store.plan_file import PlanFile
from tests.helpers import HistoryIsTheModel, World

RUN = "run-1"
PLAN = Plan(clients_per_round=3, batch_size=2, local_steps=2, rounds=6)
HERE = {"torch": "2", "numpy": "2", "processor": "a", "threads": "1", "vectors": "avx2", "variables": "", "probe": "p"}


def samples_of(ids: Sequence[Id], version: int = 0) -> dict[Id, tuple[np.ndarray, int]]:
    """A dataset with content that tells an id and a version."""
    return {each: (np.frombuffer(f"{each!r}/{version}".encode().ljust(32), np.uint8), 1) for each in ids}


def learning(_: OpenClient | None = None, **changes: str) -> Learning:
    return Learning(HistoryIsTheModel(), {"loss": "none"}, lambda: {**HERE, **changes})


def plan_file(plan: Plan = PLAN) -> PlanFile:
    return PlanFile(plan, {"name": "own"}, {"name": "own"}, bytes(32), {"w": "parameter float32 2"})


def answer(state: ClientState, asked: Parcel, how: Callable[[OpenClient], Learning] = learning) -> Parcel:
    """Hand a message to a client as its ClientApp does, and verify the signature."""
    with open_client(state.path) as client:
        answered = client.answer(asked, how)
        key = client._state.key().public_key()
    return verified(key, asked, answered)


def ask(state: ClientState, kind: str, epoch: int | None = None, **fields: Any) -> Parcel:
    """Ask in an epoch; None: the latest that the client knows."""
    known = state.status().epoch if epoch is None else epoch
    return answer(state, parcels.request(RUN, known, kind, state.client, fields.pop("model", None), **fields))


class Nodes:
    """A ``Wire`` to state directories. ``fate`` decides what happens to a message."""

    def __init__(self, clients: Mapping[Id, ClientState]) -> None:
        self.clients = clients
        self.sent: list[tuple[Id, Parcel]] = []
        self.standing: dict[Id, Standing] = {}

    def everyone(self, asked: Parcel) -> list[Parcel]:
        return [answer(state, asked) for state in self.clients.values()]

    def exchange(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        return [self._one(client, parcel) for client, parcel in asked]

    def _one(self, client: Id, parcel: Parcel) -> Parcel:
        self.sent.append((client, parcel))
        found = answer(self.clients[client], parcel)
        if "error" not in found.body:
            self.standing[client] = standing_in(found, client)
        return found

    def close(self) -> None: ...


class Deployment:
    """A server in memory and clients on disk."""

    def __init__(self, directory: Path, world: World, plan: Plan = PLAN, seed: object = 4) -> None:
        self.plan = plan
        self.clients = {
            client: ClientState.init(directory / f"client-{number}", client, samples_of(ids), seed=str(seed))
            for number, (client, ids) in enumerate(world.items())
        }
        self.nodes = Nodes(self.clients)
        self.epoch = EpochInMemory()
        federation = RemoteFederation(
            self.nodes,
            RUN,
            self.epoch,
            lambda round_: self.server.drawn_after(round_),  # noqa: PLW0108 (the server comes later)
            check=lambda *_: None,
        )
        memory = ServerInMemory(plan, IdSet(world), HistoryIsTheModel.initial())
        seeds = SeedSource(str(seed))
        self.server = Server(plan, PrfPriorities(seeds.server().value), memory, federation, HistoryIsTheModel())
        for client in self.clients:
            self.say(client, parcels.PLAN, plan=plan_file(plan).encode().decode())

    def say(self, client: Id, kind: str, **fields: Any) -> Parcel:
        asked = parcels.request(RUN, self.epoch.now(), kind, client, **fields)
        found = self.nodes._one(client, asked)
        failed = parcels.error_in(found, client)
        if failed is not None:
            raise failed
        return found

    def learn(self, until: int) -> None:
        learn(self.server, until)

    def meet(self) -> None:
        """Ask every client how it stands, and carry out what they want, as the server of a deployment does."""
        asked, handles = [], dict[Id, list[str]]()
        for client in self.server.memory.roster:
            self.say(client, parcels.PRESENCE)
            for each in self.nodes.standing[client].withdrawals:
                asked.append(Request(client) if each.whole else Request(client, withdrawal_id(each.handle)))
                handles.setdefault(client, []).append(each.handle)
        if asked:
            forget(self.server, asked)
        self.done(handles)
        self.let_join()

    def done(self, handles: Mapping[Id, list[str]]) -> None:
        for client, own in handles.items():
            facts = {"rounds_done": self.server.memory.rounds_done, "model_digest": "ab" * 32, "server_receipt": "r-1"}
            self.say(client, parcels.DONE, handles=own, facts=facts)

    def let_join(self) -> None:
        newcomers = []
        for client in self.server.memory.roster:
            self.say(client, parcels.PRESENCE)
            new = tuple((addition_id(each.handle), b"") for each in self.nodes.standing[client].additions)
            newcomers += [Newcomer(client, None, new)] if new else []
        if newcomers:
            join(self.server, newcomers)
