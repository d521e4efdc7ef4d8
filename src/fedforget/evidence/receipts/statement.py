"""The content of a receipt: the in-toto statement of how a finished request ended, built from a run's record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedforget.errors import RunDamaged
from fedforget.evidence.receipts.shape import (
    DESTROYED,
    PREDICATE,
    RE_EXECUTE,
    RE_EXECUTE_OWN,
    STATEMENT,
    UNKNOWN,
    UNKNOWN_REMOTE,
    Statement,
)
from fedforget.evidence.receipts.standing import StandingProof, standing_proof
from fedforget.requests.chain import Event, EventChain
from fedforget.requests.lifecycle import Receipt, Stage
from fedforget.store.record import EXPORTED
from fedforget.store.run_directory import OpenRun

_ENDINGS = (Stage.PURGED, Stage.REJECTED, Stage.CANCELLED)
_DAY = len("2027-01-31")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended: its receipt, and its events by kind. The cost of reading it does not grow."""

    receipt: Receipt
    events: Mapping[str, Event]
    chain: EventChain

    @classmethod
    def read(cls, run: OpenRun, receipt: Receipt) -> Ending:
        """Find a finished request in the events of a run."""
        own = [name for name in (receipt.id, receipt.batch_id) if name is not None]  # a batch ends as one
        events = {event.kind: event for event in run.record.chain.about(own)}
        needed = {Stage.RECEIVED, receipt.state, *([Stage.COMPLETED] if receipt.state == Stage.PURGED else [])}
        if not needed <= events.keys():
            raise RunDamaged(
                f"{run.record.database.path} is damaged: its events do not say how request {receipt.id} ended"
            )
        return cls(receipt, events, run.record.chain)

    def is_before(self, *kinds: str) -> bool:
        """Return whether an event of one of these kinds came after the outcome."""
        outcome = self.events.get(Stage.COMPLETED, self.events[self.receipt.state])
        return self.chain.last_of(*kinds) > outcome.sequence

    @property
    def is_erasure(self) -> bool:
        """Whether the request was carried out: not rejected and not cancelled."""
        return self.receipt.state == Stage.PURGED

    @property
    def completed(self) -> int:
        """The place of the event that completed an erasure."""
        return self.events[Stage.COMPLETED].sequence

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Return the record's digests of the state after an erasure."""
        return self.events[Stage.COMPLETED].body


def build_statement(run: OpenRun, ending: Ending, *, public: bool) -> Statement:
    """Return the statement that the run issues for this request now."""
    stands = ending.is_erasure and not run.record.batches.are_unfinished
    digest = run.record.book.state_digest_of(ending.receipt.id) if stands else None
    predicate: dict[str, Any] = {
        "request": _request(run, ending.receipt, public),
        "chain": _place(run, ending, public),
        "form": "public" if public else "full",
    }
    if ending.is_erasure:
        proof = None if digest is None else standing_proof(run, ending.receipt.id)
        predicate |= {
            **_erasure(ending),
            "superseded": digest is None,
            **_absence(run, proof, standing=digest is not None),
            "destroyed_or_rewritten": DESTROYED,
            "out_of_reach": {
                "exports": _exports(ending, public),
                "unknown": UNKNOWN_REMOTE if run.is_remote else UNKNOWN,
            },
            "re_execute": RE_EXECUTE if run.file.is_built_in else RE_EXECUTE_OWN,
        }
        if not public:
            predicate |= {**_recomputation(ending, run.file.plan.local_steps), **_presence(ending, proof)}
    return {
        "_type": STATEMENT,
        "subject": [] if digest is None else [{"name": "state", "digest": {"blake2b-256": digest}}],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }


def _place(run: OpenRun, ending: Ending, public: bool) -> dict[str, Any]:
    """Return the place in the event chain where the request ended; in full also the proof for the previous receipt."""
    last = ending.events[ending.receipt.state]
    place = {"run": ending.chain.hash_at(1).hex(), "head": last.hash.hex()}
    if public:
        return place
    previous = ending.chain.at(ending.chain.last_of(*_ENDINGS, before=last.sequence))
    return {**place, "sequence": last.sequence, "previous": previous and _link(run, last, previous)}


def _link(run: OpenRun, newer: Event, older: Event) -> dict[str, Any]:
    steps = run.record.chain.proof(newer.sequence, older.sequence)
    return {
        "sequence": older.sequence,
        "head": older.hash.hex(),
        "steps": [[digest.hex(), beside.hex()] for digest, beside in steps],
    }


def _absence(run: OpenRun, proof: StandingProof | None, *, standing: bool) -> dict[str, Any]:
    return {
        "target": None if proof is None else proof.target.as_dict(),
        "data_root_after": run.part.data_root().hex() if standing else None,
        "absence": None if proof is None else proof.absence.as_dict(),
    }


def _presence(ending: Ending, proof: StandingProof | None) -> dict[str, Any]:
    before, presence = (None, None) if proof is None else (proof.before, proof.presence)
    return {
        "data_root_mac_before": ending.events["begun"].body.get("data_root_before"),
        "data_root_before": None if before is None else before.hex(),
        "presence": None if presence is None else presence.as_dict(),
    }


def _exports(ending: Ending, public: bool) -> list[dict[str, str]]:
    """Return the exports before the request was carried out. Equal MACs would show that no model changed in between."""
    known = ending.chain.all_of(EXPORTED, before=ending.completed)
    if public:
        return [{"time": time} for time in sorted({event.time[:_DAY] for event in known})]
    return [{"time": event.time, "mac": event.body["mac"]} for event in known]


def _request(run: OpenRun, receipt: Receipt, public: bool) -> dict[str, Any]:
    stages = (Stage.RECEIVED, receipt.state) if public else receipt.times
    return {
        "id": receipt.id,
        "pseudonym": run.record.book.pseudonym_of(receipt.id),
        "level": receipt.level,
        "basis": receipt.basis,
        "state": receipt.state,
        "times": {stage: receipt.times[stage][: _DAY if public else None] for stage in stages},
        "deadline": (receipt.deadline or "")[:_DAY] if public else receipt.deadline,
        "reason": receipt.reason,
    }


def _erasure(ending: Ending) -> dict[str, Any]:
    outcome = ending.outcome
    return {
        "counterfactual": {name: outcome.get(name) for name in ("plan", "learner", "commitments", "rounds")},
        **{name: outcome.get(name) for name in ("state_mac", "version")},
        "data_root_mac": outcome.get("data_root"),
        "guarantee": ending.receipt.guarantee,
        "seeds_tainted": outcome.get("tainted"),
    }


def _recomputation(ending: Ending, local_steps: int) -> dict[str, Any]:
    receipt = ending.receipt
    return {
        "state_mac_before": ending.events["begun"].body.get("before") if "begun" in ending.events else None,
        "first_changed_step": receipt.first_changed_step,
        "recomputed_steps": receipt.recomputed_steps,
        "recomputed_rounds": (receipt.recomputed_steps or 0) // local_steps,
        "guarantee_covers": receipt.guarantee_covers,
        "mixed_environments": ending.outcome.get("mixed_environments"),
        "model": receipt.model_digest,
    }
