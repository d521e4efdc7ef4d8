"""A session on a run whose clients are on other machines: client requests are carried out at every contact."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import Server
from fedforget.algorithm.ports import Enrolled, Newcomer, State, TrainReply
from fedforget.algorithm.seeds import SeedSource
from fedforget.disk.ed25519 import honest_key
from fedforget.errors import InvalidInput, RunDamaged, SignatureRefused, shown
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.federation.remote import Absences, RemoteFederation
from fedforget.federation.standing import standing_in
from fedforget.federation.traffic import Traffic
from fedforget.federation.wires import AttentiveWire, CountingWire, GuardedWire, Signatures, SignedWire, Wire
from fedforget.requests.lifecycle import Basis, Receipt, Submission
from fedforget.requests.processor import Processor
from fedforget.requests.targets import attach_known_targets
from fedforget.session.client_reports import ClientReports
from fedforget.session.guard import LearnersElsewhere
from fedforget.session.on_demand import EngineOnDemand
from fedforget.session.options import OtherEnvironment, RoundOptions
from fedforget.session.session import Session
from fedforget.session.status import Status
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
    reports: ClientReports
    session: Session
    traffic: Traffic

    @classmethod
    @contextlib.contextmanager
    def on(
        cls, run: OpenRun, make_wire: MakeWire, make_engine: Callable[[], Engine], options: RoundOptions = _AS_GIVEN
    ) -> Iterator[Deployment]:
        """Start a session, and ask every reachable client for its report."""
        reports, traffic = ClientReports(run), Traffic()
        with contextlib.ExitStack() as stack:
            engine = EngineOnDemand(make_engine, stack)
            engine()
            signatures = Signatures(lambda client: public_key_of(run, client), reports.impostors)
            carried = CountingWire(stack.enter_context(make_wire(run, signatures)), traffic)
            wire = GuardedWire(SignedWire(carried, signatures), reports.problems)
            server, federation = _server_of(run, wire, engine, reports, options)
            stack.callback(federation.close)
            work = RunWork(
                engine, run, server, options, guard=LearnersElsewhere(server, reports.present, options), inbox=reports
            )
            found = cls(run, federation, reports, Session(run, engine, work.processor(), work), traffic)
            found.meet()
            yield found

    @property
    def _processor(self) -> Processor:
        return self.session.processor

    # Contact

    def meet(self) -> None:
        """Ask every node who it is, and send the plan to clients that lack it.

        Also tell erased clients that they were erased, and clients which of their requests are finished.
        """
        answers = self.federation.everyone()
        self._examine(answers)
        examined = {parcels.client_in(each) for each in answers}
        plan = self.run.file
        without = [
            parcels.client_in(each)
            for each in answers
            if "plan" in each.body and each.body["plan"] != plan.digest and not each.body.get("gone")
        ]
        if without:
            joining = {each.client for each in self.run.remote.contacts.waiting(self.run.server.roster)}
            without = [client for client in without if client in self.run.server.roster or client in joining]
        self.reports.problems.update(self.federation.give_plan(without, plan.encode().decode()))
        self.reports.note_problems(examined)
        self.federation.met(answers)
        self._processor.accept_inbox()
        self._tell_finished()

    def _examine(self, answers: Sequence[Parcel]) -> None:
        ahead = self._processor.server.drawn_after(self.run.server.rounds_done) if answers else ()
        for answer in answers:
            client = parcels.client_in(answer)
            self.reports.examine(client, standing_in(answer, client), may_be_ahead=client in ahead)

    def _serve(self) -> None:
        """Add enrolled clients and carry out client requests until none is pending."""
        while True:
            newcomers = [*self._enrolled(), *self.reports.newcomers()]
            self.reports.begin_additions()
            wanted = {} if self.run.record.policy.collects else self.reports.waiting()
            if not newcomers and not wanted and not self.reports:
                break
            self._processor.accept_inbox()
            self._processor.forget(wanted)
            self._processor.add(newcomers, _added(newcomers))
            self._processor.finish()
        self._processor.finish()
        self._tell_finished()

    def _enrolled(self) -> list[Newcomer]:
        """Return the enrolled clients that have answered and taken the plan. Others join at a later contact."""
        ready = self.reports.present - self.reports.problems.keys()
        waiting = [each for each in self.run.remote.contacts.waiting(self.run.server.roster) if each.client in ready]
        return [Newcomer(each.client, None, (), Enrolled(each.commitment, each.root)) for each in waiting]

    def _tell_finished(self) -> None:
        """Tell clients which requests are purged. An unreachable client repeats its request at the next contact."""
        for identifier, by_client in self.reports.finished().items():
            missed = self.federation.done(by_client, partial(self._facts_of, identifier))
            for client in by_client.keys() - set(missed):
                self.reports.confirmed(client, by_client[client])
        if self.run.record.batches.are_unfinished:
            return  # an erased client's data may not be purged yet
        self.federation.finish_erasures(partial(self._facts_of, ""))

    def _facts_of(self, identifier: str, client: Id) -> dict[str, Any]:
        """Return what a client notes about a request that is carried out: its own receipt names the server's.

        ``identifier``: empty for a client that leaves, whose own request is named.
        """
        server, book = self.run.server, self.run.record.book
        identifier = identifier or book.id_of_exactly(Request(client)) or ""
        model = server.model_digest() if len(server.roster) else None
        return {"rounds_done": server.rounds_done, "model_digest": model, "server_receipt": identifier or None}

    # Work

    def train(self, goal: int) -> Status:
        """Finish begun requests and client requests, then train up to round ``goal``.

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
        """Carry out all pending requests, also those of clients. Under ``batch`` only once they are due."""
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
    run: OpenRun, wire: Wire, engine: EngineOnDemand, reports: ClientReports, options: RoundOptions
) -> tuple[Server, RemoteFederation]:
    contacts = run.remote.contacts

    def leaving() -> set[Id]:
        return {each for intent in run.record.batches.unfinished() for each in intent.decision.leaving}

    federation = RemoteFederation(
        AttentiveWire(wire, contacts),
        run_id(run),
        contacts,
        lambda round_: server.drawn_after(round_),  # noqa: PLW0108 (the server comes later)
        Absences(contacts.undelivered, leaving, lambda: [each.client for each in contacts.silences()], until_done=True),
        listener=reports,
        accept_mixed=options.other_environment is OtherEnvironment.ACCEPT,
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
