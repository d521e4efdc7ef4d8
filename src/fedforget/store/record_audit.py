"""Audit of a record: the hash chain of its events, and the agreement of events and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedforget.requests.chain import about
from fedforget.requests.lifecycle import GUARANTEE_PATH, Basis, Stage
from fedforget.requests.vault import MODEL
from fedforget.store.record import Record

_COMPARED = (
    "level", "basis", "guarantee", "received", "deadline", "reason", "first_changed_step", "recomputed_steps", "state",
)  # fmt: skip
_LEAVES_NO_TRACE = (Stage.RECEIVED, Stage.ACCEPTED, Stage.REJECTED, Stage.CANCELLED)


def find_problem(record: Record, seed_origin: str | None = None) -> str | None:
    """Return the first inconsistency of a record, or None. ``seed_origin``: as the server's database states it."""
    return record.chain.problem() or _event_problem(record, seed_origin) or _pseudonym_problem(record)


@dataclass(slots=True)
class _Replayed:
    """What the events say."""

    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    tainted: bool = False
    origin: str | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event["kind"]
        self.origin = event.get("seed_origin", self.origin)
        if kind == "reseeded":
            self.tainted = False
        if kind == "added":
            self.tainted |= event.get("basis") != Basis.EXOGENOUS
        if kind == Stage.CANCELLED:
            self.tainted |= event.get("cancelled_basis") != Basis.EXOGENOUS
        if "request" in event:
            told = self.requests.setdefault(event["request"], {})
            told |= {**event, "state": kind if kind in list(Stage) else told.get("state")}
            self.tainted |= event.get("guarantee") == GUARANTEE_PATH and told.get("basis") != Basis.EXOGENOUS
        elif kind in list(Stage):
            self.batches.setdefault(event.get("batch", ""), {}).update({**event, "state": kind})

    def of(self, request: str) -> dict[str, Any]:
        """Return the fields of a request's events and of its batch's. Completion may lower a guarantee."""
        told = self.requests[request]
        shared = self.batches.get(told.get("batch", ""), {})
        return {**told, **{name: shared[name] for name in ("state", "guarantee") if name in shared}}


def _event_problem(record: Record, seed_origin: str | None) -> str | None:
    """Replay the events and compare the result with the tables."""
    replayed = _Replayed()
    for event in record.events():
        replayed.add(event)
    stored = {receipt.id: receipt.as_dict() for receipt in record.book.receipts()}
    if replayed.requests.keys() != stored.keys() or any(
        replayed.of(request).get(name) != told[name] for request, told in stored.items() for name in _COMPARED
    ):
        return "the requests of the record are not those of its events"
    if replayed.tainted != record.book.tainted or (seed_origin or replayed.origin) != replayed.origin:
        return "the record's account of its seeds is not that of its events"
    return None


def _pseudonym_problem(record: Record) -> str | None:
    """Check the MACs of model digests, and that every erasure left its pseudonym."""
    traced = {request for (request,) in record.database.rows("SELECT request FROM erased")}
    forgotten_at = record.forgotten_at
    ended = {about(event.body): event.sequence for event in record.chain.events() if event.kind in list(Stage)}
    for receipt in record.book.receipts():
        gone = receipt.state not in _LEAVES_NO_TRACE and ended.get(receipt.batch_id, 0) > forgotten_at
        if gone and receipt.id not in traced:
            return f"request {receipt.id} has lost its pseudonym"
    for batch, model_of, mac in record.database.rows("SELECT batch_id, model_of, model_mac FROM batches"):
        model = None if model_of is None or mac is None else record.vault.get(MODEL, model_of)
        if model is not None and record.pseudonyms.mac("model", model) != mac:
            return f"the model digest of batch {batch} was altered"
    return None
