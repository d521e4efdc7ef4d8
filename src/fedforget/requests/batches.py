"""Batches of requests that are met together: begun, removed, recomputed, completed, purged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.disk.database import Database
from fedforget.disk.parsing import LONGEST
from fedforget.errors import FedForgetError, InvalidInput, RunDamaged
from fedforget.requests.book import RequestBook
from fedforget.requests.chain import EventChain
from fedforget.requests.lifecycle import GUARANTEE_PATH, Basis, Intent, Stage
from fedforget.requests.pseudonyms import Pseudonyms
from fedforget.store.environments import Environments
from fedforget.store.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Outcome:
    """What stands after a batch: everything that a receipt says about it."""

    rounds_done: int
    model_digest: str | None
    state_digest: str
    plan_digest: str
    commitments: str  # a digest of all of them
    version: str
    mixed_environments: bool


class Batches:
    """Each is an intent until it is purged: whatever finishing it after a crash needs."""

    def __init__(
        self,
        database: Database,
        chain: EventChain,
        pseudonyms: Pseudonyms,
        metrics: Metrics,
        environments: Environments,
        book: RequestBook,
    ) -> None:
        self.database = database
        self.chain = chain
        self._pseudonyms = pseudonyms
        self._metrics = metrics
        self._environments = environments
        self._book = book

    def begin(self, intent: Intent, **decided: Any) -> None:
        """Commit the intent of a batch: from here on it is finished, whatever happens."""
        with self.database.transaction():
            self.enter(intent, **decided)

    def enter(
        self,
        intent: Intent,
        *,
        guarantee: str,
        recomputed_steps: int,
        alone: Sequence[int] = (),
        before: str = "",
        added: Mapping[str, Any] | None = None,
    ) -> None:
        """``alone``: the steps that each request would have recomputed by itself; ``before``: the state's digest;
        ``added``: what is to be told of newcomers.
        """
        body = intent.encode()
        if len(body) > LONGEST:
            raise InvalidInput(f"{len(intent.ids)} requests are too many at once", hint="give them in several batches")
        self.database.run("INSERT INTO intents VALUES (?, ?, ?)", (intent.batch_id, Stage.ACCEPTED, body))
        if intent.is_anew:
            self.chain.append("begun anew", {"batch": intent.batch_id, "rounds": intent.decision.goal})
        if intent.joining:
            self.chain.append("added", {"batch": intent.batch_id, **(added or {})})
            self._book.taint_unless_exogenous((added or {}).get("basis", Basis.UNKNOWN))
        before_mac = self._pseudonyms.mac("state", before.encode()).hex()
        for place, identifier in enumerate(intent.ids):
            step = intent.decision.first_changed_steps[place]
            self.database.run(
                "UPDATE requests SET batch_id = ?, place = ?, first_changed_step = ?, recomputed_steps = ?, "
                "steps_alone = ?, guarantee = ? WHERE id = ?",
                (intent.batch_id, place, step, recomputed_steps, alone[place] if alone else None, guarantee,
                 identifier),
            )  # fmt: skip
            self.database.run("DELETE FROM waiting WHERE request = ?", (identifier,))
            steps = {"first_changed_step": step, "recomputed_steps": recomputed_steps}
            self.chain.append(
                "begun",
                {
                    "request": identifier,
                    "batch": intent.batch_id,
                    "guarantee": guarantee,
                    "before": before_mac,
                    **steps,
                },
            )
            if guarantee == GUARANTEE_PATH:
                self._book.taint_unless_exogenous(self._book.basis_of(identifier))

    def pending(self) -> list[Intent]:
        """Batches that were begun and are not yet purged."""
        intents = []
        for batch_id, body in self.database.rows("SELECT batch_id, body FROM intents ORDER BY batch_id"):
            try:
                intents.append(Intent.decode(batch_id, body))
            except (ValueError, KeyError, TypeError, AttributeError, FedForgetError) as error:
                raise RunDamaged(
                    f"{self.database.path} is damaged: the intent of {batch_id} cannot be read",
                    hint="restore it from a backup",
                ) from error
        return intents

    def stage(self, intent: Intent) -> Stage:
        """How far a batch has come."""
        rows = self.database.rows("SELECT stage FROM intents WHERE batch_id = ?", (intent.batch_id,))
        return Stage(rows[0][0])

    def removed(self, intent: Intent, rounds_left: int) -> None:
        """The data are out (or in) and the state is rewound: what was derived from later rounds goes too."""
        leaving = set(intent.decision.leaving)
        with self.database.transaction():
            asked = list(zip(intent.ids, intent.decision.requests, strict=True))
            emptied = [(identifier, Request(r.client)) for identifier, r in asked if r.client in leaving]
            number = self.chain.length()
            for identifier, target in asked + emptied:  # what was asked for first: a client went under its own request
                self.database.run(
                    "INSERT OR IGNORE INTO erased VALUES (?, ?, ?, 0)",
                    (self._pseudonyms.of(target), number, identifier),
                )
            back = (Request(new.client, sample) for new in intent.joining for sample, _ in new.samples)
            for target in back:
                self.database.run("UPDATE erased SET returned = 1 WHERE pseudonym = ?", (self._pseudonyms.of(target),))
            self._metrics.rewind(rounds_left, leaving)
            self._environments.rewind(rounds_left)
            self.database.run("UPDATE requests SET model_digest = NULL WHERE model_round > ?", (rounds_left,))
            self.database.run("UPDATE requests SET state_digest = NULL")  # those states held what is gone now
            if intent.reseed is not None:
                self.database.run("UPDATE record SET value = 0 WHERE key = 'tainted'")
                self.chain.append("reseeded", {"seed_origin": "system"})
            self._advance(intent, Stage.REMOVED)

    def recomputed(self, intent: Intent) -> None:
        with self.database.transaction():
            self._advance(intent, Stage.RECOMPUTED)

    def completed(self, intent: Intent, outcome: Outcome) -> None:
        """The receipt is final: which state stands now, in the clear while it is current and as a MAC for ever.

        A state that a request which looked has had a part in has no law to promise, whoever else is met by it.
        """
        model_mac = self._pseudonyms.mac("model", (outcome.model_digest or "").encode())
        with self.database.transaction():
            self.database.run(
                "UPDATE requests SET model_round = ?, model_digest = ?, model_mac = ?, state_digest = ? "
                "WHERE batch_id = ?",
                (outcome.rounds_done, outcome.model_digest, model_mac, outcome.state_digest, intent.batch_id),
            )
            lowered = {"guarantee": GUARANTEE_PATH} if self._book.tainted else {}
            if lowered:
                self.database.run(
                    "UPDATE requests SET guarantee = ? WHERE batch_id = ?", (GUARANTEE_PATH, intent.batch_id)
                )
            self._advance(
                intent,
                Stage.COMPLETED,
                {
                    "model_mac": model_mac.hex(),
                    "state_mac": self._pseudonyms.mac("state", outcome.state_digest.encode()).hex(),
                    "plan": outcome.plan_digest,
                    "commitments": outcome.commitments,
                    "version": outcome.version,
                    "tainted": self._book.tainted,
                    "mixed_environments": outcome.mixed_environments,
                    **lowered,
                },
            )

    def purged(self, intent: Intent) -> None:
        """Nothing is left of what was asked to go. The ids of the request go last, before the word is given."""
        nothing = replace(intent.decision, requests=(), first_changed_steps=(), leaving=())
        emptied = replace(intent, decision=nothing, reseed=None, joining=())
        with self.database.transaction():
            self.database.run("UPDATE intents SET body = ? WHERE batch_id = ?", (emptied.encode(), intent.batch_id))
        self.database.rebuild()
        with self.database.transaction():
            self._advance(intent, Stage.PURGED)
            self.database.run("DELETE FROM intents WHERE batch_id = ?", (intent.batch_id,))

    def _advance(self, intent: Intent, stage: Stage, extra: Mapping[str, Any] | None = None) -> None:
        self.database.run("UPDATE intents SET stage = ? WHERE batch_id = ?", (stage, intent.batch_id))
        self.database.run("UPDATE requests SET state = ? WHERE batch_id = ?", (stage, intent.batch_id))
        for identifier in intent.ids:
            self.chain.append(stage, {"request": identifier, **(extra or {})})
