"""Batches of requests that are carried out together: begun, removed, recomputed, completed, purged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.disk.database import Database
from fedforget.disk.parsing import LONGEST
from fedforget.errors import FedForgetError, InvalidInput, RunDamaged
from fedforget.requests.chain import EventChain
from fedforget.requests.intents import BatchFacts, Intent, Outcome
from fedforget.requests.lifecycle import GUARANTEE_PATH, Stage
from fedforget.requests.pseudonyms import Pseudonyms


class DerivedTable(Protocol):
    """A table of the record that derives from rounds."""

    def rewind(self, rounds_left: int, leaving: Collection[Id]) -> None:
        """Drop what derives from later rounds or from clients that leave. Called inside a transaction."""


class Batches:
    """A batch is stored as an intent until it is purged."""

    def __init__(
        self,
        database: Database,
        chain: EventChain,
        pseudonyms: Pseudonyms,
        derived: Sequence[DerivedTable],
    ) -> None:
        self.database = database
        self.chain = chain
        self._pseudonyms = pseudonyms
        self._derived = derived

    def enter(self, intent: Intent, facts: BatchFacts) -> None:
        """Commit the intent of a batch. After a crash the next process finishes it. Call inside a transaction."""
        body = intent.encode()
        if len(body) > LONGEST:
            raise InvalidInput(f"{len(intent.ids)} requests are too many at once", hint="give them in several batches")
        self.database.run("INSERT INTO intents VALUES (?, ?, ?)", (intent.batch_id, Stage.ACCEPTED, body))
        if intent.only_recomputes:
            self.chain.append("begun anew", {"batch": intent.batch_id, "rounds": intent.decision.goal})
        if intent.decision.joining:
            self.chain.append("added", {"batch": intent.batch_id, **facts.added})
        before_mac = self._pseudonyms.mac("state", facts.state_before.encode()).hex()
        for place, identifier in enumerate(intent.ids):
            step = intent.decision.first_changed_steps[place]
            self.database.run(
                "UPDATE requests SET batch_id = ?, place = ?, first_changed_step = ?, recomputed_steps = ?, "
                "steps_alone = ?, guarantee = ? WHERE id = ?",
                (intent.batch_id, place, step, facts.recomputed_steps, facts.steps_alone[place], facts.guarantee,
                 identifier),
            )  # fmt: skip
            self.database.run("DELETE FROM waiting WHERE request = ?", (identifier,))
            self.chain.append(
                "begun",
                {
                    "request": identifier,
                    "batch": intent.batch_id,
                    "guarantee": facts.guarantee,
                    "before": before_mac,
                    "first_changed_step": step,
                    "recomputed_steps": facts.recomputed_steps,
                },
            )

    def unfinished(self) -> list[Intent]:
        """Return the intents of batches that were begun and are not yet purged."""
        intents = []
        for batch_id, body in self.database.rows("SELECT batch_id, body FROM intents ORDER BY batch_id"):
            try:
                intents.append(Intent.decode(batch_id, body))
            except (ValueError, KeyError, TypeError, AttributeError, FedForgetError) as error:
                raise RunDamaged(f"{self.database.path} is damaged: the intent of {batch_id} cannot be read") from error
        return intents

    def stage(self, intent: Intent) -> Stage:
        """Return the stage of a batch."""
        rows = self.database.rows("SELECT stage FROM intents WHERE batch_id = ?", (intent.batch_id,))
        return Stage(rows[0][0])

    def removed(self, intent: Intent, rounds_left: int) -> None:
        """Record that the data are removed (or added) and the state is rewound. Drop what derives from later rounds."""
        leaving = set(intent.decision.leaving)
        with self.database.transaction():
            asked = list(zip(intent.ids, intent.decision.requests, strict=True))
            emptied = [(identifier, Request(r.client)) for identifier, r in asked if r.client in leaving]
            number = self.chain.length()
            for identifier, target in asked + emptied:  # direct targets first: a client keeps the id of its own request
                self.database.run(
                    "INSERT OR IGNORE INTO erased VALUES (?, ?, ?, 0)",
                    (self._pseudonyms.of(target), number, identifier),
                )
            back = (Request(new.client, sample) for new in intent.decision.joining for sample, _ in new.samples)
            for target in back:
                self.database.run("UPDATE erased SET returned = 1 WHERE pseudonym = ?", (self._pseudonyms.of(target),))
            for table in self._derived:
                table.rewind(rounds_left, leaving)
            self.database.run("UPDATE requests SET model_digest = NULL WHERE model_round > ?", (rounds_left,))
            self.database.run("UPDATE requests SET state_digest = NULL")  # those states depend on erased data
            if intent.decision.new_seeds is not None:
                self.database.run("UPDATE record SET value = 0 WHERE key = 'tainted'")
                self.chain.append("reseeded", {"seed_origin": "system"})
            self._advance(intent, Stage.REMOVED)

    def recomputed(self, intent: Intent) -> None:
        with self.database.transaction():
            self._advance(intent, Stage.RECOMPUTED)

    def completed(self, intent: Intent, outcome: Outcome) -> None:
        """Store the resulting digests; the MAC stays after the digest is deleted.

        One draw-informed request lowers the whole batch to `path`.
        """
        model_mac = self._pseudonyms.mac("model", (outcome.model_digest or "").encode())
        with self.database.transaction():
            self.database.run(
                "UPDATE requests SET model_round = ?, model_digest = ?, model_mac = ?, state_digest = ? "
                "WHERE batch_id = ?",
                (outcome.rounds_done, outcome.model_digest, model_mac, outcome.state_digest, intent.batch_id),
            )
            tainted = bool(self.database.rows("SELECT value FROM record WHERE key = 'tainted'")[0][0])
            lowered = {"guarantee": GUARANTEE_PATH} if tainted else {}
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
                    "tainted": tainted,
                    "mixed_environments": outcome.mixed_environments,
                    **lowered,
                },
            )

    def purged(self, intent: Intent) -> None:
        """Record that the removed data are purged, and delete the ids. ``Work.purge`` calls this as its last step."""
        with self.database.transaction():
            self._advance(intent, Stage.PURGED)
            self.database.run("DELETE FROM intents WHERE batch_id = ?", (intent.batch_id,))

    def _advance(self, intent: Intent, stage: Stage, extra: Mapping[str, Any] | None = None) -> None:
        self.database.run("UPDATE intents SET stage = ? WHERE batch_id = ?", (stage, intent.batch_id))
        self.database.run("UPDATE requests SET state = ? WHERE batch_id = ?", (stage, intent.batch_id))
        for identifier in intent.ids:
            self.chain.append(stage, {"request": identifier, **(extra or {})})
