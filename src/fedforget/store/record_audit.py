"""Whether a record's events chain, and tell the story that its tables tell."""

from __future__ import annotations

from typing import Any

from fedforget.requests.lifecycle import GUARANTEE_PATH, Basis, Stage
from fedforget.store.record import Record

_TOLD = (
    "level", "basis", "guarantee", "received", "deadline", "reason", "first_changed_step", "recomputed_steps", "state",
)  # fmt: skip
_LEAVES_NO_TRACE = (Stage.RECEIVED, Stage.ACCEPTED, Stage.REJECTED, Stage.CANCELLED)


def problem_of(record: Record, seed_origin: str | None = None) -> str | None:
    """Why they don't; None if they do."""
    return record.chain.problem() or _story_problem(record, seed_origin) or _trace_problem(record)


def _story_problem(record: Record, seed_origin: str | None) -> str | None:
    told: dict[str, dict[str, Any]] = {}
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
            about = told.setdefault(event["request"], {})
            state = event["kind"] if event["kind"] in list(Stage) else about.get("state")
            about |= {**event, "state": state}
            if "guarantee" in event and event["kind"] != Stage.COMPLETED:  # where it may only be lowered
                tainted |= event["guarantee"] == GUARANTEE_PATH and about.get("basis") != Basis.EXOGENOUS
    shown = {receipt.id: receipt.as_dict() for receipt in record.book.receipts()}
    if told.keys() != shown.keys() or any(
        about.get(key) != shown[request][key] for request, about in told.items() for key in _TOLD
    ):
        return "the requests of the record are not those of its events"
    if tainted != record.book.tainted or (seed_origin or origin) != origin:
        return "the record's events tell another story of its seeds"
    return None


def _trace_problem(record: Record) -> str | None:
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
