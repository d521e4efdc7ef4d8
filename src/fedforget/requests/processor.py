"""Carrying requests out: choose what goes into a batch, forget it, and let requests that arrive meanwhile join.

Everything that changes the state is done by ``algorithm.forget`` and ``algorithm.join``. The processor adds three
rules: a request is carried out together with every pending request that it covers; a request that arrives while rounds
are recomputed joins that recomputation; and the batches of one recomputation get their receipts together, at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from secrets import token_bytes
from typing import Any

from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.forget import Decision, Request, decide, forget, remove
from fedforget.algorithm.ids import Id
from fedforget.algorithm.join import join
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.ports import Newcomer, State
from fedforget.requests.intake import Intake
from fedforget.requests.intents import BatchFacts, Intent, new_batch_id
from fedforget.requests.lifecycle import GUARANTEE_PATH, Basis, Stage, Submission, guarantee_of
from fedforget.requests.ports import Batches, Book, Inbox, Work


@dataclass(slots=True)
class Processor:
    """Carries requests out on a run that this process has opened to write."""

    server: Server
    intake: Intake
    batches: Batches
    work: Work
    recompute_all: bool = False  # compute every round again, whatever the requests need
    recomputed_all: bool = False

    @property
    def book(self) -> Book:
        return self.intake.book

    @property
    def inbox(self) -> Inbox:
        return self.intake.inbox

    # Requests

    def submit(self, submission: Submission) -> list[str]:
        """Accept requests, all or none, and carry them out up to their receipts. Return their ids.

        Targets already erased or pending keep their request's id.
        """
        ids = self.book.ids_of_key(submission)
        if ids is not None:
            self.intake.ask_again(submission, ids)
            self.forget(self.book.pending_of(ids))
            return ids
        self._apply_begun_before(submission.requests)
        known = self.intake.known_or_accepted(submission)
        self.book.ask_again(submission, known.values())
        fresh = {i: r for i, r in zip(submission.ids, submission.requests, strict=True) if r not in known}
        wanted = {**self.book.pending_of(list(known.values())), **fresh}
        new_seeds = submission.new_seed and bool(wanted or not self._new_seeds_are_pending())
        if wanted or new_seeds:
            self.forget(wanted, submission, known, new_seeds=new_seeds)
        elif submission.key is not None:
            with self.book.transaction():
                self.book.receive(submission, known)
        return [known.get(r, i) for i, r in zip(submission.ids, submission.requests, strict=True)]

    def forget(
        self,
        wanted: Mapping[str, Request],
        submission: Submission | None = None,
        known: Mapping[Request, str] | None = None,
        *,
        new_seeds: bool = False,
        arrived: Sequence[Any] = (),
    ) -> None:
        """Carry requests out as one batch, with every pending request that they cover.

        The requests of a ``submission`` are entered into the book together with the batch. ``arrived``: their places in
        the inbox, which is cleared of them as soon as the batch is durable.
        """
        if not wanted and not new_seeds:
            if arrived:
                self.intake.clear(arrived)
            return
        self._apply_begun_before(list(wanted.values()))
        batch = _BatchJournal(self, dict(wanted), submission, known or {}, arrived, new_seeds=new_seeds)
        with self.work.learning(self.goal()) as on_round:
            forget(self.server, list(wanted.values()), batch, self._until_arrival(on_round))

    def add(self, newcomers: Sequence[Newcomer], added: Mapping[str, Any]) -> None:
        """Let samples and clients in."""
        if newcomers:
            journal = _BatchJournal(self, added=added)
            with self.work.learning(self.goal()) as on_round:
                join(self.server, newcomers, journal, self._until_arrival(on_round))

    def accept_inbox(self) -> None:
        """Accept what was handed in while another process was at work; it waits."""
        if self.inbox:
            self.apply_begun()
            self.intake.clear([place for place, _ in self.intake.accept_inbox()])

    # Finishing

    def apply_begun(self, but: str = "") -> None:
        """Remove what a crash left in: every batch whose intent is durable is applied. Idempotent.

        ``but``: the id of a batch that the caller applies itself.
        """
        begun = [intent for intent in self._at_stage(Stage.ACCEPTED) if intent.batch_id != but]
        for intent in begun:
            decided = intent.decision  # maybe by another process
            if decided.rewind_to < self.server.memory.rounds_done and self.leaves_clients(decided):
                self.work.check_learner(decided.rewind_to, decided.requests)
            remove(self.server, decided, _BatchJournal.of(self, intent))
        if begun:
            self.work.applied()

    def _apply_begun_before(self, requests: Sequence[Request]) -> None:
        """Apply begun batches before a decision, which depends on the samples that they leave.

        One of them may wait for a silent client to remove a sample. If these requests erase that client, their intent
        is committed first, and the journal applies the begun batches after it: then only the erasure has to reach it.
        """
        whole = {request.client for request in requests if request.sample is None}
        if any(request.sample is not None for request in requests) or not whole & self._clients_waited_for():
            self.apply_begun()

    def _clients_waited_for(self) -> set[Id]:
        """Return the clients that begun batches remove samples of, and that no batch erases."""
        named = {request.client for intent in self._at_stage(Stage.ACCEPTED) for request in intent.decision.requests}
        return named - {client for intent in self.batches.unfinished() for client in intent.decision.leaving}

    def finish(self) -> None:
        """Finish every batch, by one recomputation: also what a crash interrupted, and what arrives meanwhile."""
        self._recompute_all_once()
        self.apply_begun()
        while unfinished := self._at_stage(Stage.ACCEPTED, Stage.REMOVED, Stage.RECOMPUTED):
            goal = max(intent.decision.goal for intent in unfinished)
            if self.inbox:
                self._let_arrivals_join()
            elif len(self.server.memory.roster) and self.server.memory.rounds_done < goal:
                self.learn(goal, stop_on_arrival=True)
            else:
                break
        self._complete(self.batches.unfinished())

    def learn(self, goal: int, *, stop_on_arrival: bool = False) -> None:
        """Learn up to a round."""
        self.work.check_books()
        self.work.check_learner(self.server.memory.rounds_done)
        self.work.begin_rounds()
        with self.work.learning(goal) as on_round:
            learn(self.server, goal, self._until_arrival(on_round) if stop_on_arrival else on_round)

    def _let_arrivals_join(self) -> None:
        """Forget what was handed in meanwhile together with the batches that are under way."""
        accepted = self.intake.accept_inbox()
        arrived = self.book.pending_of([identifier for _, ids in accepted for identifier in ids])
        self.forget(arrived, arrived=[place for place, _ in accepted])

    def _complete(self, intents: Sequence[Intent]) -> None:
        """Complete every batch with its receipt, and purge erased data."""
        if not intents:
            return
        learned = self._at_stage(Stage.REMOVED, Stage.RECOMPUTED)
        if learned:
            outcome = self.work.outcome()
            for intent in learned:
                self.batches.completed(intent, outcome)

        def purged() -> None:
            for intent in intents:
                self.batches.purged(intent)

        self.work.purge(purged)

    def _recompute_all_once(self) -> None:
        """Compute all rounds again, if that is asked for and no pending batch does it anyway."""
        if not self.recompute_all or self.recomputed_all:
            return
        self.recomputed_all = True
        begun = self._at_stage(Stage.ACCEPTED)
        if self.goal() and all(intent.decision.rewind_to for intent in begun):
            leaving = [request for intent in begun for request in intent.decision.requests]
            self.work.check_learner(0, leaving)
            self.apply_begun()
            with self.work.learning(self.goal()) as on_round:
                forget(self.server, (), _BatchJournal(self), self._until_arrival(on_round))

    # What is unfinished

    def _at_stage(self, *stages: Stage) -> list[Intent]:
        return [intent for intent in self.batches.unfinished() if self.batches.stage(intent) in stages]

    def _new_seeds_are_pending(self) -> bool:
        return any(intent.decision.new_seeds is not None for intent in self.batches.unfinished())

    def leaves_clients(self, decision: Decision) -> bool:
        """Return whether a client takes part after a decision, so that rounds are computed."""
        leaving = set(decision.leaving)
        return bool(decision.joining) or any(client not in leaving for client in self.server.memory.roster)

    def goal(self) -> int:
        """The round to learn to if a batch begins now: at least that of every unfinished batch."""
        return max([self.server.memory.rounds_done, *(each.decision.goal for each in self.batches.unfinished())])

    def _until_arrival(self, on_round: Callable[[int, State], object]) -> Callable[[int, State], bool]:
        """Stop learning after a round if requests were handed in during it: they join."""
        return lambda round_, state: bool(on_round(round_, state)) or bool(self.inbox)


@dataclass(slots=True)
class _BatchJournal:
    """The ``Journal`` of one batch: its intent in the record."""

    processor: Processor
    requests: dict[str, Request | None] = field(default_factory=dict)  # by id
    submission: Submission | None = None  # entered together with the batch
    known: Mapping[Request, str] = field(default_factory=dict)  # targets that keep the id of another request
    arrived: Sequence[Any] = ()  # places in the inbox
    new_seeds: bool = False
    added: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, processor: Processor, intent: Intent) -> _BatchJournal:
        """Return the journal of a batch that another process began."""
        return cls(processor, dict.fromkeys(intent.ids))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self.requests)

    def begin(self, decision: Decision) -> Decision:
        """Add what the batch covers, check learner and state, and commit the intent with its requests.

        Begun batches that waited for a client of this one are applied then: this one lets them go on.
        """
        processor, work = self.processor, self.processor.work
        decision = self._with_covered(decision)
        named, pledge = self._as_carried_out(decision), None
        work.check_books(named)
        if named.rewind_to < named.goal:  # without a recomputation neither data nor models are read
            if processor.leaves_clients(named):
                joining = (Request(new.client) for new in named.joining)
                work.check_learner(named.rewind_to, (*named.requests, *joining))
            work.check_state(named.rewind_to)
            pledge = work.pledge(named)
        book, batches = processor.book, processor.batches
        with book.transaction():
            if self.submission is not None:
                book.receive(self.submission, self.known)
            facts = self._facts(decision, named)
            batches.enter(Intent(self.ids, named, pledge), facts)
            if self.added:
                book.taint_unless_exogenous(self.added["basis"])
            for basis in book.bases_of(self.ids) if facts.guarantee == GUARANTEE_PATH else ():
                book.taint_unless_exogenous(basis)
        if self.arrived:
            processor.intake.clear(self.arrived)
        processor.apply_begun(but=named.batch_id)
        return named

    def _with_covered(self, decision: Decision) -> Decision:
        """Add pending requests whose targets leave with those of the batch. They change nothing that it does not."""
        targets, leaving = set(decision.requests), set(decision.leaving)
        covered = {
            identifier: request
            for identifier, request in self.processor.book.pending_under(targets, leaving).items()
            if identifier not in self.requests
        }
        if not covered:
            return decision
        self.requests = {**covered, **self.requests}
        return decide(self.processor.server, [*covered.values(), *decision.requests])

    def _as_carried_out(self, decision: Decision) -> Decision:
        """Up to the goal of every unfinished batch; from round 0 with new seeds, or if everything is recomputed."""
        goal = self.processor.goal()
        decision = replace(decision, goal=goal, batch_id=new_batch_id())
        if self.new_seeds:  # changes every draw
            first = (1 if goal else None,) * len(decision.requests)
            root = token_bytes(SEED_BYTES)
            decision = replace(decision, rewind_to=0, first_changed_steps=first, new_seeds=root)
        if self.processor.recompute_all and goal:
            decision = replace(decision, rewind_to=0)
            self.processor.recomputed_all = True
        return decision

    def _facts(self, decided: Decision, named: Decision) -> BatchFacts:
        processor, plan = self.processor, self.processor.server.plan
        if not self.ids and not self.new_seeds:
            return BatchFacts(added=self.added)
        book, goal = processor.book, named.goal
        informed = book.bases_of(self.ids) - {Basis.EXOGENOUS}
        basis = Basis.UNKNOWN if informed else Basis.EXOGENOUS  # one non-exogenous request lowers the batch
        alone = [0 if step is None else goal - plan.round_of(step) + 1 for step in decided.first_changed_steps]
        changed = named.first_changed_step is not None or self.new_seeds or (processor.recompute_all and goal)
        nothing_left = not processor.leaves_clients(named)
        return BatchFacts(
            guarantee=guarantee_of(processor.work.seed_origin, book.tainted, basis, self.new_seeds),
            recomputed_steps=0 if nothing_left or not changed else (goal - named.rewind_to) * plan.local_steps,
            steps_alone=tuple(rounds * plan.local_steps for rounds in alone),
            state_before=processor.work.state_digest(),
            data_root=processor.work.data_root(),
            leaves=processor.work.leaves_of(decided.requests),
        )

    def removed(self, decision: Decision) -> None:
        processor = self.processor
        memory = processor.server.memory
        processor.batches.removed(Intent(self.ids, decision), memory.rounds_done)
        if memory.rounds_done < decision.goal and len(memory.roster):
            processor.work.begin_rounds()

    def recomputed(self, decision: Decision) -> None:
        """Record nothing now: ``finish`` records it together with the receipts."""
