"""Issue and check receipts: signed in-toto statements of the outcome of a request.

Offline, a check proves that the run's key signed the receipt. With the run, every claim is compared with the run's
content, and the recomputed rounds can be replayed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedforget.disk.files import path_of
from fedforget.errors import InvalidInput, ReceiptRefused, RunDamaged, shown
from fedforget.evidence.receipts import strict_json
from fedforget.evidence.receipts.envelope import Envelope, seal, unseal
from fedforget.evidence.receipts.receipt_key import (
    get_or_create_key,
    has_public_half,
    key_id,
    known_key,
    read_public_key,
    replaced_key,
)
from fedforget.evidence.receipts.shape import PREDICATE, STATEMENT, require_shape
from fedforget.requests.chain import Event
from fedforget.requests.lifecycle import Receipt, Stage
from fedforget.store import hints, record_audit, run_directory
from fedforget.store.commitments import commitments_digest
from fedforget.store.run_directory import OpenRun
from fedforget.store.state_digest import state_digest

_DAY = len("2027-01-31")
_SPELT = {
    "commitments": "set of commitments to seeds",
    "state_mac": "state",
    "state_mac_before": "state before",
    "version": "version of the code",
    "first_changed_step": "first changed step",
    "recomputed_steps": "number of recomputed steps",
    "recomputed_rounds": "number of recomputed rounds",
    "mixed_environments": "account of environments",
}


@dataclass(frozen=True, slots=True)
class Issued:
    """A signed receipt, and whether the seeds are tainted now, which the receipt does not state."""

    envelope: Envelope
    seeds_tainted_now: bool


def issue(path: Path, identifier: str, *, public: bool = False, new_key: bool = False) -> Issued:
    """Return the signed receipt of a finished request.

    The public form does not reveal whether anything was recomputed: it omits the steps, the exact times, the digest of
    the previous state and the number of events. ``new_key``: replace a lost signing key.
    """
    with run_directory.reading(path) as run:
        statement, known = _statement(run, identifier, public), run.record.receipt_key
        tainted = run.record.book.tainted
        key = known_key(path, known) if known is not None and not new_key else None
        if key is not None and not has_public_half(path, key):
            key = None  # restoring the public half needs the run open for writing
    if key is None:
        with run_directory.writing(path) as run:
            key = _agreed_key(run, new_key)
    return Issued(seal(statement, key), tainted)


def _agreed_key(run: OpenRun, new_key: bool) -> Ed25519PrivateKey:
    """Return the signing key after writing its files and then recording it. Only then may it sign."""
    known, last = run.record.receipt_key, run.record.chain.events()[-1]  # another process may have created one
    if new_key:
        key = replaced_key(run.path, known, fresh=last.body.get("key") == known)
    else:
        key = get_or_create_key(run.path, known)
    if key_id(key.public_key()) != known:
        run.record.note_receipt_key(key_id(key.public_key()))
    return key


def _statement(run: OpenRun, identifier: str, public: bool) -> dict[str, Any]:
    record = run.record
    receipt = record.book.receipt(identifier)
    if receipt.is_open:
        raise InvalidInput(
            f"request {shown(identifier)} is {receipt.state}: it has no receipt yet",
            hint=f"carry it out with {hints.run_pending(run.path)}",
        )
    events = _events(run, receipt)
    last = events[receipt.state]
    times = {stage: time[:_DAY] if public else time for stage, time in receipt.times.items()}
    if public:
        times = {stage: times[stage] for stage in (Stage.RECEIVED, receipt.state)}
    predicate: dict[str, Any] = {
        "request": {
            "id": receipt.id,
            "pseudonym": record.book.pseudonym_of(receipt.id),
            "level": receipt.level,
            "basis": receipt.basis,
            "state": receipt.state,
            "times": times,
            "deadline": (receipt.deadline or "")[:_DAY] if public else receipt.deadline,
            "reason": receipt.reason,
        },
        "chain": {"head": last.hash.hex()} if public else {"head": last.hash.hex(), "sequence": last.sequence},
        "form": "public" if public else "full",
    }
    subject: list[dict[str, Any]] = []
    if receipt.state == Stage.PURGED:
        done = events[Stage.COMPLETED].body
        digest = record.book.state_digest_of(receipt.id)
        subject = [{"name": "state", "digest": {"blake2b-256": digest}}] if digest else []
        predicate |= {
            "plan": done.get("plan"),
            "commitments": done.get("commitments"),
            "state_mac": done.get("state_mac"),
            "superseded": digest is None,
            "guarantee": receipt.guarantee,
            "seeds_tainted": done.get("tainted"),
            "version": done.get("version"),
        }
        if not public:
            predicate |= _recomputation(run, receipt.id, events)
    return {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate}


def _recomputation(run: OpenRun, identifier: str, events: dict[str, Event]) -> dict[str, Any]:
    receipt, local_steps = run.record.book.receipt(identifier), run.file.plan.local_steps
    return {
        "state_mac_before": events["begun"].body.get("before") if "begun" in events else None,
        "first_changed_step": receipt.first_changed_step,
        "recomputed_steps": receipt.recomputed_steps,
        "recomputed_rounds": (receipt.recomputed_steps or 0) // local_steps,
        "mixed_environments": events[Stage.COMPLETED].body.get("mixed_environments"),
        "model": receipt.model_digest,
    }


def _events(run: OpenRun, receipt: Receipt) -> dict[str, Event]:
    """Return the events of a finished request by kind."""
    found = {event.kind: event for event in run.record.chain.events() if event.body.get("request") == receipt.id}
    needed = {Stage.RECEIVED, receipt.state, *([Stage.COMPLETED] if receipt.state == Stage.PURGED else [])}
    if not needed <= found.keys():
        raise RunDamaged(
            f"{run.record.database.path} is damaged: its events do not say how request {receipt.id} ended",
            hint="restore it from a backup; see `fedforget doctor`",
        )
    return found


@dataclass(slots=True)
class ReceiptCheck:
    """The result of checking a receipt, with every problem found."""

    signature_ok: bool = False
    run_ok: bool | None = None  # None: no run was given
    rounds_replayed: int = 0
    bitwise_equal: bool | None = None  # None: nothing was replayed
    seeds_tainted_now: bool | None = None  # None: no run was given
    statement: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.signature_ok and self.run_ok is not False and self.bitwise_equal is not False

    @property
    def guarantee(self) -> str | None:
        """The guarantee that the receipt claims; None if nothing was erased."""
        claimed: str | None = self.statement.get("predicate", {}).get("guarantee")
        return claimed

    @property
    def seeds_tainted(self) -> bool | None:
        """Whether, at the time of the receipt, a request depended on the draws or may have."""
        tainted: bool | None = self.statement.get("predicate", {}).get("seeds_tainted")
        return tainted

    @property
    def note(self) -> str | None:
        """A note if the receipt's guarantee no longer holds for the run today."""
        return taint_note(later=not self.seeds_tainted) if self.seeds_tainted_now else None

    def as_dict(self) -> dict[str, Any]:
        derived = {"guarantee": self.guarantee, "seeds_tainted": self.seeds_tainted, "note": self.note}
        return {"ok": self.ok, **derived, **asdict(self)}


