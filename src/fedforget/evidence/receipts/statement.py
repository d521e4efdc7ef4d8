"""The content of a receipt: the in-toto statement of how a finished request ended, built from a run's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedforget.errors import RunDamaged
from fedforget.evidence.receipts.shape import PREDICATE, STATEMENT
from fedforget.requests.chain import Event, about
from fedforget.requests.lifecycle import Receipt, Stage
from fedforget.store.run_directory import OpenRun

_DAY = len("2027-01-31")

Statement = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended: its receipt, its events by kind, and the kinds of the events after its outcome."""

    receipt: Receipt
    events: Mapping[str, Event]
    later: frozenset[str]

    @classmethod
    def read(cls, run: OpenRun, receipt: Receipt, chain: Sequence[Event]) -> Ending:
        """Find a finished request in the events of a run."""
        own = (receipt.id, receipt.batch_id)  # a batch comes to its stages as a whole
        events = {event.kind: event for event in chain if about(event.body) in own and about(event.body) is not None}
        needed = {Stage.RECEIVED, receipt.state, *([Stage.COMPLETED] if receipt.state == Stage.PURGED else [])}
        if not needed <= events.keys():
            raise RunDamaged(
                f"{run.record.database.path} is damaged: its events do not say how request {receipt.id} ended"
            )
        outcome = events.get(Stage.COMPLETED, events[receipt.state])
        return cls(receipt, events, frozenset(event.kind for event in chain if event.sequence > outcome.sequence))

    @property
    def is_erasure(self) -> bool:
        """Whether the request was carried out: not rejected and not cancelled."""
        return self.receipt.state == Stage.PURGED

    @property
    def outcome(self) -> Mapping[str, Any]:
        """What the record says about the state after an erasure."""
        return self.events[Stage.COMPLETED].body


def build_statement(run: OpenRun, ending: Ending, *, public: bool) -> Statement:
    """Return the statement that the run issues for this request now."""
    last = ending.events[ending.receipt.state]
    digest = run.record.book.state_digest_of(ending.receipt.id) if ending.is_erasure else None
    predicate: dict[str, Any] = {
        "request": _request(run, ending.receipt, public),
        "chain": {"head": last.hash.hex()} if public else {"head": last.hash.hex(), "sequence": last.sequence},
        "form": "public" if public else "full",
    }
    if ending.is_erasure:
        predicate |= {**_erasure(ending), "superseded": digest is None}
        if not public:
            predicate |= _recomputation(ending, run.file.plan.local_steps)
    return {
        "_type": STATEMENT,
        "subject": [] if digest is None else [{"name": "state", "digest": {"blake2b-256": digest}}],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }


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
        **{name: outcome.get(name) for name in ("plan", "commitments", "state_mac", "version")},
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
