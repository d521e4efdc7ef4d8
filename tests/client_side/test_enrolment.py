"""An enrolment file that any party may have written: only one that the holder of a sound key signed is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedforget.client_side.enrolment import Enrolment, _message
from fedforget.client_side.opening import OwnOpening
from fedforget.errors import InvalidInput, RunDamaged
from fedforget.evidence.receipts.receipt_key import private_pem, public_pem
from fedforget.session.deployment import public_key_of
from fedforget.store.contacts import EnrolledClient as Entered
from tests.evidence.test_receipt_encoding import MIXED_ORDER, NO_POINT, NOT_CANONICAL, SMALL_ORDER

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SOUND = Enrolment("a", bytes(32), bytes([1]) * 32, KEY.public_key())


def fields() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SOUND.signed(KEY))
    return found


def signed(changed: dict[str, Any]) -> bytes:
    """An enrolment whose fields were altered before its own key signed it."""
    unsigned = {name: value for name, value in changed.items() if name != "signature"}
    return json.dumps({**unsigned, "signature": KEY.sign(_message(unsigned)).hex()}).encode()


def test_enrolment_that_its_key_signed_is_read() -> None:
    assert Enrolment.parsed(SOUND.signed(KEY)) == SOUND
    assert Enrolment.parsed(signed(fields())) == SOUND


@pytest.mark.parametrize("raw", SMALL_ORDER)
def test_signature_forged_for_a_key_of_low_order_is_refused(raw: str) -> None:
    """With R the neutral point and S = 0 such a signature verifies for about one message in eight, without a key."""
    low = Ed25519PublicKey.from_public_bytes(bytes.fromhex(raw))
    forged = fields() | {
        "public_key": public_pem(low).decode(),
        "signature": SMALL_ORDER[0] + bytes(32).hex(),
    }
    with pytest.raises(InvalidInput, match="low-order or malformed"):
        Enrolment.parsed(json.dumps(forged).encode())


@pytest.mark.parametrize("raw", [*NOT_CANONICAL, NO_POINT, MIXED_ORDER])
def test_malformed_key_is_refused(raw: str) -> None:
    other = Ed25519PublicKey.from_public_bytes(bytes.fromhex(raw))
    with pytest.raises(InvalidInput, match="low-order or malformed"):
        Enrolment.parsed(signed(fields() | {"public_key": public_pem(other).decode()}))


def x25519(_: str) -> str:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415

    key = X25519PrivateKey.generate().public_key()
    pem = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(*pem).decode()


@pytest.mark.parametrize(
    "change",
    [
        lambda pem: "",
        lambda pem: pem * 2,
        lambda pem: f"a word before\n{pem}",
        lambda pem: pem.replace("END PUBLIC", "END PRIVATE"),
        lambda pem: pem.replace("MCow", "MCo!"),
        lambda pem: pem.replace("MCow", ""),
        lambda pem: private_pem(KEY).decode(),
        lambda pem: pem.replace("\n", "\r\n"),
        lambda pem: pem + "\n",
        lambda pem: pem + "\u2028",
        x25519,
    ],
)
def test_malformed_pem_is_refused(change: Callable[[str], str]) -> None:
    with pytest.raises(InvalidInput, match="this is not an enrolment of a client"):
        Enrolment.parsed(signed(fields() | {"public_key": change(fields()["public_key"])}))


@pytest.mark.parametrize("name", ["client", "public_key", "signature", "format"])
def test_duplicate_key_is_refused(name: str) -> None:
    sound = json.dumps(fields())
    twice = f'{{"{name}": "b", {sound[1:]}'
    assert json.loads(twice) == fields(), "a lenient reader takes the last"
    with pytest.raises(InvalidInput, match="twice"):
        Enrolment.parsed(twice.encode())


def opening(*more: str) -> str:
    parts = ('"format": 1', '"client": 3', f'"seed": "{"00" * 32}"', f'"nonce": "{"00" * 32}"',
             f'"sample_key": "{"00" * 32}"', '"samples": []')  # fmt: skip
    return f"{{{', '.join((*more, *parts))}}}"


def test_opening_of_a_client_with_a_duplicate_key_or_in_another_encoding_is_refused() -> None:
    assert OwnOpening.parsed(opening().encode()).client == 3
    for bad in (opening('"client": 4').encode(), opening().encode("utf-16")):
        with pytest.raises(InvalidInput):
            OwnOpening.parsed(bad)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(InvalidInput, match="this is not an enrolment of a client"):
        Enrolment.parsed(json.dumps(fields()).encode(encoding))


@pytest.mark.parametrize(
    "change",
    [
        {"format": True}, {"format": 1.0}, {"client": "\ud800"}, {"client": True}, {"more": 1},
        {"root": "00"}, {"root": "AB" * 32}, {"commitment": None}, {"public_key": 5},
    ],
)  # fmt: skip
def test_fields_of_another_form_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="this is not an enrolment of a client"):
        Enrolment.parsed(signed(fields() | change))


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"[" * 10**5, b"\xff", b"NaN", b"1" * 5000, b" " * 2**21])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="this is not an enrolment of a client"):
        Enrolment.parsed(data)


def test_signature_has_one_spelling() -> None:
    for spelled in (fields()["signature"].upper(), " ".join(fields()["signature"]), 3):
        with pytest.raises(InvalidInput):
            Enrolment.parsed(json.dumps(fields() | {"signature": spelled}).encode())


@pytest.mark.parametrize("raw", [*SMALL_ORDER, NO_POINT, MIXED_ORDER])
def test_weak_key_in_the_contacts_of_a_run_is_damage(raw: str) -> None:
    class Contacts:
        class database:  # noqa: N801
            path = "contacts.db"

        def enrolment(self, client: Any) -> Entered:
            return Entered(client, bytes(32), bytes(32), bytes.fromhex(raw))

    class Run:
        class remote:  # noqa: N801
            contacts = Contacts()

    with pytest.raises(RunDamaged, match=r"contacts\.db is damaged: client 1 has a low-order"):
        public_key_of(Run(), 1)  # type: ignore[arg-type]