def taint_note(*, later: bool = False) -> str:
    """Return the note for a run whose seeds are tainted."""
    who = "a later request" if later else "a request"
    return f"{who} looked at the draws, or may have: equality in law is over for these seeds until --new-seed"


def check(file: Path, key: Ed25519PublicKey) -> ReceiptCheck:
    """Check offline that this key signed this receipt and that its fields are those of a receipt."""
    try:
        envelope = strict_json.parse(strict_json.read_at_most(file, strict_json.LONGEST))
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}", hint="check the path") from error
    except (ValueError, RecursionError) as error:
        raise ReceiptRefused(
            f"{file} is not a signed receipt: not strict JSON: {error}",
            hint="`fedforget receipt show RUN ID` writes one",
        ) from error
    statement = unseal(envelope, key)
    require_shape(file, statement)
    return ReceiptCheck(signature_ok=True, statement=statement)


def read_receipt(file: str | Path, key: str | Path) -> ReceiptCheck:
    """Read a receipt and verify its signature with a public key file. Pass the result to ``Run.check_receipt``."""
    return check(path_of(file, "a receipt"), read_public_key(path_of(key, "a public key")))


def require_checked(found: object) -> None:
    """Require the result of ``read_receipt`` with a valid signature."""
    if not isinstance(found, ReceiptCheck) or not found.signature_ok:
        raise InvalidInput(
            f"a {type(found).__name__} is not a receipt whose signature was checked",
            hint="give what fedforget.read_receipt(file, key) returns",
        )


def compare(found: ReceiptCheck, run: OpenRun) -> None:
    """Compare a receipt with the record and content of a run; adds the differences to ``found.problems``."""
    problem = record_audit.find_problem(run.record, run.server.seed_origin)
    found.problems += [problem] if problem is not None else _differences(found.statement, run)
    found.run_ok = not found.problems
    found.seeds_tainted_now = run.record.book.tainted


