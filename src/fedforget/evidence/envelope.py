"""DSSE: a signed envelope around a payload that says of what type it is (github.com/secure-systems-lab/dsse)."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedforget.errors import ReceiptRefused
from fedforget.store.receipt_key import key_id

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
    """The statement, if this key signed it. Nothing of it is looked at before that is certain."""
    try:
        kind, payload = envelope["payloadType"], base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(each["sig"], validate=True) for each in envelope["signatures"]]
    except (TypeError, KeyError, AttributeError, binascii.Error, ValueError) as error:
        raise ReceiptRefused("this is no signed receipt: not a DSSE envelope", hint=_WHENCE) from error
    if kind != PAYLOAD_TYPE:
        raise ReceiptRefused(f"the envelope holds {kind!r}, not a statement", hint=_WHENCE)
    if not any(_signed(key, signature, _pre_authentication(kind, payload)) for signature in signatures):
        raise ReceiptRefused(
            "the signature does not verify: the receipt was altered, or another key signed it",
            hint=f"the key given is {key_id(key)}; get the receipt and the key again from whoever issued them",
        )
    try:
        statement = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ReceiptRefused("the payload is not JSON", hint=_WHENCE) from error
    if not isinstance(statement, dict):
        raise ReceiptRefused("the payload is no statement", hint=_WHENCE)
    if _encoded(statement) != payload:
        raise ReceiptRefused("the payload can be read in two ways: it is not written as receipts are", hint=_WHENCE)
    return statement


def _encoded(statement: dict[str, Any]) -> bytes:
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def _pre_authentication(kind: str, payload: bytes) -> bytes:
    """What is signed: type and payload with their lengths, so that neither can be read as part of the other."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)


def _signed(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


_WHENCE = "`fedforget receipt show RUN ID` writes one"
