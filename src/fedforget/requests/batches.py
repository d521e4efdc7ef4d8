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
from fedforget.requests.leaves import TargetLeaves, decode, encode
from fedforget.requests.lifecycle import GUARANTEE_PATH, Stage
from fedforget.requests.pseudonyms import Pseudonyms
from fedforget.requests.vault import LEAVES, MODEL, STATE, Vault


class DerivedTable(Protocol):
    """A table of the record that is derived from rounds."""

    def rewind(self, rounds_left: int, leaving: Collection[Id]) -> None:
        """Drop rows of later rounds, and of clients that leave. Idempotent."""


class Batches:
    """The batches of a record. Each is stored as an intent until it is purged."""

    def __init__(
        self,
        database: Database,
        chain: EventChain,
        pseudonyms: Pseudonyms,
        vault: Vault,
        derived: Sequence[DerivedTable],
    ) -> None:
        self.database = database
        self.chain = chain
        self._pseudonyms = pseudonyms
        self._vault = vault
        self._derived = derived
        self._intents: dict[str, Intent] = {}  # those that were read, by batch; an intent does not change

    def enter(self, intent: Intent, facts: BatchFacts) -> None:
        """Commit the intent of a batch. After a crash the next process finishes it. Call inside a transaction."""
        body = intent.encode().encode()
        if len(body) > LONGEST:
            raise InvalidInput(f"{len(intent.ids)} requests are too many at once", hint="give them in several batches")
        self._store(intent, facts, body)
        if intent.only_recomputes:
            self.chain.append("begun anew", {"batch": intent.batch_id, "rounds": intent.decision.goal})
        if intent.decision.joining:
            self.chain.append("added", {"batch": intent.batch_id, **facts.added})
        self._assign_requests(intent, facts)
        self._append_begun(intent, facts)

    def _store(self, intent: Intent, facts: BatchFacts, body: bytes) -> None:
        key, batch = self._vault.key_for_intents(), intent.batch_id
        self.database.run(
            "INSERT INTO intents VALUES (?, ?, ?, ?)",
            (batch, Stage.ACCEPTED, key, self._vault.keys.encrypt(key, body, batch)),
        )
        self.database.run(
            "INSERT INTO batches (batch_id, recomputed_steps, guarantee) VALUES (?, ?, ?)",
            (batch, facts.recomputed_steps, facts.guarantee or None),
        )

    def _assign_requests(self, intent: Intent, facts: BatchFacts) -> None:
        """Assign the requests to the batch, and remove them from the pending ones."""
        batch, steps = intent.batch_id, intent.decision.first_changed_steps
        self.database.run_many(
            "UPDATE requests SET batch_id = ?, place = ?, first_changed_step = ?, steps_alone = ? WHERE id = ?",
            (
                (batch, place, steps[place], facts.steps_alone[place], identifier)
                for place, identifier in enumerate(intent.ids)
            ),
        )
        self._vault.leaves(self._waiting_numbers(batch))

    def _append_begun(self, intent: Intent, facts: BatchFacts) -> None:
        """Append an event for each request, and keep its leaves for the proofs."""
        mac = self._pseudonyms.mac
        targets: list[str | None] = [mac("target", each.labels).hex() for each in facts.leaves]
        targets = targets or [None] * len(intent.ids)
        self._vault.put(LEAVES, intent.batch_id, encode(self.chain.length() + 1, facts.leaves))
        shared = {
            "batch": intent.batch_id,
            "guarantee": facts.guarantee,
            "before": mac("state", facts.state_before.encode()).hex(),
            "data_root_before": mac("data root", facts.data_root).hex(),
            "recomputed_steps": facts.recomputed_steps,
        }
        steps = intent.decision.first_changed_steps
        self.chain.append_all(
            ("begun", {"request": identifier, "first_changed_step": step, "target": target, **shared})
            for identifier, step, target in zip(intent.ids, steps, targets, strict=True)
        )

    def _waiting_numbers(self, batch_id: str) -> list[int]:
        sql = "SELECT waiting.number FROM requests JOIN waiting USING (number) WHERE batch_id = ?"
        return [number for (number,) in self.database.rows(sql, (batch_id,))]

    def unfinished(self) -> list[Intent]:
        """Return the intents of batches that were begun and are not yet purged."""
        rows = self.database.rows("SELECT batch_id, stage, key, body FROM intents ORDER BY batch_id")
        return [self._decoded(*row) for row in rows]

    @property
    def are_unfinished(self) -> bool:
        """Whether a batch was begun and is not yet purged. Needs no key."""
        return bool(self.database.rows("SELECT 1 FROM intents LIMIT 1"))

    def _decoded(self, batch_id: str, stage: str, key: int, body: bytes) -> Intent:
        if batch_id in self._intents:
            return self._intents[batch_id]
        sql = "SELECT id FROM requests WHERE batch_id = ? ORDER BY place"
        ids = [identifier for (identifier,) in self.database.rows(sql, (batch_id,))]
        if stage == Stage.COMPLETED and self._vault.keys.key(key) is None:  # killed within the purge
            return Intent.being_purged(batch_id, ids)
        data = self._vault.keys.decrypt(key, body, batch_id)
        try:
            self._intents[batch_id] = Intent.decode(batch_id, ids, data)
        except (ValueError, KeyError, TypeError, AttributeError, FedForgetError) as error:
            raise RunDamaged(f"{self.database.path} is damaged: the intent of {batch_id} cannot be read") from error
        return self._intents[batch_id]

    def stage(self, intent: Intent) -> Stage:
        """Return the stage of a batch."""
        rows = self.database.rows("SELECT stage FROM intents WHERE batch_id = ?", (intent.batch_id,))
        return Stage(rows[0][0])

    def removed(self, intent: Intent, rounds_left: int) -> None:
        """Record that the data are removed (or added) and the state is rewound. Rewind the derived tables."""
        leaving = set(intent.decision.leaving)
        for table in self._derived:
            table.rewind(rounds_left, leaving)
        with self.database.transaction():
            asked = list(zip(intent.ids, intent.decision.requests, strict=True))
            emptied = [(identifier, Request(r.client)) for identifier, r in asked if r.client in leaving]
            number = self.chain.length()
            self.database.run_many(  # direct targets first: a client keeps the id of its own request
                "INSERT OR IGNORE INTO erased VALUES (?, ?, ?, 0)",
                ((self._pseudonyms.of(target), number, identifier) for identifier, target in asked + emptied),
            )
            back = (Request(new.client, sample) for new in intent.decision.joining for sample, _ in new.samples)
            self.database.run_many(
                "UPDATE erased SET returned = 1 WHERE pseudonym = ?",
                ((self._pseudonyms.of(target),) for target in back),
            )
            self._supersede(rounds_left)
            if intent.decision.new_seeds is not None:
                self.database.run("UPDATE record SET value = 0 WHERE key = 'tainted'")
                self.chain.append("reseeded", {"seed_origin": "system"})
            self._advance(intent, Stage.REMOVED)

    def _supersede(self, rounds_left: int) -> None:
        """Delete superseded proofs and digests. The batches at work keep their leaves: their proofs share one state."""
        at_work = [batch for (batch,) in self.database.rows("SELECT batch_id FROM intents ORDER BY batch_id")]
        kept = {batch: self._vault.get(LEAVES, batch) for batch in at_work}
        self._vault.supersede(rounds_left)
        for batch, leaves in kept.items():
            if leaves is not None:
                self._vault.put(LEAVES, batch, leaves)

    def standing(self) -> list[tuple[str, int, TargetLeaves]]:
        """Return the requests with valid proofs, latest first: id, place of the batch in the chain, leaves."""
        found = []
        for (batch,) in self.database.rows("SELECT about FROM standing WHERE kind = ?", (LEAVES,)):
            rows = self.database.rows("SELECT id FROM requests WHERE batch_id = ? ORDER BY place", (batch,))
            try:
                number, leaves = decode(self._vault.get(LEAVES, batch) or b"")
                found += [(identifier, number, each) for (identifier,), each in zip(rows, leaves, strict=bool(leaves))]
            except ValueError as error:
                raise RunDamaged(f"{self.database.path} is damaged: {error}") from error
        return sorted(found, key=lambda each: each[1], reverse=True)

    def recomputed(self, intent: Intent) -> None:
        with self.database.transaction():
            self._advance(intent, Stage.RECOMPUTED)

    def completed(self, intent: Intent, outcome: Outcome) -> None:
        """Record that everything is learned again, and the resulting digests; a MAC stays after its digest is deleted.

        One draw-informed request lowers the whole batch to `path`.
        """
        model_mac = self._pseudonyms.mac("model", (outcome.model_digest or "").encode())
        with self.database.transaction():
            if self.stage(intent) == Stage.REMOVED:
                self._advance(intent, Stage.RECOMPUTED)
            self.database.run(
                "UPDATE batches SET model_round = ?, model_of = ?, model_mac = ? WHERE batch_id = ?",
                (outcome.rounds_done, self._kept_model(intent.batch_id, outcome), model_mac, intent.batch_id),
            )
            self._vault.put(STATE, intent.batch_id, outcome.state_digest.encode())
            tainted = bool(self.database.rows("SELECT value FROM record WHERE key = 'tainted'")[0][0])
            lowered = {"guarantee": GUARANTEE_PATH} if tainted else {}
            if lowered:
                self.database.run(
                    "UPDATE batches SET guarantee = ? WHERE batch_id = ?", (GUARANTEE_PATH, intent.batch_id)
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
                    "learner": outcome.learner,
                    "rounds": outcome.rounds_done,
                    "data_root": self._pseudonyms.mac("data root", outcome.data_root).hex(),
                    "tainted": tainted,
                    "mixed_environments": outcome.mixed_environments,
                    **lowered,
                },
            )

    def _kept_model(self, batch_id: str, outcome: Outcome) -> str | None:
        """Store the digest of the model until it is superseded. Return the first batch that ended with this model."""
        if outcome.model_digest is None:
            return None
        digest = outcome.model_digest.encode()
        for known, kept in self._vault.of_round(MODEL, outcome.rounds_done):
            if kept == digest:
                return known
        self._vault.put(MODEL, batch_id, digest, outcome.rounds_done)
        return batch_id

    def purged(self, intent: Intent) -> None:
        """Record that the removed data are purged. ``Work.purge`` has already dropped the intent's key."""
        with self.database.transaction():
            self._advance(intent, Stage.PURGED)
            self.database.run("UPDATE requests SET state = ? WHERE batch_id = ?", (Stage.PURGED, intent.batch_id))
            self.database.run("DELETE FROM intents WHERE batch_id = ?", (intent.batch_id,))
        self._intents.pop(intent.batch_id, None)

    def _advance(self, intent: Intent, stage: Stage, extra: Mapping[str, Any] | None = None) -> None:
        self.database.run("UPDATE intents SET stage = ? WHERE batch_id = ?", (stage, intent.batch_id))
        self.chain.append(stage, {"batch": intent.batch_id, **(extra or {})})
