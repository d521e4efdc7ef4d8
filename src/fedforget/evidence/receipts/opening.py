"""Openings: the id and salt behind a receipt's label, for the data subject or an auditor.

A receipt names its target by labels, which reveal nothing. With the opening a reader can compute the labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedforget.algorithm.ids import Id, canonical_id
from fedforget.algorithm.tree import SALT_BYTES, label_of
from fedforget.disk.door import read_named
from fedforget.errors import InvalidId, ReceiptRefused
from fedforget.evidence.receipts import strict_json
from fedforget.evidence.receipts.proofs import Target, from_hex

FORMAT = "urn:fedforget:opening:1"
_GET = "get it from the issuer of the receipt: `fedforget receipt show RUN ID --opening ID`"

Opened = tuple[Id, bytes]  # an id and its salt


@dataclass(frozen=True, slots=True)
class Opening:
    """The ids and salts behind the labels of a receipt."""

    request: str
    client: Opened
    sample: Opened | None

    def as_dict(self) -> dict[str, Any]:
        sample = None if self.sample is None else _written(self.sample)
        return {"format": FORMAT, "request": self.request, "client": _written(self.client), "sample": sample}

    @property
    def target(self) -> Target:
        """The labels that belong to the ids and salts."""
        sample = None if self.sample is None else label_of(self.sample[1], self.sample[0])
        return Target(label_of(self.client[1], self.client[0]), sample)

    def problem(self, request: str, target: Target) -> str | None:
        """Return why this is not the opening of a receipt about this target; None if it is."""
        if self.request != request:
            return f"the opening belongs to request {self.request}, not to this one"
        if (self.sample is None) != (target.sample is None):
            about = "a client" if target.sample is None else "a sample"
            return f"the receipt is about {about}, but the opening is not"
        if self.target.client != target.client:
            return "the id or the salt of the client is not that of the receipt"
        if self.target.sample != target.sample:
            return "the id or the salt of the sample is not that of the receipt"
        return None


def read_opening(path: Path) -> Opening:
    """Read an opening; raise ReceiptRefused if the file holds anything else."""
    try:
        raw = strict_json.parse(read_named(path, strict_json.LONGEST))
        return _parsed(raw)
    except (ValueError, RecursionError, InvalidId) as error:
        raise ReceiptRefused(f"{path} is not the opening of a receipt: {error}", hint=_GET) from error


def _parsed(raw: Any) -> Opening:
    if not isinstance(raw, dict) or raw.keys() != {"format", "request", "client", "sample"}:
        raise ValueError("it does not have the fields of an opening")
    if raw["format"] != FORMAT:
        raise ValueError("it has another format")
    if not isinstance(raw["request"], str):
        raise ValueError("its request is not a text")  # noqa: TRY004 (every bad text raises ValueError)
    return Opening(raw["request"], _opened(raw["client"]), None if raw["sample"] is None else _opened(raw["sample"]))


def _opened(raw: Any) -> Opened:
    if not isinstance(raw, dict) or raw.keys() != {"id", "salt"}:
        raise ValueError("it lacks an id with its salt")
    salt = from_hex(raw["salt"])
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt is not {SALT_BYTES} bytes long")
    return canonical_id(raw["id"]), salt


def _written(opened: Opened) -> dict[str, Any]:
    identifier, salt = opened
    return {"id": identifier, "salt": salt.hex()}
