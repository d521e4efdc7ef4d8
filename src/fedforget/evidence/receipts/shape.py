"""The schema of a receipt: its exact fields and their types."""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import Any

from fedforget.errors import ReceiptRefused
from fedforget.requests.lifecycle import Stage

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:fedforget:receipt:2"
_EARLIER = "urn:fedforget:receipt:1"
DESTROYED = ["logs", "metrics", "models", "rows", "temporary files"]  # docs/receipt-format.md says what each one is
UNKNOWN = ["backups", "copies", "exports that were not noted"]
UNKNOWN_REMOTE = [*UNKNOWN, "messages that Flower keeps"]  # of clients on other machines
RE_EXECUTE = "fedforget receipt verify FILE --key PUB --run RUN"
RE_EXECUTE_OWN = "fedforget.Run(RUN, model=MODEL, data=DATA).check_receipt(fedforget.read_receipt(FILE, PUB))"
_LARGEST = 2**63  # of numbers of events
_DAY = len("2027-01-31")
Statement = dict[str, Any]
Shape = dict[str, tuple[type, ...]]  # field → allowed types

_TEXT, _OPTIONAL, _NUMBER, _DICT, _LIST = (str,), (str, NoneType), (int, NoneType), (dict,), (list,)
_PROOF = (dict, NoneType)
_REQUEST: Shape = {
    "id": _TEXT, "pseudonym": _OPTIONAL, "level": _TEXT, "basis": _TEXT, "state": _TEXT, "times": _DICT,
    "deadline": _OPTIONAL, "reason": _OPTIONAL,
}  # fmt: skip
_ALWAYS: Shape = {"request": _DICT, "chain": _DICT, "form": _TEXT}
_PURGED: Shape = {
    "counterfactual": _DICT, "state_mac": _OPTIONAL, "superseded": (bool,), "guarantee": _OPTIONAL,
    "seeds_tainted": (bool, NoneType), "version": _OPTIONAL, "target": _PROOF, "data_root_after": _OPTIONAL,
    "data_root_mac": _OPTIONAL, "absence": _PROOF, "destroyed_or_rewritten": _LIST, "out_of_reach": _DICT,
    "re_execute": _TEXT,
}  # fmt: skip
_FULL: Shape = {
    "state_mac_before": _OPTIONAL, "first_changed_step": _NUMBER, "recomputed_steps": _NUMBER,
    "recomputed_rounds": _NUMBER, "guarantee_covers": _OPTIONAL, "mixed_environments": (bool, NoneType),
    "model": _OPTIONAL, "data_root_before": _OPTIONAL, "data_root_mac_before": _OPTIONAL, "presence": _PROOF,
}  # fmt: skip
_COUNTERFACTUAL: Shape = {"plan": _OPTIONAL, "learner": _OPTIONAL, "commitments": _OPTIONAL, "rounds": _NUMBER}
_PLACE: Shape = {"run": _TEXT, "head": _TEXT}
_FULL_PLACE: Shape = {**_PLACE, "sequence": (int,), "previous": _PROOF}
_PREVIOUS: Shape = {"sequence": (int,), "head": _TEXT, "steps": _LIST}
_PATHS: Shape = {"client": _DICT, "sample": _PROOF}
_PATH: Shape = {"siblings": _LIST, "bucket": _LIST}


def require_shape(file: Path, statement: dict[str, Any]) -> None:
    """Refuse missing and additional fields: an added field would look like a statement of the run."""
    if statement.get("_type") == STATEMENT and statement.get("predicateType") == _EARLIER:
        raise ReceiptRefused(
            f"{file} is a receipt of an earlier format ({_EARLIER}), which this version does not read",
            hint="verify it with the version of FedForget that it names",
        )
    if statement.get("_type") != STATEMENT or statement.get("predicateType") != PREDICATE:
        raise ReceiptRefused(f"{file} is signed, but is not a receipt of a request", hint="give a receipt")
    top: Shape = {"_type": _TEXT, "predicateType": _TEXT, "subject": _LIST, "predicate": _DICT}
    if not (_has_shape(statement, top) and _is_predicate(statement["predicate"]) and _is_subject(statement)):
        raise ReceiptRefused(f"{file} is signed, but does not have the fields of a receipt", hint="give a receipt")


def _is_predicate(predicate: dict[str, Any]) -> bool:
    request: Any = predicate.get("request")
    form = predicate.get("form")
    if form not in ("full", "public") or not _has_shape(request, _REQUEST):
        return False
    public, purged = form == "public", request["state"] == Stage.PURGED
    shape = _ALWAYS | (_PURGED if purged else {}) | (_FULL if purged and not public else {})
    times: Shape = dict.fromkeys(request["times"], _TEXT)
    return (
        _has_shape(predicate, shape)
        and _has_shape(request["times"], times)
        and _is_place(predicate["chain"], public)
        and (not purged or _is_erasure(predicate, public))
    )


def _is_place(chain: dict[str, Any], public: bool) -> bool:
    if not _has_shape(chain, _PLACE if public else _FULL_PLACE):
        return False
    previous = None if public else chain["previous"]
    if previous is None:
        return public or 0 < chain["sequence"] < _LARGEST
    shaped = _has_shape(previous, _PREVIOUS) and are_pairs(previous["steps"])
    return shaped and 0 < previous["sequence"] < chain["sequence"] < _LARGEST


def _is_erasure(predicate: dict[str, Any], public: bool) -> bool:
    target, proofs = predicate["target"], [predicate["absence"], *([] if public else [predicate["presence"]])]
    return (
        _has_shape(predicate["counterfactual"], _COUNTERFACTUAL)
        and (target is None or _has_shape(target, {"client": _TEXT, "sample": _OPTIONAL}))
        and all(proof is None or _is_proof(proof) for proof in proofs)
        and predicate["destroyed_or_rewritten"] == DESTROYED
        and predicate["re_execute"] in (RE_EXECUTE, RE_EXECUTE_OWN)
        and _is_out_of_reach(predicate["out_of_reach"], public)
        and _fits_together(predicate, public)
    )


def _fits_together(predicate: dict[str, Any], public: bool) -> bool:
    """Return whether proofs are present exactly if their roots and target are."""
    after, target, absence = predicate["data_root_after"], predicate["target"], predicate["absence"]
    before, presence = (None, None) if public else (predicate["data_root_before"], predicate["presence"])
    return (
        (after is None) == predicate["superseded"]
        and (target is None) == (absence is None)
        and not (after is None and absence is not None)
        and (before is None) == (presence is None)
        and not (target is None and presence is not None)
    )


def _is_proof(proof: Any) -> bool:
    paths = [proof["client"], proof["sample"]] if _has_shape(proof, _PATHS) else [None]
    return paths[0] is not None and all(path is None or _is_path(path) for path in paths)


def _is_path(path: Any) -> bool:
    return _has_shape(path, _PATH) and all(type(each) is str for each in path["siblings"]) and are_pairs(path["bucket"])


def are_pairs(values: list[Any]) -> bool:
    """Return whether every value is a list of two texts."""
    return all(type(each) is list and len(each) == 2 and all(type(part) is str for part in each) for each in values)  # noqa: PLR2004


def _is_out_of_reach(value: dict[str, Any], public: bool) -> bool:
    export: Shape = {"time": _TEXT} if public else {"time": _TEXT, "mac": _TEXT}
    return (
        _has_shape(value, {"exports": _LIST, "unknown": _LIST})
        and value["unknown"] in (UNKNOWN, UNKNOWN_REMOTE)
        and all(_has_shape(each, export) and (len(each["time"]) == _DAY) == public for each in value["exports"])
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
