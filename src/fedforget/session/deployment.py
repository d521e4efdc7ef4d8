"""A session on a run whose clients are on other machines: what clients ask for is carried out at every contact."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, id_block
from fedforget.algorithm.learn import Server
from fedforget.algorithm.ports import Enrolled, Newcomer, State, TrainReply
from fedforget.algorithm.seeds import SeedSource
from fedforget.disk.ed25519 import honest_key
from fedforget.errors import InvalidInput, RunDamaged, SignatureRefused, shown
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.federation.remote import RemoteFederation
from fedforget.federation.standing import standing_in
from fedforget.federation.traffic import Traffic
from fedforget.federation.wires import AttentiveWire, CountingWire, GuardedWire, Signatures, SignedWire, Wire
from fedforget.requests.lifecycle import Basis, Receipt, Submission
from fedforget.requests.processor import Processor
from fedforget.requests.targets import attach_known_targets
from fedforget.session.guard import LearnersElsewhere
from fedforget.session.on_demand import EngineOnDemand
from fedforget.session.options import OtherEnvironment, RoundOptions
from fedforget.session.session import Session
from fedforget.session.status import Status
from fedforget.session.told import Told
from fedforget.session.work import RunWork
from fedforget.store.run_directory import OpenRun

if TYPE_CHECKING:
    from fedforget.session.engine import Engine

log = logging.getLogger("fedforget")
_AS_GIVEN = RoundOptions()

MakeWire = Callable[[OpenRun, Signatures], contextlib.AbstractContextManager[Wire]]


@dataclass(slots=True)
class Deployment:
    """Work on a run that this process has open for writing, with clients that it reaches over a wire."""

    run: OpenRun
    federation: RemoteFederation
    told: Told
    session: Session
    traffic: Traffic

    @classmethod
    @contextlib.contextmanager
    def on(
        cls, run: OpenRun, make_wire: MakeWire, make_engine: Callable[[], Engine], options: RoundOptions = _AS_GIVEN
    ) -> Iterator[Deployment]:
        """Start a session, and ask every client that can be reached how it stands."""
        told, traffic = Told(run), Traffic()
        with contextlib.ExitStack() as stack:
            engine = EngineOnDemand(make_engine, stack)
            engine()
            signatures = Signatures(lambda client: public_key_of(run, client))
            carried = CountingWire(stack.enter_context(make_wire(run, signatures)), traffic)
            wire = GuardedWire(SignedWire(carried, signatures), told.problems)
            server, federation = _server_of(run, wire, engine, told, options)
            stack.callback(federation.close)
            work = RunWork(
                engine, run, server, options, guard=LearnersElsewhere(server, told.present, options), inbox=told
            )
            found = cls(run, federation, told, Session(run, engine, work.processor(), work), traffic)
            found.meet()
            yield found

    @property
    def _processor(self) -> Processor:
        return self.session.processor

    # Contact

    def meet(self) -> None:
        """Ask every node who it is, give the plan to clients that lack it, and tell clients that left that they did."""
        answers = self.federation.everyone()
        self._examine(answers)
        plan = self.run.file
        without = [
            parcels.client_in(each)
            for each in answers
            if "plan" in each.body and each.body["plan"] != plan.digest and self._takes_part(each)
        ]
        self.told.problems.update(self.federation.give_plan(without, plan.encode().decode()))
        self.federation.met(answers)
        self._processor.accept_inbox()
        self._tell_finished()

    def _examine(self, answers: Sequence[Parcel]) -> None:
        ahead = self._processor.server.drawn_after(self.run.server.rounds_done) if answers else ()
        for answer in answers:
            client = parcels.client_in(answer)
            self.told.examine(client, standing_in(answer, client), may_be_ahead=client in ahead)

    def _takes_part(self, answer: Parcel) -> bool:
        return parcels.client_in(answer) in self.run.server.roster and not answer.body.get("gone")

    def _serve(self) -> None:
        """Let clients in that enrolled, and carry out what clients ask for, until none asks for more."""
        while True:
            newcomers = [*self._enrolled(), *self.told.newcomers()]
            wanted = {} if self.run.record.policy.collects else self.told.waiting()
            if not newcomers and not wanted and not self.told:
                break
            self._processor.accept_inbox()
            self._processor.forget(wanted)
            self._processor.add(newcomers, _added(newcomers))
            self._processor.finish()
        self._processor.finish()
        self._tell_finished()

    def _enrolled(self) -> list[Newcomer]:
        waiting = self.run.remote.contacts.waiting(self.run.server.roster)
        return [Newcomer(each.client, None, (), Enrolled(each.commitment, each.root)) for each in waiting]

    def _tell_finished(self) -> None:
        """Tell clients what is carried out and purged. One that this does not reach asks again."""
        for identifier, by_client in self.told.finished().items():
            missed = self.federation.done(by_client, self._facts(identifier))
            for client in by_client.keys() - set(missed):
                self.told.knows(client, by_client[client])
        if self.run.record.batches.are_unfinished:
            return  # what a client that left held may not be purged yet
        left = self.federation.removed & set(self.federation.undelivered)
        missed = self.federation.done({client: [] for client in sorted(left, key=id_block)}, self._facts(""))
        for client in left - set(missed):
            self.federation.undelivered.discard(client)

    def _facts(self, identifier: str) -> dict[str, Any]:
        server = self.run.server
        model = server.model_digest() if len(server.roster) else None
        return {"rounds_done": server.rounds_done, "model_digest": model, "server_receipt": identifier or None}

    # Work

    def train(self, goal: int) -> Status:
        """Finish what was begun and what clients ask for, then train up to round ``goal``. Requests may come between.

        A client's request that comes with a reply is carried out after its round.
        """
        self._processor.finish()
        self._serve()
        while self.run.server.rounds_done < goal and len(self.run.server.roster):
            self._processor.learn(goal, stop_on_arrival=True)
            self._serve()
        return self.session.train(goal)

    def forget(self, submission: Submission) -> list[Receipt]:
        """Erase clients, all or none, and return the receipts. Samples are erased at their clients."""
        if submission.new_seed:
            raise InvalidInput(
                "each client of a deployment makes its own seed, so new seeds cannot be drawn here",
                hint="start a new run, with clients that are initialised anew",
            )
        silent = {each.client for each in self.run.remote.contacts.silences()}
        if any(request.client in silent for request in submission.requests):
            self._processor.begin(submission)  # what was begun before may wait for that client
        ids = self._processor.submit(submission)
        self._processor.finish()
        self._tell_finished()
        book = self.run.record.book
        receipts = attach_known_targets(book, book.receipts_of(ids), submission.requests)
        self._serve()
        return receipts

    def add(self, targets: Sequence[Request], *, returning: bool, seeds: SeedSource, basis: str) -> Status:  # noqa: ARG002
        """Refuse: clients add their own samples, and new clients enroll."""
        raise InvalidInput(
            f"the clients of {self.run.path} add their samples themselves",
            hint="at the client: `fedforget client sync`; a new client: `fedforget enroll RUN FILE`",
        )

    def run_pending(self, *, everything: bool = False) -> list[Receipt]:
        """Carry out all pending requests, also those that clients tell of. Under ``batch`` only once they are due."""
        receipts = self.session.run_pending(everything=everything)
        self._serve()
        return receipts


def _added(newcomers: Sequence[Newcomer]) -> dict[str, Any]:
    return {
        "clients": sum(new.enrolled is not None for new in newcomers),
        "samples": None,  # only clients know how many
        "returning": False,
        "basis": Basis.EXOGENOUS,
    }


def _server_of(
    run: OpenRun, wire: Wire, engine: EngineOnDemand, told: Told, options: RoundOptions
) -> tuple[Server, RemoteFederation]:
    contacts = run.remote.contacts

    def leaving() -> set[Id]:
        return {each for intent in run.record.batches.unfinished() for each in intent.decision.leaving}

    federation = RemoteFederation(
        AttentiveWire(wire, contacts),
        run_id(run),
        contacts,
        lambda round_: server.drawn_after(round_),  # noqa: PLW0108 (the server comes later)
        undelivered=contacts.undelivered,
        leaving=leaving,
        silent=lambda: [each.client for each in contacts.silences()],
        listener=told,
        accept_mixed=options.other_environment is OtherEnvironment.ACCEPT,
        until_done=True,
    )

    def aggregate(state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State:
        return engine().aggregator()(state, slots, replies)

    server = Server(run.file.plan, PrfPriorities(run.server.seed.value), run.server, federation, aggregate)
    return server, federation


def run_id(run: OpenRun) -> str:
    """Return the id by which clients know a run: the first link of its event chain, which receipts name, too."""
    return run.record.chain.first().hash.hex()


def public_key_of(run: OpenRun, client: Id) -> Ed25519PublicKey | None:
    """Return the key that a client enrolled with. Raise SignatureRefused if the run does not know it."""
    known = run.remote.contacts.enrolment(client)
    if known is None:
        raise SignatureRefused(f"client {client} is not enrolled", hint="enter it with `fedforget enroll RUN FILE`")
    try:
        return None if known.public_key is None else honest_key(known.public_key)
    except ValueError as error:
        path = run.remote.contacts.database.path
        raise RunDamaged(f"{path} is damaged: client {shown(client)} has {error}") from error
