"""A deployment in one process: a real remote run, an in-process Flower, and clients that keep what they hold in memory.

The clients have the seeds, the samples and the keys of labels that one process would have, so that states are equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, id_block
from fedforget.algorithm.memory import ClientsInMemory
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import LocalLearner
from fedforget.algorithm.seeds import SeedSource
from fedforget.data.federated import FederatedData
from fedforget.evidence.remote_replay import rounds_of_clients, verify_remote
from fedforget.evidence.replay import Verification
from fedforget.federation.flower.grid import GridWire
from fedforget.federation.flower.post import GridPost
from fedforget.federation.ledger import LedgerInMemory
from fedforget.federation.party import ClientParty, EpochInMemory
from fedforget.federation.standing import ClientRequest
from fedforget.federation.wires import Signatures, Wire
from fedforget.requests.lifecycle import Basis, Receipt, Submission
from fedforget.run import OWN
from fedforget.session.deployment import Deployment, run_id
from fedforget.session.engine import Engine, Model
from fedforget.session.options import RoundOptions
from fedforget.session.reaching import replaying
from fedforget.session.starting import create_remote_run
from fedforget.session.status import Status, status_of
from fedforget.session.workforce import Workforce
from fedforget.store import run_directory
from fedforget.store.books.tree import sample_key
from fedforget.store.contacts import EnrolledClient
from fedforget.store.plan_file import PlanFile
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest
from fedforget.training.local_sgd import TorchLearner
from tests.federation.flower_in_process import Clock, InProcessGrid, OwnPart, app_of
from tests.requests.world import DATA, PLAN, model

RECEIVED = "2026-01-31T12:00:00.000+00:00"


class Deployed:
    """A remote run at ``path`` and its clients.

    ``clients``: those that are enrolled at the start. ``later``: samples that clients do not have yet.
    """

    def __init__(
        self,
        path: Path,
        plan: Plan = PLAN,
        *,
        clients: Sequence[Id] | None = None,
        later: Mapping[Id, Sequence[Id]] | None = None,
        seed: Any = 1,
        signed: bool = True,
    ) -> None:
        self.path, self.plan, self.data = path, plan, FederatedData(DATA)
        self.later = later or {}
        self.seeds, self.model = SeedSource(seed), Model.of(model())
        self.keys: dict[Id, Ed25519PrivateKey] = {client: Ed25519PrivateKey.generate() for client in DATA}
        self.signed = signed
        self.patience = 60.0
        wanted = PlanFile(plan, self.model.described(OWN), OWN, b"", self.model.structure)
        self.members = self.data.members(())
        enrolled = list(DATA) if clients is None else list(clients)
        self._ledgers: dict[Id, LedgerInMemory] = {}
        self.memory = ClientsInMemory({}, {}, {})
        for client in DATA:
            self.provision(client)
        create_remote_run(path, wanted, self.model, self.seeds, [self.enrolment(client) for client in enrolled])
        with run_directory.reading(path) as run:
            self.run_id = run_id(run)
        learner = TorchLearner(self.model.module, self.data, plan.local, None, self.model.pristine)
        self.epochs: dict[Id, EpochInMemory] = {client: EpochInMemory() for client in DATA}
        self.grid = InProcessGrid({100 + place: app_of(self.party(each, learner)) for place, each in enumerate(DATA)})
        self.learner = learner
        self.clock = Clock()

    def provision(self, client: Id) -> None:
        """Give a client what it would have on its own machine."""
        seed, ids = self.seeds.client(client), self.members[client]
        self.memory._seeds[client], self.memory._commitments[client] = seed.value, seed.commitment
        self.memory._first[client], self.memory._witnesses[client] = {}, {}
        contents = dict(self.data.contents(client, list(ids)))
        self.memory._samples[client] = ids.without(self.later.get(client, ()))
        key = sample_key(self.seeds.tree_key(), id_block(client))
        self._ledgers[client] = LedgerInMemory(client, OwnPart(self.memory, client), key, contents)

    def ledger(self, client: Id) -> LedgerInMemory:
        return self._ledgers[client]

    def party(self, client: Id, learner: LocalLearner) -> ClientParty:
        return ClientParty(
            self.run_id, client, self.plan, OwnPart(self.memory, client), learner, self.epochs[client],
            ledger=self._ledgers[client], key=self.keys[client] if self.signed else None,
        )  # fmt: skip

    def learner_of(self, client: Id, loss: Any) -> None:
        """Let a node compute with another loss."""
        learner = TorchLearner(self.model.module, self.data, self.plan.local, loss, self.model.pristine)
        self.grid.apps[self.node_of(client)] = app_of(self.party(client, learner))

    def enrolment(self, client: Id) -> EnrolledClient:
        standing = self._ledgers[client].standing()
        assert standing.root is not None
        assert standing.commitment is not None
        key = self.keys[client].public_key().public_bytes_raw() if self.signed else None
        return EnrolledClient(client, standing.commitment, standing.root, key)

    def enrolment_of_new(self, client: Id) -> EnrolledClient:
        """Return the enrolment of a client that is set up anew, with the seed that it had."""
        if client not in self.memory.commitments():
            self.provision(client)
            self.grid.apps[self.node_of(client)] = app_of(self.party(client, self.learner))
        return self.enrolment(client)

    def withdraw(self, client: Id, *samples: Id, number: int = 1, basis: str = "exogenous", whole: bool = False) -> str:
        """Make a request at a client. Return its handle."""
        handle = f"{number:032x}"
        self._ledgers[client].withdraw(ClientRequest(handle, basis, None, RECEIVED, whole), samples)
        return handle

    # What the server does

    @contextlib.contextmanager
    def wire(self, run: OpenRun, signatures: Signatures) -> Iterator[Wire]:
        nodes = run.remote.contacts.nodes if run.is_open_to_write else dict(run.remote.contacts.nodes)
        yield GridWire(
            GridPost(self.grid), nodes, patience=self.patience, introduction=5, poll=1,
            clock=self.clock.now, wait=self.clock.wait, client_of=signatures.client_of,
        )  # fmt: skip

    def engine(self) -> Engine:
        file = PlanFile.read(self.path)
        return Engine.of_run(file, self.path, self.model, FederatedData({}), Workforce())

    @contextlib.contextmanager
    def session(self, options: RoundOptions | None = None) -> Iterator[Deployment]:
        with (
            run_directory.writing(self.path) as run,
            Deployment.on(run, self.wire, self.engine, options or RoundOptions()) as deployment,
        ):
            yield deployment

    def train(self, until: int | None = None) -> Status:
        with self.session() as session:
            return session.train(self.plan.rounds if until is None else until)

    def forget(self, *requests: Request, basis: Basis = Basis.EXOGENOUS) -> list[Receipt]:
        with self.session() as session:
            return session.forget(Submission.of(requests, basis))

    def run_pending(self, *, everything: bool = False) -> list[Receipt]:
        with self.session() as session:
            return session.run_pending(everything=everything)

    def verify(self) -> Verification:
        with run_directory.reading(self.path, skip_seed_check=True) as run:
            engine = self.engine()
            with engine.computing(), replaying(run, self.wire, rounds_of_clients(run)) as federation:
                return verify_remote(run, federation, engine.aggregator())

    def status(self) -> Status:
        with run_directory.reading(self.path, only_idle=False) as run:
            return status_of(run)

    def digest(self) -> str:
        with run_directory.reading(self.path) as run:
            return state_digest(run)

    def receipts(self) -> list[Receipt]:
        with run_directory.reading(self.path, only_idle=False) as run:
            return run.record.book.receipts()

    def node_of(self, client: Id) -> int:
        return 100 + [*map(str, DATA)].index(str(client))

    def silence(self, *clients: Id) -> None:
        """Let these clients not answer from now on; no names: all answer."""
        nodes = {self.node_of(client) for client in clients}
        self.grid.fault = lambda message: None if message.metadata.dst_node_id in nodes else message

    def silence_at_removal(self, client: Id) -> None:
        """Let a client answer what would change, and not the order to remove."""

        def fault(message: Any) -> Any:
            body = str(message.content.config_records["fedforget"]["body"])
            return None if message.metadata.dst_node_id == self.node_of(client) and '"remove"' in body else message

        self.grid.fault = fault
