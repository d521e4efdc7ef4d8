"""Audit of a record: the hash chain of its events, and the agreement of events and tables."""

from __future__ import annotations

from typing import Any

from fedforget.requests.lifecycle import GUARANTEE_PATH, Basis, Stage
from fedforget.store.record import Record

_COMPARED = (
    "level", "basis", "guarantee", "received", "deadline", "reason", "first_changed_step", "recomputed_steps", "state",
)  # fmt: skip
_LEAVES_NO_TRACE = (Stage.RECEIVED, Stage.ACCEPTED, Stage.REJECTED, Stage.CANCELLED)


def find_problem(record: Record, seed_origin: str | None = None) -> str | None:
    """Return the first inconsistency of a record, or None. ``seed_origin``: as the server's database states it."""
    return record.chain.problem() or _event_problem(record, seed_origin) or _pseudonym_problem(record)


def _event_problem(record: Record, seed_origin: str | None) -> str | None:
    """Replay the events and compare the result with the tables."""
    replayed: dict[str, dict[str, Any]] = {}
    tainted, origin = False, None
    for event in record.events():
        origin = event.get("seed_origin", origin)
        if event["kind"] == "reseeded":
            tainted = False
        if event["kind"] == "added":
            tainted |= event.get("basis") != Basis.EXOGENOUS
        if event["kind"] == Stage.CANCELLED:
            tainted |= event.get("cancelled_basis") != Basis.EXOGENOUS
        if "request" in event:
            about = replayed.setdefault(event["request"], {})
            state = event["kind"] if event["kind"] in list(Stage) else about.get("state")
            about |= {**event, "state": state}
            if "guarantee" in event and event["kind"] != Stage.COMPLETED:  # completion may only lower it
                tainted |= event["guarantee"] == GUARANTEE_PATH and about.get("basis") != Basis.EXOGENOUS
    stored = {receipt.id: receipt.as_dict() for receipt in record.book.receipts()}
    if replayed.keys() != stored.keys() or any(
        about.get(key) != stored[request][key] for request, about in replayed.items() for key in _COMPARED
    ):
        return "the requests of the record are not those of its events"
    if tainted != record.book.tainted or (seed_origin or origin) != origin:
        return "the record's account of its seeds is not that of its events"
    return None


def _pseudonym_problem(record: Record) -> str | None:
    """Check the MACs of model digests, and that every erasure left its pseudonym."""
    ended = {event.body.get("request", ""): event.sequence for event in record.chain.events()}
    traced = {request for (request,) in record.database.rows("SELECT request FROM erased")}
    forgotten_at = record.forgotten_at
    for identifier, state, model, mac in record.database.rows(
        "SELECT id, state, model_digest, model_mac FROM requests"
    ):
        if model is not None and mac is not None and record.pseudonyms.mac("model", model.encode()) != mac:
            return f"the model digest of request {identifier} was altered"
        if state not in _LEAVES_NO_TRACE and identifier not in traced and ended[identifier] > forgotten_at:
            return f"request {identifier} has lost its pseudonym"
    return None
