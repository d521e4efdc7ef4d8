"""Signatures of answers: they are made by the client that the roster names, and are bound to one message."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedforget.errors import SignatureRefused, shown
from fedforget.federation.parcels import Parcel

_FIELD, _PURPOSE = "signature", b"fedforget/answer/1"
_ASKED = ("run", "epoch", "kind", "nonce")
_HINT = "look at the node that answers for it: another program, another client's state directory, or an attack"


def sign(key: Ed25519PrivateKey, asked: Parcel, answer: Parcel) -> Parcel:
    """Return an answer with a signature over it and over the message that it answers."""
    signature = key.sign(_message(asked, answer))
    return Parcel({**answer.body, _FIELD: signature.hex()}, answer.model)


def verified(public: Ed25519PublicKey, asked: Parcel, answer: Parcel) -> Parcel:
    """Return an answer without its signature. Raise SignatureRefused unless this key signed it for this message."""
    body = dict(answer.body)
    found = body.pop(_FIELD, None)
    bare = Parcel(body, answer.model)
    if not isinstance(found, str):
        raise SignatureRefused(f"an answer for client {_who(asked)} is not signed{_reason(body)}", hint=_HINT)
    try:
        public.verify(bytes.fromhex(found), _message(asked, bare))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise SignatureRefused(
            f"an answer for client {_who(asked)} was altered, is an old one, or another client signed it", hint=_HINT
        ) from error
    return bare


def _who(asked: Parcel) -> str:
    return shown(asked.body.get("client"))


def _reason(body: dict[str, Any]) -> str:
    """Return what an answer that is not signed gives as its error: a node that could not even open its state."""
    error = body.get("error")
    return f"; its node says: {shown(error.get('message'))}" if isinstance(error, dict) else ""


def _message(asked: Parcel, answer: Parcel) -> bytes:
    hasher = hashlib.blake2b(digest_size=32)
    for part in _parts(asked, answer):
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return _PURPOSE + hasher.digest()


def _parts(asked: Parcel, answer: Parcel) -> Iterator[bytes]:
    """Yield what is signed, in a form that nothing else has."""
    yield _canonical([asked.body.get(name) for name in _ASKED])
    yield _canonical(dict(answer.body))
    for name, tensor in sorted((answer.model or {}).items()):
        yield _canonical([name, tensor.dtype.str, list(tensor.shape)])
        yield np.ascontiguousarray(tensor).tobytes()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
