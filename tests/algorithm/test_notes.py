"""The digest of clients' notes: a function of the notes alone, made of one digest per client."""

from __future__ import annotations

import hashlib

import pytest

from fedforget.algorithm.ids import Id
from fedforget.algorithm.notes import NO_NOTES, notes_digest, notes_digest_of_client
from tests.helpers import reference_block

STEPS: dict[Id, int] = {10: 3, 9: 4, "a": 1}
WITNESSES = {3: b"v" * 40, 2: b"w" * 40}


def test_digest_of_a_client_is_as_documented() -> None:
    uses = sorted((reference_block(sample), step) for sample, step in STEPS.items())
    message = (3).to_bytes(8, "big") + b"".join(block + step.to_bytes(8, "big") for block, step in uses)
    message += (2).to_bytes(8, "big") + b"w" * 40 + (3).to_bytes(8, "big") + b"v" * 40
    expected = hashlib.blake2b(message, digest_size=32, person=b"fedforget/note/1").digest()
    assert notes_digest_of_client(STEPS, WITNESSES) == expected


def test_digest_of_all_is_as_documented_and_leaves_out_clients_without_notes() -> None:
    digests: dict[Id, bytes] = {"ward": b"1" * 32, 7: b"2" * 32, 3: NO_NOTES}
    message = b"".join(reference_block(client) + digests[client] for client in (7, "ward"))
    expected = hashlib.blake2b(message, digest_size=32, person=b"fedforget/uses/2").digest()
    assert notes_digest(digests) == expected
    assert notes_digest({}) == notes_digest({3: NO_NOTES})


@pytest.mark.parametrize(
    ("steps", "witnesses"),
    [
        ({9: 4, "a": 1}, WITNESSES),
        ({10: 4, 9: 3, "a": 1}, WITNESSES),
        (STEPS, {2: b"w" * 40}),
        (STEPS, {3: b"w" * 40, 2: b"v" * 40}),
        ({}, {}),
    ],
)
def test_other_notes_have_another_digest(steps: dict[Id, int], witnesses: dict[int, bytes]) -> None:
    assert notes_digest_of_client(steps, witnesses) != notes_digest_of_client(STEPS, WITNESSES)


def test_order_of_the_notes_does_not_matter() -> None:
    turned = notes_digest_of_client(dict(reversed(STEPS.items())), dict(reversed(WITNESSES.items())))
    assert turned == notes_digest_of_client(STEPS, WITNESSES)
