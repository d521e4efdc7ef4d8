"""Read untrusted Ed25519 public keys: only the canonical encoding of a point of prime order (RFC 8032, section 5.1).

OpenSSL accepts any 32 bytes. For a key of small order a valid signature of every message can be forged without a
private key.
"""

from __future__ import annotations

import re
from functools import lru_cache

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_SIGN = 2**255
_BYTES = 32

Point = tuple[int, int, int, int]  # extended coordinates: X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z
_NEUTRAL: Point = (0, 1, 1, 0)
_PEM_BLOCK = re.compile(rb"\s*-----BEGIN ([A-Z0-9 ]+)-----[A-Za-z0-9+/=\s]+-----END \1-----\s*")


def load_honest_key(pem: bytes) -> Ed25519PublicKey:
    """Return the key in a PEM block. Raise ValueError if it is anything but one sound Ed25519 key.

    The parser of ``cryptography`` skips everything around the first block; here nothing else may be there.
    """
    if not _PEM_BLOCK.fullmatch(pem):
        raise ValueError("no public key, or more than that")
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("no public key, or more than that") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("another kind of key")  # noqa: TRY004 (every bad key raises ValueError)
    return honest_key(key.public_bytes_raw())


def honest_key(raw: bytes) -> Ed25519PublicKey:
    """Return the key of 32 bytes. Raise ValueError if signatures can be forged for it."""
    if not is_honest_key(raw):
        raise ValueError("a low-order or malformed Ed25519 key, for which signatures can be forged")
    return Ed25519PublicKey.from_public_bytes(raw)


@lru_cache(maxsize=4096)  # a client's key is asked for with each of its answers
def is_honest_key(data: bytes) -> bool:
    """Return whether these bytes are the canonical encoding of a point of prime order."""
    point = _decoded(data)
    return point is not None and not _is_neutral(point) and _is_neutral(_times(_ORDER, point))


def _decoded(data: bytes) -> Point | None:
    """Return the point, or None if the bytes are not its canonical encoding."""
    number = int.from_bytes(data, "little")
    sign, y = divmod(number, _SIGN)
    if len(data) != _BYTES or y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    if (x * x - square) % _P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _sum(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0])
    b = (one[1] + one[0]) * (other[1] + other[0])
    c, d = 2 * one[3] * other[3] * _D, 2 * one[2] * other[2]
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(factor: int, point: Point) -> Point:
    result = _NEUTRAL
    while factor:
        if factor & 1:
            result = _sum(result, point)
        point, factor = _sum(point, point), factor >> 1
    return result


def _is_neutral(point: Point) -> bool:
    return point[0] == 0 and point[1] == point[2]
