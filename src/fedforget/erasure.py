"""What happens to requests on an open run: taken in, begun with, met by one recomputation for all, purged.

The intent of a batch is committed to the record first. Everything else is applied from it, and may be repeated: any
crash is finished by the next command. Whatever is handed in while a recomputation is under way joins it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedforget.algorithm.forget import Decision, Request, apply, decide
from fedforget.algorithm.ids import Id, id_block
from fedforget.algorithm.join import first_change
from fedforget.algorithm.seeds import SeedSource
from fedforget.engine import Engine, OnRound
from fedforget.environment import environment
from fedforget.errors import InvalidInput, UnknownTarget
from fedforget.store import run_directory
from fedforget.store.batches import Outcome
from fedforget.store.commitments import commitments_digest
from fedforget.store.inbox import Inbox
from fedforget.store.request_book import RequestBook
from fedforget.store.requests import Basis, Intent, Newcomer, Receipt, Stage, Submission, guarantee_of
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest
from fedforget.targets import still_there

_OF_ITS_KEY = "its idempotency key came with other requests before, or with what was cancelled, rejected or undone"


@dataclass(slots=True)
class Erasure:
    """Meets requests on a run that this process has opened to write."""

    engine: Engine
    run: OpenRun
    on_round: OnRound | None = None
    eval_every: int | None = None
    _data_checked: bool = False

    # Taking in

    def submit(self, submission: Submission, *, defer: bool = False, told: bool = False) -> list[str]:
        """Accept requests, all or none, and begin with them unless they are deferred. Returns their ids.

        What is gone already, or waits already, keeps the id it has; ``told``: somebody knows the new one too.
        """
        record = self.run.record
        ids = record.book.ids_of_key(submission)
        if ids is None:
            self.remove_begun()  # a recomputation that was interrupted absorbs the new requests
            try:
                known = self._known(submission.requests)
            except UnknownTarget:
                if defer:
                    self._reject(submission)
                raise
            record.book.ask_again(submission, known.values())
            if defer:
                return record.book.receive(submission, known, told=told)
            waiting = record.book.waiting()
            again = {i: waiting[i] for i in known.values() if i in waiting}  # asked for once more, and at once
            fresh = {i: r for i, r in zip(submission.ids, submission.requests, strict=True) if r not in known}
            wanted = {**again, **fresh}
            new_seed = submission.new_seed and bool(wanted or not self._has_new_seeds_coming())
            if not wanted and not new_seed:
                return record.book.receive(submission, known)
            intent, decided = self._decide(
                wanted, {**waiting, **fresh}, dict.fromkeys(fresh, submission.basis), new_seed
            )
            return record.book.receive(submission, known, partial(record.batches.enter, intent, **decided))
        require_standing(self.run, submission, ids)
        record.book.ask_again(submission, ids)
        if told:
            record.book.also_known_as(submission.ids, ids)
        if not defer:
            waiting = record.book.waiting()
            self.begin({identifier: waiting[identifier] for identifier in ids if identifier in waiting})
        return ids

    def _has_new_seeds_coming(self) -> bool:
        """Whether somebody asked for them and was interrupted: asking again is asking once."""
        return any(intent.reseed is not None for intent in self.run.record.batches.pending())

    def take_in(self, *, join: bool) -> None:
        """What was handed in while somebody worked on the run: accept it; ``join``: begin with it at once."""
        for path, handed_in in self.run.inbox.submissions():
            submission = handed_in.taken_in()
            try:
                ids = self.submit(submission, defer=True, told=True)
            except UnknownTarget:
                ids = []  # rejected, and the record says so
            except InvalidInput:
                ids = []
                self._reject(submission, _OF_ITS_KEY)
            if join:
                waiting = self.run.record.book.waiting()
                self.begin({identifier: waiting[identifier] for identifier in ids if identifier in waiting})
            self.run.record.database.fold()  # it stands nowhere else from now on
            self.run.inbox.take_away(path)
        self.run.inbox.clean()

    def _known(self, requests: Sequence[Request]) -> dict[Request, str]:
        """Under which id each request is known already, if it is."""
        waiting = {request: identifier for identifier, request in self.run.record.book.waiting().items()}
        there = set(still_there(self.run, requests))
        return {
            request: waiting[request] if request in waiting else self.run.record.book.id_of(request) or ""
            for request in requests
            if request in waiting or request not in there
        }

    def _reject(self, submission: Submission, reason: str | None = None) -> None:
        reasons = dict.fromkeys(submission.requests, reason or "")
        for request in submission.requests if reason is None else ():
            try:
                self._known([request])
            except UnknownTarget:
                reasons[request] = "there is no such client or sample"
            else:
                reasons[request] = "another request of its batch was rejected"
        if not any(map(self.run.record.book.knows, submission.ids)):
            self.run.record.book.reject(submission, reasons)

    def is_deferred(self, ids: Sequence[str]) -> bool:
        """Whether all of them wait, and nothing is to be finished."""
        waiting = self.run.record.book.waiting()
        return bool(ids) and all(identifier in waiting for identifier in ids) and not self.run.record.batches.pending()

    # Beginning

    def begin(self, wanted: Mapping[str, Request]) -> None:
        """Begin with requests that wait."""
        if wanted:
            intent, decided = self._decide(wanted, self.run.record.book.waiting(), {}, new_seed=False)
            self.run.record.batches.begin(intent, **decided)

    def _decide(
        self,
        wanted: Mapping[str, Request],
        waiting: Mapping[str, Request],
        bases: Mapping[str, str],
        new_seed: bool,
    ) -> tuple[Intent, dict[str, Any]]:
        """What meeting these requests means. Others that wait for what goes with them are met too.

        ``bases`` are of those that the record doesn't know yet.
        """
        run, plan = self.run, self.engine.plan
        with self.engine.server(run) as server:
            decision = decide(server, list(dict.fromkeys(wanted.values())))
            covered = {i: r for i, r in waiting.items() if r in decision.requests or r.client in decision.leaving}
            met = {**covered, **wanted}
            if len(met) > len(decision.requests):
                decision = decide(server, list(met.values()))
        looked = {bases.get(i) or run.record.book.basis_of(i) for i in met} - {Basis.EXOGENOUS}
        basis = Basis.UNKNOWN if looked else Basis.EXOGENOUS  # one that looked is enough
        goal = max([decision.goal, *(intent.decision.goal for intent in run.record.batches.pending())])
        alone = [0 if step is None else (goal - plan.round_of(step) + 1) for step in decision.first_changed_steps]
        decision = replace(decision, goal=goal)
        if new_seed:  # changes every draw
            changed = (1 if goal else None,) * len(decision.requests)
            decision = replace(decision, rewind_to=0, first_changed_steps=changed)
        if decision.rewind_to < goal:  # without a recomputation neither data nor models are read
            self._check_data(decision.requests)
            run.server.load(run.server.kept_at_or_before(decision.rewind_to))
        spared = set(run.server.roster) <= set(decision.leaving) or not (decision.first_changed_step or new_seed)
        intent = Intent.new(tuple(met), decision, reseed=secrets.token_hex(32) if new_seed else None)
        return intent, {
            "guarantee": guarantee_of(run.server.seed_origin, run.record.book.tainted, basis, new_seed),
            "recomputed_steps": 0 if spared else (goal - decision.rewind_to) * plan.local_steps,
            "alone": [rounds * plan.local_steps for rounds in alone],
            "before": state_digest(run),
        }

    # Finishing

    def remove_begun(self) -> None:
        """Take the data of every batch that was begun out (or in) and rewind. Idempotent."""
        run, batches = self.run, self.run.record.batches
        begun = [intent for intent in batches.pending() if batches.stage(intent) == Stage.ACCEPTED]
        for intent in begun:
            run.server.begin_work(intent.batch_id)
            with self.engine.server(run) as server:
                apply(server, intent.decision)
            self._join(intent.joining)
            if intent.reseed is not None:
                self._reseed(intent.reseed)
            batches.removed(intent, run.server.rounds_done)
        if begun and run.crashed:
            run.require_whole()

    def settle(self) -> None:
        """Finish every batch, one recomputation for all: also what a crash interrupted."""
        run, record = self.run, self.run.record
        self.remove_begun()
        while (goal := self._goal()) is not None:
            if len(run.server.roster) and run.server.rounds_done < goal:
                self._check_data()
                self.engine.learn(run, goal, self.on_round, self.eval_every, stop=lambda: bool(run.inbox))
                record.trained(run.server.rounds_done, environment())
            if not run.inbox:
                break
            self.take_in(join=True)
            self.remove_begun()
        self._finish(record.batches.pending())

    def _finish(self, intents: Sequence[Intent]) -> None:
        """What is recomputed gets its receipt; nothing of what is gone is left."""
        run, batches = self.run, self.run.record.batches
        if not intents:
            return
        for intent in intents:
            if batches.stage(intent) == Stage.REMOVED:
                batches.recomputed(intent)
        recomputed = [intent for intent in intents if batches.stage(intent) == Stage.RECOMPUTED]
        if recomputed:
            self.engine.measure(run, self.eval_every)
            outcome = self._outcome()
            for intent in recomputed:
                batches.completed(intent, outcome)
        run.server.end_work()
        run.purge_function()
        for intent in intents:
            batches.purged(intent)

    def _check_data(self, leaving: Iterable[Request] = ()) -> None:
        """Once is enough: nobody else changes what this process trains on."""
        if not self._data_checked:
            self.engine.check_data(self.run, leaving)
            self._data_checked = True

    def _goal(self) -> int | None:
        """The round to learn to; None if nothing waits to be recomputed."""
        record = self.run.record
        goals = [
            intent.decision.goal
            for intent in record.batches.pending()
            if record.batches.stage(intent) in (Stage.ACCEPTED, Stage.REMOVED)
        ]
        return max(goals, default=None)

    def _outcome(self) -> Outcome:
        from fedforget import __version__  # noqa: PLC0415 (it imports us)

        run = self.run
        return Outcome(
            rounds_done=run.server.rounds_done,
            model_digest=run.server.model_digest() if len(run.server.roster) else None,
            state_digest=state_digest(run),
            plan_digest=run.file.digest,
            commitments=commitments_digest(run),
            version=__version__,
        )

    def _reseed(self, root: str) -> None:
        run, seeds = self.run, SeedSource(bytes.fromhex(root))
        clients = {client: seeds.client(client) for client in run.server.roster}
        server_seed = seeds.server()
        file = replace(run.file, server_commitment=server_seed.commitment)
        run.clients.reseed(clients)
        run.replace_plan(file)
        run.server.reseed(server_seed, {client: seed.commitment for client, seed in clients.items()}, file.digest)

    # Joining

    def add(
        self, targets: Sequence[Request], *, returning: bool, seeds: SeedSource, basis: str = Basis.UNKNOWN
    ) -> Intent | None:
        """Bring in samples and clients of the data, as if they had been there from the beginning."""
        joining = self._newcomers(targets, returning=returning, seeds=seeds)
        if not joining:
            return None
        run, plan = self.run, self.engine.plan
        with self.engine.server(run) as server:
            step = first_change(server, {new.client: [sample for sample, _ in new.samples] for new in joining})
        goal = run.server.rounds_done
        decision = Decision((), (), (), goal, goal if step is None else plan.round_of(step) - 1)
        if decision.rewind_to < goal:
            self._check_data()
        intent = Intent.new((), decision, joining=joining)
        added = {
            "clients": sum(new.seed is not None for new in joining),
            "samples": sum(len(new.samples) for new in joining),
            "returning": returning,
            "basis": basis,
        }
        run.record.batches.begin(intent, guarantee="", recomputed_steps=0, added=added)
        return intent

    def _newcomers(self, targets: Iterable[Request], *, returning: bool, seeds: SeedSource) -> tuple[Newcomer, ...]:
        """What of the targets is not there yet; whole clients, or samples of them."""
        run, data = self.run, self.engine.data
        wanted: dict[Id, dict[Id, None]] = {}
        for target in targets:
            samples: Iterable[Id] = data[target.client].ids if target.client in data.roster else ()
            if target.sample is not None and target.sample in samples:
                samples = (target.sample,)
            elif target.sample is not None or target.client not in data.roster:
                raise UnknownTarget(f"the data have no {target}", hint="only what the run's data hold can be added")
            wanted.setdefault(target.client, {}).update(dict.fromkeys(samples))
        made = []
        for client in sorted(wanted, key=id_block):
            there = run.clients.samples(client) if client in run.server.roster else ()
            new = [sample for sample in wanted[client] if sample not in there]
            for sample in new:
                if not returning and run.record.book.id_of(Request(client, sample)) is not None:
                    raise InvalidInput(
                        f"sample {sample} of client {client} was erased from {run.path}",
                        hint="to bring it back, say so: --returning (returning=True in Python)",
                    )
            if new:
                seed = None if there else seeds.client(client)
                made.append(Newcomer(client, seed, tuple(data.contents(client, new))))
        return tuple(made)

    def _join(self, joining: Sequence[Newcomer]) -> None:
        self.run.clients.join(joining)
        self.run.server.join({new.client: new.seed.commitment for new in joining if new.seed is not None})


def require_standing(run: OpenRun, submission: Submission, ids: Sequence[str]) -> None:
    """A key may not stand for something that no longer holds: whoever asks would believe that it is gone."""
    key, hint = f"the request with the idempotency key {submission.key!r}", "use a new key to ask again"
    for receipt in run.record.book.receipts_of(ids):
        if receipt.state == Stage.REJECTED:
            raise UnknownTarget(f"{key} was rejected: {receipt.reason}", hint=hint)
        if receipt.state == Stage.CANCELLED:
            raise InvalidInput(f"{key} was cancelled", hint=hint)
        if receipt.state == Stage.PURGED and still_there(run, submission.requests):
            raise InvalidInput(f"{key} was met, and what it took was brought back since", hint=hint)


def recognised(book: RequestBook, receipts: Sequence[Receipt], requests: Sequence[Request]) -> list[Receipt]:
    """The same to whoever asks for what may be gone: it may have gone under a request for something else.

    Then the receipt is that of the other request, whose sample the record doesn't know.
    """
    return [
        replace(receipt, client=request.client, sample=request.sample if went_under else None)
        for receipt, request in zip(receipts, requests, strict=True)
        for went_under in (receipt.is_open or book.went_under(receipt.id, request),)
    ]


def told_back(receipts: Sequence[Receipt], requests: Sequence[Request]) -> list[Receipt]:
    """Receipts that name what was asked for, to whoever asked."""
    return [
        replace(receipt, client=request.client, sample=request.sample)
        for receipt, request in zip(receipts, requests, strict=True)
    ]


def hand_in(path: Path, submission: Submission) -> list[Receipt]:
    """Leave requests for the process that works on a run; refused here already if there is nothing of the kind."""
    with run_directory.reading(path, settled=False) as run:
        known = run.record.book.ids_of_key(submission)
        still_there(run, submission.requests)
        if known is not None:
            require_standing(run, submission, known)
        standing = [] if known is None else run.record.book.receipts_of(known)
    Inbox(path).leave(submission)  # whoever works on the run judges it, also where the key is known
    return told_back(standing, submission.requests) if standing else submission.receipts()
