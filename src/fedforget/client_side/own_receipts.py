"""The receipts that a client signs itself, about requests that were made at it."""

from __future__ import annotations

from typing import Any

from fedforget.client_side.directory import OpenDirectory
from fedforget.errors import InvalidInput, shown
from fedforget.evidence.receipts.envelope import Envelope, seal
from fedforget.evidence.receipts.shape import STATEMENT
from fedforget.requests.chain import Event, about
from fedforget.requests.lifecycle import Receipt, Stage

PREDICATE = "urn:fedforget:client-receipt:1"
_DESTROYED = (
    "sample ids and content digests in client.book (rewritten)",
    "first uses of the samples in uses.db (rebuilt from its content)",
    "the encrypted request in record.db (its key was destroyed)",
)
_OUTCOME = {"state_mac": "state_mac", "root_mac": "data_root", "plan": "plan", "version": "version"}


def signed_receipt(state: OpenDirectory, identifier: str) -> Envelope:
    """Return the signed receipt of a request that is purged here, or was rejected."""
    receipt = state.record.book.receipt(identifier)
    if receipt.is_open:
        raise InvalidInput(
            f"request {shown(identifier)} is {receipt.state}: it has no receipt yet",
            hint="it is carried out and purged at the next contacts with the server",
        )
    return seal(_statement(state, receipt), state.key())


def _statement(state: OpenDirectory, receipt: Receipt) -> dict[str, Any]:
    erased = receipt.state == Stage.PURGED
    digest = state.record.book.state_digest_of(receipt.id) if erased else None
    return {
        "_type": STATEMENT,
        "subject": [] if digest is None else [{"name": "client state", "digest": {"blake2b-256": digest}}],
        "predicateType": PREDICATE,
        "predicate": _about(state, receipt) | (_erasure(state, receipt, standing=digest is not None) if erased else {}),
    }


def _about(state: OpenDirectory, receipt: Receipt) -> dict[str, Any]:
    chain = state.record.chain.events()
    own = _events(chain, receipt)
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
        "chain": {"first": chain[0].hash.hex(), "head": own[-1].hash.hex(), "sequence": own[-1].sequence},
    }


def _erasure(state: OpenDirectory, receipt: Receipt, *, standing: bool) -> dict[str, Any]:
    events = {event.kind: event for event in _events(state.record.chain.events(), receipt)}
    outcome, begun = events[Stage.COMPLETED].body, events["begun"].body
    return {
        "root_mac_before": begun.get("data_root_before"),
        **{name: outcome.get(key) for name, key in _OUTCOME.items()},
        "root": state.book.root.hex() if standing and not state.book.is_empty else None,
        "commitment": outcome.get("commitments") or None,
        "superseded": not standing,
        "server": events["finished by the server"].body.get("told"),
        "destroyed_or_rewritten": list(_DESTROYED),
    }


def _events(chain: list[Event], receipt: Receipt) -> list[Event]:
    own = {receipt.id, receipt.batch_id} - {None}
    return [event for event in chain if about(event.body) in own]
