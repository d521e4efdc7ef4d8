"""A session: one opening of a run, with one federation, on which a command trains, forgets and adds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from fedforget.algorithm.forget import Request
from fedforget.algorithm.seeds import SeedSource
from fedforget.errors import InvalidInput
from fedforget.federation.traffic import Traffic
from fedforget.requests.lifecycle import Receipt, Submission
from fedforget.requests.processor import Processor
from fedforget.requests.targets import attach_known_targets, attach_targets
from fedforget.session.guard import WitnessGuard
from fedforget.session.newcomers import newcomers_of
from fedforget.session.on_demand import EngineOnDemand, server_of
from fedforget.session.options import RoundOptions
from fedforget.session.status import Status, status_of, withdrawn_error
from fedforget.session.work import RunWork
from fedforget.store.run_directory import OpenRun

if TYPE_CHECKING:
    from fedforget.session.engine import Engine

log = logging.getLogger("fedforget")
_AS_GIVEN = RoundOptions()


@dataclass(slots=True)
class Session:
    """Work on a run that this process has open for writing."""

    run: OpenRun
    engine: EngineOnDemand
    processor: Processor
    work: RunWork

    @classmethod
    @contextlib.contextmanager
    def on(
        cls,
        run: OpenRun,
        make_engine: Callable[[], Engine],
        options: RoundOptions = _AS_GIVEN,
        *,
        data_checked: bool = False,
    ) -> Iterator[Session]:
        """Start a session and accept the inbox. ``data_checked``: the data are known to be what the run began with.

        The engine is made when a round has to be computed, and not at all for requests that change no draw.
        """
        with contextlib.ExitStack() as stack:
            engine = EngineOnDemand(make_engine, stack)
            if run.crashed or options.eval_every is not None:
                engine()  # it will be needed: refuse a missing model or dataset before anything changes
            server = stack.enter_context(server_of(run, engine, data_checked=data_checked))
            guard = WitnessGuard(engine, run, server, options)
            work = RunWork(engine, run, server, options, guard, run.inbox)
            processor = work.processor()
            processor.accept_inbox()
            yield cls(run, engine, processor, work)

    def train(self, goal: int) -> Status:
        """Finish interrupted requests, then train up to round ``goal``."""
        self.engine()  # raises if the model is not the run's, also where no round is left to compute
        self.processor.finish()
        if not len(self.run.server.roster):
            raise withdrawn_error(self.run.path)
        if self.run.server.rounds_done < goal:
            self.processor.learn(goal)
        else:
            self.run.server.load(self.run.server.rounds_done)  # raises if the model is torn
        log.info("trained %s to round %d", self.run.path, self.run.server.rounds_done)
        self.work.measure()
        return status_of(self.run)

    def forget(self, submission: Submission) -> list[Receipt]:
        """Carry out requests, all or none, and return their receipts."""
        ids = self.processor.submit(submission)
        self.processor.finish()
        book = self.run.record.book
        log.info("carried out %d requests on %s", len(ids), self.run.path)
        return attach_known_targets(book, book.receipts_of(ids), submission.requests)

    def run_pending(self, *, everything: bool = False) -> list[Receipt]:
        """Carry out all pending requests with a single rewind. Under the policy ``batch`` only once they are due."""
        record = self.run.record
        book, pending = record.book, record.book.pending()
        carried_out: dict[str, Request | None] = {  # including interrupted ones
            identifier: request
            for intent in record.batches.unfinished()
            for identifier, request in zip_longest(intent.ids, intent.decision.requests)  # no targets while purging
        }
        if everything or record.policy.is_due(book.receipts_of(list(pending))):
            self.processor.forget(pending)
            carried_out |= pending
        self.processor.finish()
        log.info("carried out %d requests on %s", len(carried_out), self.run.path)
        return [
            receipt if request is None else attach_targets([receipt], [request])[0]
            for receipt, request in zip(book.receipts_of(list(carried_out)), carried_out.values(), strict=True)
        ]

    def add(self, targets: Sequence[Request], *, returning: bool, seeds: SeedSource, basis: str) -> Status:
        """Add clients and samples of the data, as if they had been there from the beginning."""
        self.processor.finish()
        if seeds.origin == "given" and seeds.server().commitment != self.run.file.server_commitment:
            raise InvalidInput("this is not the seed that the run was made with", hint="leave it out")
        newcomers = newcomers_of(self.run, self.engine().data, targets, returning=returning, seeds=seeds)
        added = {
            "clients": sum(new.seed is not None for new in newcomers),
            "samples": sum(len(new.samples) for new in newcomers),
            "returning": returning,
            "basis": basis,
        }
        self.processor.add(newcomers, added)
        self.processor.finish()
        log.info("added %d clients and %d samples to %s", added["clients"], added["samples"], self.run.path)
        self.work.measure_if_comparable()
        return status_of(self.run)

    @property
    def traffic(self) -> Traffic:
        """The bytes of the messages to the nodes of a Flower simulation, so far."""
        return self.engine().traffic if self.engine.is_built else Traffic()
