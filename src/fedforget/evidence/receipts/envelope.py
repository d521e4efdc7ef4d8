"""DSSE: a signed envelope around a typed payload (github.com/secure-systems-lab/dsse)."""

from __future__ import annotations

import base64
import json
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedforget.errors import ReceiptRefused, quoted
from fedforget.evidence.receipts import strict_json
from fedforget.evidence.receipts.receipt_key import key_id

PAYLOAD_TYPE = "application/vnd.in-toto+json"

Envelope = dict[str, Any]


def seal(statement: dict[str, Any], key: Ed25519PrivateKey) -> Envelope:
    payload = _encoded(statement)
    signature = key.sign(_pre_authentication(PAYLOAD_TYPE, payload))
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key_id(key.public_key()), "sig": base64.b64encode(signature).decode()}],
    }


def unseal(envelope: Any, key: Ed25519PublicKey) -> dict[str, Any]:
    """Return the statement if this key signed it. The payload is parsed only after the signature is verified."""
    kind, payload, signatures = _opened(envelope)
    if kind != PAYLOAD_TYPE:
        raise ReceiptRefused(f"the envelope holds {quoted(kind)}, not a statement", hint=_WHENCE)
    if not any(_signed(key, signature, _pre_authentication(kind, payload)) for signature in signatures):
        raise ReceiptRefused(
            "the signature does not verify: the receipt was altered, or another key signed it",
            hint=f"the given key is {key_id(key)}; get the receipt and the key again from their issuer",
        )
    try:
        statement = strict_json.parse(payload)
    except (ValueError, RecursionError) as error:
        raise ReceiptRefused(f"the payload is not strict JSON: {error}", hint=_WHENCE) from error
    if not isinstance(statement, dict):
        raise ReceiptRefused("the payload is not a statement", hint=_WHENCE)
    if _encoded(statement) != payload:
        raise ReceiptRefused("the payload is ambiguous: it is not in the canonical form of receipts", hint=_WHENCE)
    return statement


def _opened(envelope: Any) -> tuple[str, bytes, list[bytes]]:
    """Return type, payload and signatures; refuse unknown fields and non-canonical base64."""
    try:
        _require_texts(envelope, "payloadType", "payload", "signatures", but="signatures")
        for each in envelope["signatures"]:
            _require_texts(each, "keyid", "sig")
        signatures = [_bytes(each["sig"]) for each in envelope["signatures"]]
        return envelope["payloadType"], _bytes(envelope["payload"]), signatures
    except ValueError as error:  # also that of base64
        raise ReceiptRefused("this is not a signed receipt: not a DSSE envelope", hint=_WHENCE) from error


def _require_texts(value: Any, *names: str, but: str = "") -> None:
    """Require an object with exactly these fields: strings, except that the field ``but`` is a list."""
    if not isinstance(value, dict) or value.keys() != set(names):
        raise ValueError("not these fields")
    if any(not isinstance(value[name], list if name == but else str) for name in names):
        raise ValueError("not a text")


def _bytes(text: str) -> bytes:
    """Decode base64; refuse non-canonical encodings."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("not canonical base64")
    return data


def _encoded(statement: dict[str, Any]) -> bytes:
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def _pre_authentication(kind: str, payload: bytes) -> bytes:
    """Return the bytes to sign: type and payload with their lengths, so neither can be read as part of the other."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def _signed(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


_WHENCE = "`fedforget receipt show RUN ID` writes one"
