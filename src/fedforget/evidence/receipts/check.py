"""Check receipts offline: that the run's key signed them, and that their proofs are valid."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedforget.disk.door import read_named
from fedforget.disk.files import path_of
from fedforget.errors import InvalidInput, ReceiptRefused
from fedforget.evidence.receipts import strict_json
from fedforget.evidence.receipts.envelope import unseal
from fedforget.evidence.receipts.opening import Opening, read_opening
from fedforget.evidence.receipts.proofs import Proof, Target, absence_problem, from_hex, presence_problem
from fedforget.evidence.receipts.receipt_key import read_public_key
from fedforget.evidence.receipts.shape import Statement, require_shape
from fedforget.requests.lifecycle import Stage

OFFLINE = "that the roots are those of the run's data: --run compares them with the run"
SIGNATURE_ONLY = "that the statements of the receipt are true: --run compares them with the run"
UNOPENED = "which client or sample the receipt is about: --opening shows it"
LABELS = "that the labels are those of the run: a holder of the signing key can choose salts and sign; --run compares"
OTHER_ID = "that the same record is not in the data under another id"


@dataclass(slots=True)
class ReceiptCheck:
    """The result of checking a receipt, with every problem found."""

    signature_ok: bool = False
    absence_shown: bool | None = None  # None: the receipt holds no such proof
    presence_shown: bool | None = None  # before the request; None: the receipt holds no such proof
    opened: bool | None = None  # whether the opening belongs to the receipt; None: no opening was given
    run_ok: bool | None = None  # None: no run was given
    rounds_replayed: int = 0
    bitwise_equal: bool | None = None  # None: nothing was replayed
    within_tolerance: bool | None = None  # only if the environment differs and the bits were not equal
    seeds_tainted_now: bool | None = None  # None: no run was given
    statement: Statement = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every check that was carried out succeeded."""
        equal = self.bitwise_equal is not False or self.within_tolerance is True
        return self.signature_ok and self.run_ok is not False and equal

    @property
    def guarantee(self) -> str | None:
        """The guarantee that the receipt claims; None if nothing was erased."""
        claimed: str | None = self.statement.get("predicate", {}).get("guarantee")
        return claimed

    @property
    def guarantee_covers(self) -> str | None:
        """What the guarantee makes equal: ``bytes``, or only the ``draws``. None: the receipt does not say."""
        covered: str | None = self.statement.get("predicate", {}).get("guarantee_covers")
        return covered

    @property
    def seeds_tainted(self) -> bool | None:
        """Whether, at the time of the receipt, a request was model-informed or of unknown basis."""
        tainted: bool | None = self.statement.get("predicate", {}).get("seeds_tainted")
        return tainted

    @property
    def note(self) -> str | None:
        """A note if the receipt's guarantee no longer holds for the run today."""
        return taint_note(later=not self.seeds_tainted) if self.seeds_tainted_now else None

    @property
    def not_shown(self) -> list[str]:
        """Return what this check did not show."""
        offline = [] if self.run_ok is not None else [OFFLINE] if self.absence_shown else [SIGNATURE_ONLY]
        unopened = [UNOPENED] if self.absence_shown and not self.opened else []
        labels = [LABELS] if self.absence_shown and self.run_ok is None else []
        return [*offline, *unopened, *labels, OTHER_ID]

    def as_dict(self) -> dict[str, Any]:
        """Return the facts that ``fedforget receipt verify --json`` prints."""
        derived = ("guarantee", "guarantee_covers", "seeds_tainted", "note", "not_shown")
        return {"ok": self.ok, **{name: getattr(self, name) for name in derived}, **asdict(self)}


def taint_note(*, later: bool = False) -> str:
    """Return the note for a run whose seeds are tainted."""
    request = "a later request" if later else "a request"
    return f"{request} was model-informed or of unknown basis: receipts claim `path` until --new-seed"


def read_receipt(file: str | Path, key: str | Path, opening: str | Path | None = None) -> ReceiptCheck:
    """Read a receipt, and verify its signature with a public key file and its proofs. Needs no run.

    ``opening``: a file with the ids and salts that the receipt is about. Pass the result to ``Run.check_receipt``.
    """
    path, public_key = path_of(file, "a receipt"), read_public_key(path_of(key, "a public key"))
    try:
        envelope = strict_json.parse(read_named(path, strict_json.LONGEST))
    except (ValueError, RecursionError) as error:
        raise ReceiptRefused(
            f"{path} is not a signed receipt: not strict JSON: {error}",
            hint="`fedforget receipt show RUN ID` writes one",
        ) from error
    statement = unseal(envelope, public_key)
    require_shape(path, statement)
    found = ReceiptCheck(signature_ok=True, statement=statement)
    _check_proofs(path, found)
    if opening is not None:
        _check_opening(path, found, read_opening(path_of(opening, "an opening")))
    return found


def _check_proofs(path: Path, found: ReceiptCheck) -> None:
    """Check the proofs of absence and presence against the roots that were signed with them."""
    predicate = found.statement["predicate"]
    if predicate.get("absence") is None:
        return
    try:
        target = Target.parse(predicate["target"])
        problem = absence_problem(target, Proof.parse(predicate["absence"]), from_hex(predicate["data_root_after"]))
        found.absence_shown = True
        if problem is None and predicate.get("presence") is not None:
            presence, root = Proof.parse(predicate["presence"]), from_hex(predicate["data_root_before"])
            problem = presence_problem(target, presence, root)
            found.presence_shown = True
    except ValueError as error:
        problem = str(error)
    if problem is not None:
        raise ReceiptRefused(
            f"{path} is signed, but its proofs are invalid: {problem}", hint="don't rely on this receipt"
        )


def _check_opening(path: Path, found: ReceiptCheck, opening: Opening) -> None:
    predicate = found.statement["predicate"]
    if predicate.get("target") is None:
        raise ReceiptRefused(
            f"{path} holds no proof to open: {_why_unproven(predicate)}",
            hint="open the receipt that was archived when the request was carried out",
        )
    problem = opening.problem(predicate["request"]["id"], Target.parse(predicate["target"]))
    if problem is not None:
        raise ReceiptRefused(
            f"the opening does not belong to {path}: {problem}",
            hint="get the opening for this receipt from its issuer; see `fedforget receipt show RUN ID --opening ID`",
        )
    found.opened = True


def _why_unproven(predicate: Statement) -> str:
    if predicate["request"]["state"] != Stage.PURGED:
        return "nothing was erased for this request"
    if predicate["superseded"]:
        return "when it was issued, the data had changed again, and the proof was superseded"
    return "when it was issued, the record had forgotten what the request was for"


def require_checked(found: object) -> None:
    """Require the result of ``read_receipt`` with a valid signature."""
    if not isinstance(found, ReceiptCheck) or not found.signature_ok:
        raise InvalidInput(
            f"a {type(found).__name__} is not a receipt whose signature was checked",
            hint="give the result of fedforget.read_receipt(file, key)",
        )
