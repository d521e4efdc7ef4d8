"""Receipts that a client signs itself, for its own requests."""

from __future__ import annotations

from typing import Any

from fedforget.client_side.directory import OpenDirectory
from fedforget.evidence.receipts.envelope import Envelope, seal
from fedforget.evidence.receipts.shape import STATEMENT
from fedforget.requests.chain import Event
from fedforget.requests.lifecycle import Receipt, Stage

PREDICATE = "urn:fedforget:client-receipt:1"
_DESTROYED = (
    "sample ids and content digests in client.book (rewritten)",
    "first uses of the samples in uses.db (rebuilt from its content)",
    "the encrypted request in record.db (its key was destroyed)",
)
_OUTCOME = {"state_mac": "state_mac", "root_mac": "data_root", "plan": "plan", "version": "version"}


def signed_receipt(state: OpenDirectory, identifier: str) -> Envelope:
    """Return the signed receipt of a request that is purged or rejected. Raise InvalidInput if it is open."""
    receipt = state.record.book.receipt(identifier)
    receipt.require_closed("it is carried out and purged at the next contacts with the server")
    return seal(_statement(state, receipt), state.key())


def _statement(state: OpenDirectory, receipt: Receipt) -> dict[str, Any]:
    erased, events = receipt.state == Stage.PURGED, _events(state, receipt)
    digest = state.record.book.state_digest_of(receipt.id) if erased else None
    return {
        "_type": STATEMENT,
        "subject": [] if digest is None else [{"name": "client state", "digest": {"blake2b-256": digest}}],
        "predicateType": PREDICATE,
        "predicate": _about(state, receipt, events)
        | (_erasure(state, events, standing=digest is not None) if erased else {}),
    }


def _about(state: OpenDirectory, receipt: Receipt, events: list[Event]) -> dict[str, Any]:
    return {
        "client": state.client,
        "withdrawal": state.record.handles([receipt.id]).get(receipt.id),
        "request": {
            "id": receipt.id,
            "pseudonym": state.record.book.pseudonym_of(receipt.id),
            "level": receipt.level,
            "basis": receipt.basis,
            "state": receipt.state,
            "times": dict(receipt.times),
            "deadline": receipt.deadline,
            "reason": receipt.reason,
        },
        "chain": {
            "first": state.record.chain.first().hash.hex(),
            "head": events[-1].hash.hex(),
            "sequence": events[-1].sequence,
        },
    }


def _erasure(state: OpenDirectory, events: list[Event], *, standing: bool) -> dict[str, Any]:
    bodies = {event.kind: event.body for event in events}
    outcome, begun = bodies[Stage.COMPLETED], bodies["begun"]
    return {
        "root_mac_before": begun.get("data_root_before"),
        **{name: outcome.get(key) for name, key in _OUTCOME.items()},
        "root": state.book.root.hex() if standing and not state.book.is_empty else None,
        "commitment": outcome.get("commitments") or None,
        "superseded": not standing,
        "server": bodies["finished by the server"].get("told"),
        "destroyed_or_rewritten": list(_DESTROYED),
    }


def _events(state: OpenDirectory, receipt: Receipt) -> list[Event]:
    """Return the events of a request and of its batch, without reading any other."""
    own = [name for name in (receipt.id, receipt.batch_id) if name is not None]
    return state.record.chain.about(own)
