"""Seeds from one given seed, as the definition writes them out: runs on disk depend on every byte."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from fedforget.algorithm.seeds import Seed, SeedSource, commitments_of
from fedforget.errors import InvalidInput
from tests.helpers import reference_block


def derived(given: bytes, purpose: bytes, block: bytes = b"") -> bytes:
    """BLAKE2b-256 of the purpose, filled up to 16 bytes, and the client's block, under a key made of the given seed."""
    person = b"fedforget/seed/1"
    root = hashlib.blake2b(given, digest_size=32, person=person).digest()
    filled = purpose + bytes(16 - len(purpose))
    return hashlib.blake2b(filled + block, key=root, digest_size=32, person=person).digest()


@pytest.mark.parametrize("given", [7, "7", b"7", np.int64(7)])
def test_seeds_are_those_of_the_definition(given: Any) -> None:
    seeds = SeedSource(given)
    assert seeds.origin == "given"
    assert seeds.server() == Seed(derived(b"7", b"server"), derived(b"7", b"server nonce"))
    assert seeds.initial_model() == derived(b"7", b"model")
    assert seeds.partition() == derived(b"7", b"partition")
    for client in (0, 3, "a"):
        block = reference_block(client)
        assert seeds.client(client) == Seed(derived(b"7", b"client", block), derived(b"7", b"client nonce", block))


def test_commitment_is_the_digest_of_nonce_and_seed() -> None:
    assert Seed(b"seed", b"nonce").commitment == hashlib.blake2b(b"nonceseed", digest_size=32).digest()


@pytest.mark.parametrize("given", [7.0, True, np.bool_(False), [7], object()])
def test_number_like_value_raises_invalid_input(given: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be a seed"):
        SeedSource.of_person(given)


def test_bytes_are_no_seed_of_a_person() -> None:
    with pytest.raises(InvalidInput, match="this bytes cannot be a seed"):
        SeedSource.of_person(b"7")  # type: ignore[arg-type]
    assert SeedSource.of_person("7").server() == SeedSource(7).server()
    assert SeedSource.of_person(None).origin == "system"


def test_commitments_to_many_seeds_are_those_to_each() -> None:
    seeds = [SeedSource(7).client(client) for client in range(5)]
    values, nonces = (b"".join(getattr(seed, name) for seed in seeds) for name in ("value", "nonce"))
    assert commitments_of(values, nonces) == [seed.commitment for seed in seeds]
    assert commitments_of(b"", b"") == []
