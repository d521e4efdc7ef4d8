"""The enrolment file, with which a client joins a deployment: commitment, root and public key, and nothing secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedforget.algorithm.ids import Id, canonical_id
from fedforget.disk.ed25519 import load_honest_key
from fedforget.errors import FedForgetError, InvalidInput
from fedforget.evidence.receipts import strict_json
from fedforget.evidence.receipts.receipt_key import public_pem

FORMAT = 1
_PURPOSE = b"fedforget/enrolment/1"
_FIELDS = {"format", "client", "commitment", "public_key", "root", "signature"}
HINT = "let the client write it again: `fedforget client enrolment --state-dir DIR --out FILE`"


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A client's commitment to its seed, the root of its samples, and its public key."""

    client: Id
    commitment: bytes
    root: bytes
    public_key: Ed25519PublicKey

    def _fields(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "client": self.client,
            "commitment": self.commitment.hex(),
            "public_key": public_pem(self.public_key).decode(),
            "root": self.root.hex(),
        }

    def signed(self, key: Ed25519PrivateKey) -> bytes:
        """Return the file, signed with the client's key, to prove possession of the private half."""
        fields = self._fields()
        return json.dumps({**fields, "signature": key.sign(_message(fields)).hex()}, indent=2).encode() + b"\n"

    @classmethod
    def parsed(cls, data: bytes) -> Enrolment:
        """Parse an untrusted enrolment file. Raise InvalidInput if it is invalid."""
        try:
            return cls._parsed(strict_json.parse(data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FedForgetError) as error:
            raise InvalidInput(f"this is not an enrolment of a client: {str(error)[:200]}", hint=HINT) from error

    @classmethod
    def _parsed(cls, raw: Any) -> Enrolment:
        if not isinstance(raw, dict) or raw.keys() != _FIELDS or raw["format"] != FORMAT:
            raise ValueError("its fields or its format are others")
        try:
            key = load_honest_key(raw["public_key"].encode())
        except ValueError as error:
            raise ValueError(f"it holds {error}") from error
        found = cls(canonical_id(raw["client"]), bytes.fromhex(raw["commitment"]), bytes.fromhex(raw["root"]), key)
        if len(found.commitment) != len(found.root) or len(found.root) != 32:  # noqa: PLR2004 (bytes of BLAKE2b-256)
            raise ValueError("a digest has another length")
        signature = bytes.fromhex(raw["signature"])
        if _canonical({**found._fields(), "signature": signature.hex()}) != _canonical(raw):
            raise ValueError("it is not in canonical form")
        try:
            key.verify(signature, _message(found._fields()))
        except InvalidSignature as error:
            raise ValueError("its signature does not verify") from error
        return found


def _message(fields: Mapping[str, Any]) -> bytes:
    return _PURPOSE + _canonical(fields)


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
