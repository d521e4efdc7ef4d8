"""The schema of a receipt: its exact fields and their types."""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import Any

from fedforget.errors import ReceiptRefused
from fedforget.requests.lifecycle import Stage

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:fedforget:receipt:1"
Shape = dict[str, tuple[type, ...]]  # field → allowed types

_TEXT, _OPTIONAL, _NUMBER = (str,), (str, NoneType), (int, NoneType)
_REQUEST: Shape = {
    "id": _TEXT, "pseudonym": _OPTIONAL, "level": _TEXT, "basis": _TEXT, "state": _TEXT, "times": (dict,),
    "deadline": _OPTIONAL, "reason": _OPTIONAL,
}  # fmt: skip
_ALWAYS: Shape = {"request": (dict,), "chain": (dict,), "form": _TEXT}
_PURGED: Shape = {
    "plan": _OPTIONAL, "commitments": _OPTIONAL, "state_mac": _OPTIONAL, "superseded": (bool,), "guarantee": _OPTIONAL,
    "seeds_tainted": (bool, NoneType), "version": _OPTIONAL,
}  # fmt: skip
_RECOMPUTED: Shape = {
    "state_mac_before": _OPTIONAL, "first_changed_step": _NUMBER, "recomputed_steps": _NUMBER,
    "recomputed_rounds": _NUMBER, "guarantee_covers": _OPTIONAL, "mixed_environments": (bool, NoneType),
    "model": _OPTIONAL,
}  # fmt: skip
ADDED_LATER = "guarantee_covers"  # receipts signed before it existed lack it


def require_shape(file: Path, statement: dict[str, Any]) -> None:
    """Refuse missing and additional fields: an added field would look as if the run had vouched for it."""
    if statement.get("_type") != STATEMENT or statement.get("predicateType") != PREDICATE:
        raise ReceiptRefused(f"{file} is signed, but is not a receipt of a request", hint="give a receipt")
    top: Shape = {"_type": _TEXT, "predicateType": _TEXT, "subject": (list,), "predicate": (dict,)}
    if not (_has_shape(statement, top) and _is_predicate(statement["predicate"]) and _is_subject(statement)):
        raise ReceiptRefused(f"{file} is signed, but does not have the fields of a receipt", hint="give a receipt")


def _is_predicate(predicate: dict[str, Any]) -> bool:
    request: Any = predicate.get("request")
    form = predicate.get("form")
    if form not in ("full", "public") or not _has_shape(request, _REQUEST):
        return False
    public, purged = form == "public", request["state"] == Stage.PURGED
    shape = _ALWAYS | (_PURGED if purged else {}) | (_RECOMPUTED if purged and not public else {})
    if ADDED_LATER not in predicate:
        shape.pop(ADDED_LATER, None)
    place: Shape = {"head": _TEXT} if public else {"head": _TEXT, "sequence": (int,)}
    times: Shape = dict.fromkeys(request["times"], _TEXT)
    return (
        _has_shape(predicate, shape) and _has_shape(predicate["chain"], place) and _has_shape(request["times"], times)
    )


def _is_subject(statement: dict[str, Any]) -> bool:
    """Return whether the subject is the state after the request; empty if it was superseded or nothing was erased."""
    subject, superseded = statement["subject"], statement["predicate"].get("superseded", True)
    if superseded or len(subject) != 1:
        return superseded and not subject
    state: Shape = {"name": _TEXT, "digest": (dict,)}
    return (
        _has_shape(subject[0], state)
        and subject[0]["name"] == "state"
        and _has_shape(subject[0]["digest"], {"blake2b-256": _TEXT})
    )


def _has_shape(value: Any, shape: Shape) -> bool:
    """Return whether a value has exactly these fields with these types. A bool does not count as a number."""
    return (
        isinstance(value, dict)
        and value.keys() == shape.keys()
        and all(type(value[name]) in kinds for name, kinds in shape.items())
    )