def _differences(statement: dict[str, Any], run: OpenRun) -> list[str]:
    predicate = statement["predicate"]
    request = predicate["request"]
    identifier = request.get("id")
    receipt = next((each for each in run.record.book.receipts() if each.id == identifier and not each.is_open), None)
    if receipt is None:
        return [f"the run has not carried out request {identifier}: it is another run, or its record was cut off"]
    events = _events(run, receipt)
    ours = _statement(run, identifier, predicate["form"] == "public")
    problems = _differences_of_heads(predicate.get("chain") or {}, run, receipt)
    problems += [
        f"the run's record has another {name} for this request"
        for name in ("level", "basis", "state", "deadline", "reason")
        if request.get(name) != ours["predicate"]["request"][name]
    ]
    times = request.get("times") or {}
    if times != ours["predicate"]["request"]["times"]:
        problems.append("the run's record has other times for this request")
    pseudonym = run.record.book.pseudonym_of(identifier)
    forgotten = run.record.forgotten_at > events[receipt.state].sequence
    if request.get("pseudonym") != pseudonym and not (forgotten and pseudonym is None):
        problems.append("the pseudonym is not that of this request")
    if receipt.state == Stage.PURGED:
        problems += _differences_of_states(statement, run, events)
        if predicate.get("superseded") and not ours["predicate"]["superseded"]:
            problems.append("it calls the current state superseded")
        if predicate.get("model") is None and ours["predicate"].get("model") is not None:
            problems.append("it omits the model, which is still current")
    if not problems and _text(statement) != _text(_as_of_then(ours, statement, forgotten)):
        problems.append("it says more, or less, than a receipt of this request says")
    return problems


def _differences_of_heads(chain: dict[str, Any], run: OpenRun, receipt: Receipt) -> list[str]:
    end = next((event for event in run.record.chain.events() if event.hash.hex() == chain.get("head")), None)
    if end is None or chain.get("sequence", end.sequence) != end.sequence:
        return ["the head of the event chain is not in the run's record: the record was replaced or cut off"]
    if end.body.get("request") != receipt.id or end.kind != receipt.state:
        return ["the head of the event chain is not where this request ended: an older one was put in"]
    return []


def _as_of_then(ours: dict[str, Any], statement: dict[str, Any], forgotten: bool) -> dict[str, Any]:
    """Return the run's own statement, with the fields restored that later requests or ``forget_itself`` removed."""
    now, then = dict(ours["predicate"]), statement["predicate"]
    subject, request = ours["subject"], ours["predicate"]["request"]
    if now.get("superseded"):
        subject, now["superseded"] = statement["subject"], not statement["subject"]
    if "model" in now and now["model"] is None:
        now["model"] = then.get("model")
    if forgotten and request["pseudonym"] is None:
        request = {**request, "pseudonym": then["request"]["pseudonym"]}
    return {**ours, "subject": subject, "predicate": {**now, "request": request}}


def _text(statement: dict[str, Any]) -> str:
    """Return JSON text: unlike Python values, it distinguishes 1 from true, and 8 from 8.0."""
    return json.dumps(statement, sort_keys=True)


def _differences_of_states(statement: dict[str, Any], run: OpenRun, events: dict[str, Event]) -> list[str]:
    predicate, record = statement["predicate"], run.record
    done, receipt = events[Stage.COMPLETED].body, record.book.receipt(predicate["request"]["id"])
    ours = {
        **{name: done.get(name) for name in ("plan", "commitments", "state_mac", "version")},
        "guarantee": receipt.guarantee,
        "seeds_tainted": done.get("tainted"),
        **(_recomputation(run, receipt.id, events) if predicate["form"] == "full" else {}),
    }
    ours.pop("model", None)  # stated only while it is the current model
    problems = [
        f"the run's record has another {_SPELT.get(name, name)} for this request"
        for name, value in ours.items()
        if predicate.get(name) != value
    ]
    digest, model = _digest_in(statement), predicate.get("model")
    later = {event.kind for event in record.chain.events() if event.sequence > events[Stage.COMPLETED].sequence}
    if record.forgotten_at < events[Stage.COMPLETED].sequence:  # else the key of the MACs is destroyed
        if digest is not None and record.pseudonyms.mac("state", digest.encode()).hex() != done.get("state_mac"):
            problems.append("the state digest is not that of the state after this request")
        if model is not None and record.pseudonyms.mac("model", str(model).encode()).hex() != done.get("model_mac"):
            problems.append("the model is not the one after this request")
    if not later & {"reseeded", "added", Stage.REMOVED}:  # nothing has changed since
        if run.file.digest != predicate.get("plan"):
            problems.append("the run has another plan now")
        if commitments_digest(run) != predicate.get("commitments"):
            problems.append("the run is committed to other seeds now: a seed was swapped")
        if digest is not None and "trained" not in later and state_digest(run) != digest:
            problems.append("the run's state is not the one that this receipt ends in")
    return problems


def _digest_in(statement: dict[str, Any]) -> str | None:
    """Return the state digest in a receipt, or None."""
    subject = statement.get("subject")
    if not subject:
        return None
    return str(subject[0]["digest"]["blake2b-256"])


def recomputed_rounds(run: OpenRun, identifier: str) -> range:
    """Return the rounds that were recomputed for a request, counted from 1."""
    receipt, plan = run.record.book.receipt(identifier), run.file.plan
    if not receipt.recomputed_steps:
        return range(0)
    model_round = run.record.book.round_of(identifier)
    rounds = receipt.recomputed_steps // plan.local_steps
    return range(model_round - rounds + 1, min(model_round, run.server.rounds_done) + 1)
