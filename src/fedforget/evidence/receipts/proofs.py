"""Proofs that a target is, or is not, in the tree over the data with a given root. They need neither run nor key.

A proof is the path of the client, and of the sample in its client's tree if the receipt is about one. A client without
samples is not in the tree, so the path of the client is enough to show that a sample of it is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedforget.algorithm.tree import LABEL_BYTES, Path

VALUE_BYTES = 32  # of a sample; that of a client is twice as long: its commitment, and the root of its samples
CLIENT_VALUE_BYTES = 2 * VALUE_BYTES


@dataclass(frozen=True, slots=True)
class Target:
    """The labels of what a receipt is about: a client, or a sample of a client."""

    client: bytes
    sample: bytes | None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Target:
        """Return the target in a receipt whose shape was checked; raise ValueError if it is none."""
        return cls(_label(raw["client"]), None if raw["sample"] is None else _label(raw["sample"]))

    def as_dict(self) -> dict[str, Any]:
        return {"client": self.client.hex(), "sample": None if self.sample is None else self.sample.hex()}


@dataclass(frozen=True, slots=True)
class Proof:
    """The paths of a target. ``sample`` is None if the receipt is about a client, or if the client is absent."""

    client: Path
    sample: Path | None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Proof:
        return cls(_path(raw["client"]), None if raw["sample"] is None else _path(raw["sample"]))

    def as_dict(self) -> dict[str, Any]:
        return {"client": _written(self.client), "sample": None if self.sample is None else _written(self.sample)}


def absence_problem(target: Target, proof: Proof, root: bytes) -> str | None:
    """Return why a proof does not show that the target is absent from the tree with this root; None if it does."""
    try:
        value = _client_value(target, proof, root)
        if value is None:
            return None if proof.sample is None else "the client is absent, so a sample of it has no path"
        if target.sample is None:
            return "the client is in the data after the request"
        if proof.sample is None:
            return "the path of the sample is missing"
        found = _sample_value(target.sample, proof.sample, value)
    except ValueError as error:
        return str(error)
    return None if found is None else "the sample is in the data after the request"


def presence_problem(target: Target, proof: Proof, root: bytes) -> str | None:
    """Return why a proof does not show that the target is in the tree with this root; None if it does.

    Without the path of the sample it shows that the client is in the tree.
    """
    try:
        value = _client_value(target, proof, root)
        if value is None:
            return "the client is not in the data before the request"
        if proof.sample is None:
            return None
        if target.sample is None:
            return "a receipt about a client has the path of a sample"
        found = _sample_value(target.sample, proof.sample, value)
    except ValueError as error:
        return str(error)
    return "the sample is not in the data before the request" if found is None else None


def _client_value(target: Target, proof: Proof, root: bytes) -> bytes | None:
    if proof.client.root(target.client) != root:
        raise ValueError("the path of the client does not lead to the root of the data")
    if any(len(value) != CLIENT_VALUE_BYTES for _, value in proof.client.bucket):
        raise ValueError("the path of the client does not end at clients")
    return proof.client.value(target.client)


def _sample_value(label: bytes, path: Path, client_value: bytes) -> bytes | None:
    if path.root(label) != client_value[VALUE_BYTES:]:
        raise ValueError("the path of the sample does not lead to the root of its client's samples")
    if any(len(value) != VALUE_BYTES for _, value in path.bucket):
        raise ValueError("the path of the sample does not end at samples")
    return path.value(label)


def _label(text: Any) -> bytes:
    found = from_hex(text)
    if len(found) != LABEL_BYTES:
        raise ValueError("a label is not 32 bytes long")
    return found


def _path(raw: Mapping[str, Any]) -> Path:
    siblings = tuple(map(from_hex, raw["siblings"]))
    if any(len(each) != VALUE_BYTES for each in siblings):
        raise ValueError("a hash of a path is not 32 bytes long")
    return Path(siblings, tuple((from_hex(label), from_hex(value)) for label, value in raw["bucket"]))


def _written(path: Path) -> dict[str, Any]:
    return {
        "siblings": [each.hex() for each in path.siblings],
        "bucket": [[label.hex(), value.hex()] for label, value in path.bucket],
    }


def from_hex(text: Any) -> bytes:
    """Return the bytes; raise ValueError unless the text is lowercase hexadecimal without anything else."""
    if not isinstance(text, str) or (found := bytes.fromhex(text)).hex() != text:
        raise ValueError("a value is not lowercase hexadecimal")
    return found
