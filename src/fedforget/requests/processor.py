"""How requests on an open run are met: begun with, by one recomputation for all, purged. ``intake`` takes them in.

The intent of a batch is committed to the record first. Everything else is applied from it, and may be repeated: any
crash is finished by the next command. Whatever is handed in while a recomputation is under way joins it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedforget.algorithm.forget import Decision, Request, apply, decide
from fedforget.algorithm.ids import Id, id_block
from fedforget.algorithm.join import first_change
from fedforget.algorithm.seeds import SeedSource
from fedforget.errors import InvalidInput, UnknownTarget, shown
from fedforget.requests.batches import Outcome
from fedforget.requests.intake import Intake
from fedforget.requests.lifecycle import Basis, Intent, Newcomer, Stage, Submission, guarantee_of
from fedforget.session.engine import Engine, OnRound
from fedforget.session.learner_check import OtherEnvironment, require_learner
from fedforget.store.commitments import commitments_digest
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest
from fedforget.training.environment import is_mixed, numeric_environment


@dataclass(slots=True)
class Erasure:
    """Meets requests on a run that this process has opened to write."""

    engine: Engine
    run: OpenRun
    on_round: OnRound | None = None
    eval_every: int | None = None
    other_environment: OtherEnvironment = OtherEnvironment.REFUSE
    _data_checked: bool = False
    _learner_checked: bool = False
    _begun_anew: bool = False

    # Taking in

    @property
    def intake(self) -> Intake:
        return Intake(self.run)

    def submit(self, submission: Submission) -> list[str]:
        """Accept requests, all or none, and begin with them. Returns their ids.

        What is gone already keeps the id it has, and so does what waits.
        """
        book, batches = self.run.record.book, self.run.record.batches
        ids = book.ids_of_key(submission)
        if ids is not None:
            self.intake.ask_again(submission, ids)
            self.begin(self._waiting(ids))
            return ids
        self.remove_begun()  # a recomputation that was interrupted absorbs the new requests
        known = self.intake.known(submission.requests)
        book.ask_again(submission, known.values())
        again = self._waiting(known.values())  # asked for once more, and at once
        fresh = {i: r for i, r in zip(submission.ids, submission.requests, strict=True) if r not in known}
        wanted = {**again, **fresh}
        new_seed = submission.new_seed and bool(wanted or not self._has_new_seeds_coming())
        if not wanted and not new_seed:
            return book.receive(submission, known)
        bases = dict.fromkeys(fresh, submission.basis)
        intent, decided = self._decide(wanted, {**book.waiting(), **fresh}, bases, new_seed)
        return book.receive(submission, known, partial(batches.enter, intent, **decided))

    def _waiting(self, ids: Iterable[str]) -> dict[str, Request]:
        """Those of the requests that wait."""
        waiting = self.run.record.book.waiting()
        return {identifier: waiting[identifier] for identifier in ids if identifier in waiting}

    def _has_new_seeds_coming(self) -> bool:
        """Whether they were asked for and the process was interrupted: asking again is asking once."""
        return any(intent.reseed is not None for intent in self.run.record.batches.pending())

    def take_in(self, *, join: bool) -> None:
        """Accept what was handed in while a process worked on the run; ``join``: begin with it at once."""
        if self.run.inbox:
            self.remove_begun()
        for ids in self.intake.take_in():
            if join:
                self.begin(self._waiting(ids))
                self.remove_begun()

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
            first = (1 if goal else None,) * len(decision.requests)
            decision = replace(decision, rewind_to=0, first_changed_steps=first)
        anew = self.other_environment is OtherEnvironment.RECOMPUTE and goal > 0
        if anew:
            decision = replace(decision, rewind_to=0)
        if decision.rewind_to < goal:  # without a recomputation neither data nor models are read
            self._check_data(decision.requests)
            self._check_learner(decision.rewind_to, decision.requests)
            run.server.load(run.server.kept_at_or_before(decision.rewind_to))
        changed = decision.first_changed_step or new_seed or anew
        spared = set(run.server.roster) <= set(decision.leaving) or not changed
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
            if intent.decision.rewind_to < run.server.rounds_done:  # another process may have decided it
                self._check_learner(intent.decision.rewind_to, intent.decision.requests)
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
        self._begin_anew_once()
        self.remove_begun()
        while (goal := self._goal()) is not None:
            if len(run.server.roster) and run.server.rounds_done < goal:
                self._check_data()
                self._check_learner(run.server.rounds_done)
                self.engine.learn(run, goal, self.on_round, self.eval_every, stop=lambda: bool(run.inbox))
                record.trained(run.server.rounds_done, numeric_environment())
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
        """Once is enough: no other process changes what this one trains on."""
        if not self._data_checked:
            self.engine.check_data(self.run, leaving)
            self._data_checked = True

    def _check_learner(self, rounds: int, requests: Sequence[Request] = ()) -> None:
        """That this learner trained the rounds that stay. Once is enough, as with the data."""
        run = self.run
        if not self._learner_checked:
            stays = min(run.server.kept_at_or_before(rounds), run.server.rounds_done)
            require_learner(self.engine, run, stays, requests, self.other_environment)
            self._learner_checked = True

    def _begin_anew_once(self) -> None:
        """Compute all rounds again in this environment, if that is asked for and no request does it anyway."""
        if self.other_environment is not OtherEnvironment.RECOMPUTE or self._begun_anew:
            return
        self._begun_anew = True
        record, pending = self.run.record, self.run.record.batches.pending()
        goal = max([self.run.server.rounds_done, *(intent.decision.goal for intent in pending)])
        begun = [intent for intent in pending if record.batches.stage(intent) == Stage.ACCEPTED]
        if goal and all(intent.decision.rewind_to for intent in begun):
            leaving = [request for intent in begun for request in intent.decision.requests]
            self._check_data(leaving)
            self._check_learner(0, leaving)
            record.batches.begin(Intent.new((), Decision((), (), (), goal, 0)), guarantee="", recomputed_steps=0)

    def learn(self, goal: int) -> None:
        """Go on to a round, where nothing waits to be finished."""
        self._check_data()
        self._check_learner(self.run.server.rounds_done)
        self.engine.learn(self.run, goal, self.on_round, self.eval_every)
        self.run.record.trained(self.run.server.rounds_done, numeric_environment())

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
            mixed_environments=is_mixed(run.record.environments.of_rounds(run.server.rounds_done)),
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
            self._check_learner(decision.rewind_to, [Request(new.client) for new in joining])
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
                        f"sample {shown(sample)} of client {shown(client)} was erased from {run.path}",
                        hint="to bring it back, say so: --returning (returning=True in Python)",
                    )
            if new:
                seed = None if there else seeds.client(client)
                made.append(Newcomer(client, seed, tuple(data.contents(client, new))))
        return tuple(made)

    def _join(self, joining: Sequence[Newcomer]) -> None:
        self.run.clients.join(joining)
        self.run.server.join({new.client: new.seed.commitment for new in joining if new.seed is not None})
