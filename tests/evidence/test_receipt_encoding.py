"""Only canonical receipts and sound keys are accepted: other encodings, weak keys and endless files are refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedforget.disk import ed25519
from fedforget.disk.ed25519 import is_honest_key
from fedforget.errors import InvalidInput, ReceiptRefused
from fedforget.evidence.receipts.check import ReceiptCheck, read_receipt
from fedforget.evidence.receipts.envelope import _bytes, _pre_authentication, seal
from fedforget.evidence.receipts.receipt_key import public_pem, read_public_key
from fedforget.evidence.receipts.strict_json import LONGEST, parse

# The 8 points whose order divides 8, and the other ways to spell them; a test below multiplies them by 8.
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
NOT_CANONICAL = [
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]
NO_POINT = (2).to_bytes(32, "little").hex()
# The base point plus a point of order 8; a test below takes it apart.
MIXED_ORDER = "da99e28ba529cdde35a25fba9059e78ecaee239f99755b9b1aa4f65df00803e2"


def key_file(path: Path, raw: str) -> Path:
    path.write_bytes(public_pem(Ed25519PublicKey.from_public_bytes(bytes.fromhex(raw))))
    return path


@pytest.mark.parametrize("raw", [*SMALL_ORDER, *NOT_CANONICAL, NO_POINT, MIXED_ORDER])
def test_a_weak_or_malformed_key_is_refused(tmp_path: Path, raw: str) -> None:
    with pytest.raises(InvalidInput, match="low-order or malformed"):
        read_public_key(key_file(tmp_path / "key", raw))


def point(raw: str) -> ed25519.Point:
    found = ed25519._decoded(bytes.fromhex(raw))
    assert found is not None
    return found


def test_weak_key_vectors_have_the_stated_order() -> None:
    assert len({point(raw) for raw in SMALL_ORDER}) == 8
    assert all(ed25519._is_neutral(ed25519._times(8, point(raw))) for raw in SMALL_ORDER)
    mixed, order = point(MIXED_ORDER), ed25519._ORDER
    assert not ed25519._is_neutral(ed25519._times(order, mixed))
    assert not ed25519._is_neutral(ed25519._times(8, mixed))
    assert ed25519._is_neutral(ed25519._times(8 * order, mixed))


def test_a_signature_under_a_key_of_small_order_needs_no_private_key() -> None:
    """Why they are refused: under the neutral point, R = the same and S = 0 is a signature of every message."""
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(SMALL_ORDER[0]))
    key.verify(bytes.fromhex(SMALL_ORDER[0]) + bytes(32), b"anything")
    with pytest.raises(InvalidSignature):
        key.verify(bytes(64), b"anything")


def test_every_generated_key_is_accepted() -> None:
    for number in range(20):
        key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32).public_key()
        assert is_honest_key(key.public_bytes_raw())
    vector = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"  # RFC 8032, 7.1, test 1
    assert is_honest_key(bytes.fromhex(vector))
    assert not is_honest_key(bytes.fromhex(vector)[:-1])


STATEMENT = {
    "_type": "https://in-toto.io/Statement/v1", "subject": [], "predicateType": "urn:fedforget:receipt:2",
    "predicate": {
        "chain": {"run": "00", "head": "00", "sequence": 1, "previous": None}, "form": "full",
        "request": {"id": "r-1", "pseudonym": None, "level": "client", "basis": "unknown", "state": "rejected",
                    "times": {}, "deadline": None, "reason": "none"},
    },
}  # fmt: skip
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def check(file: Path, directory: Path) -> ReceiptCheck:
    """Read a receipt with the public half of ``KEY``, written into a directory."""
    (directory / "key.pem").write_bytes(public_pem(KEY.public_key()))
    return read_receipt(file, directory / "key.pem")


def envelope() -> dict[str, Any]:
    return seal(STATEMENT, KEY)


def signed(payload: bytes) -> dict[str, Any]:
    made = envelope()
    signature = KEY.sign(_pre_authentication(made["payloadType"], payload))
    made["payload"] = base64.b64encode(payload).decode()
    made["signatures"][0]["sig"] = base64.b64encode(signature).decode()
    return made


def written(value: Any) -> bytes:
    return json.dumps(value).encode()


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def other_spelling(text: str) -> str:
    """The same bytes in base64 whose unused bits are set."""
    assert text.endswith("==")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    return text[:-3] + alphabet[alphabet.index(text[-3]) + 1] + "=="


def changed(change: Callable[[dict[str, Any]], Any]) -> bytes:
    made = envelope()
    change(made)
    return written(made)


REFUSED = {
    "UTF-16": written(envelope()).decode().encode("utf-16"),
    "UTF-16 without a mark": written(envelope()).decode().encode("utf-16-le"),
    "UTF-32": written(envelope()).decode().encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf" + written(envelope()),
    "Latin-1": written(envelope())[:-1] + b', "\xe9": 1}',
    "a key twice": written(envelope())[:-1] + b', "payloadType": "application/vnd.in-toto+json"}',
    "another field": changed(lambda e: e.update(note="trust me")),
    "another field of a signature": changed(lambda e: e["signatures"][0].update(note="trust me")),
    "a field too few": changed(lambda e: e["signatures"][0].pop("keyid")),
    "a number for a key id": changed(lambda e: e["signatures"][0].update(keyid=1)),
    "another spelling of the signature": changed(
        lambda e: e["signatures"][0].update(sig=other_spelling(e["signatures"][0]["sig"]))
    ),
    "signatures as an object": changed(lambda e: e.update(signatures={"sig": e["signatures"][0]})),
    "a list": written([envelope()]),
    "a number that is none": b'{"payload": NaN}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep within": changed(lambda e: e["signatures"].append(json.loads("[" * 50 + "]" * 50))),
    "huge": b" " * 2**21 + written(envelope()),
    "a payload in UTF-16": written(signed(canonical(STATEMENT).decode().encode("utf-16"))),
    "a payload with a byte order mark": written(signed(b"\xef\xbb\xbf" + canonical(STATEMENT))),
    "a payload with a key twice": written(signed(canonical(STATEMENT)[:-1] + b',"subject":[]}')),
    "a payload with another field": written(signed(canonical({**STATEMENT, "note": "trust me"}))),
    "a payload with half of a surrogate pair": written(
        signed(canonical(STATEMENT).replace(b'"reason":"none"', b'"reason":"\\ud800"'))
    ),
    "a deep payload": written(signed(b"[" * 5000 + b"]" * 5000)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_non_canonical_encoding_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "receipt.json"
    file.write_bytes(REFUSED[name])
    with pytest.raises(ReceiptRefused):
        check(file, tmp_path)


def test_canonical_encoding_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    file.write_bytes(written(envelope()))
    assert check(file, tmp_path).signature_ok


def test_endless_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a device, not a regular file"):
        check(Path("/dev/zero"), tmp_path)
    with pytest.raises(InvalidInput, match="a device, not a regular file"):
        read_public_key(Path("/dev/zero"))
    with pytest.raises(InvalidInput, match="a directory, not a regular file"):
        check(tmp_path, tmp_path)
    with pytest.raises(InvalidInput, match="cannot read"):
        check(tmp_path / "nothing", tmp_path)
    (tmp_path / "long").write_bytes(b"{" + b" " * 2**21)
    with pytest.raises(ReceiptRefused, match="more than"):
        check(tmp_path / "long", tmp_path)


PEM = public_pem(KEY.public_key())
OTHER_PEM = public_pem(Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key())


@pytest.mark.parametrize(
    "data",
    [b"junk\n" + PEM, PEM + b"junk", PEM + OTHER_PEM, OTHER_PEM + PEM, b"\0" + PEM, PEM[:-2], b"", b"\xff" * 99,
     PEM + b" " * 2**16, PEM.replace(b"-----\n", b"-----\nProc-Type: 4\n\n", 1)],
)  # fmt: skip
def test_key_file_with_anything_but_one_key_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(InvalidInput, match="no public key, or more"):
        read_public_key(tmp_path / "key")


@pytest.mark.parametrize("data", [PEM, b"\n " + PEM + b"\r\n\n", PEM.replace(b"\n", b"\r\n"), PEM.rstrip()])
def test_white_space_around_a_key_is_accepted(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "key").write_bytes(data)
    assert read_public_key(tmp_path / "key") == KEY.public_key()


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_json_may_nest_thirty_two_levels_deep(opening: bytes, closing: bytes) -> None:
    parse(opening * 32 + b"0" + closing * 32)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse(opening * 33 + b"0" + closing * 33)
    parse(b"[" + b",".join([b"[{}]"] * 40) + b"]")  # side by side is not deep


def test_json_has_a_greatest_length() -> None:
    longest = b" " * (LONGEST - 1) + b"1"
    assert parse(longest) == 1
    with pytest.raises(ValueError, match="more than"):
        parse(b" " + longest)


@pytest.mark.parametrize("text", ["TWE=", "TQ==", "Tw==", "TWFu", ""])
def test_canonical_base64_is_decoded(text: str) -> None:
    assert base64.b64encode(_bytes(text)).decode() == text


@pytest.mark.parametrize("text", ["TWF=", "TR==", "T0==", "T9==", "TWE", "TW E=", "TWE=TWE=", "TWE==="])
def test_other_base64_of_the_same_bytes_is_refused(text: str) -> None:
    """The unused bits may be any, larger or smaller than zero in the order of characters."""
    with pytest.raises(ValueError, match=r".+"):
        _bytes(text)
