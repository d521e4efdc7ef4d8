"""Seeds, and commitments to them.

All seeds derive from one given seed, or each comes from the operating system. A commitment prevents changing a seed
later; it does not prevent choosing one. So a run with a given seed has the path-by-path guarantee only.
"""

from __future__ import annotations

import hashlib
import operator
import secrets
from dataclasses import dataclass

import numpy as np

from fedforget.algorithm.draws import SEED_BYTES
from fedforget.algorithm.ids import Id, id_block
from fedforget.errors import InvalidInput

_PERSON = b"fedforget/seed/1"


@dataclass(frozen=True, slots=True)
class Seed:
    """A secret seed and the nonce that hides it in its commitment."""

    value: bytes
    nonce: bytes

    @property
    def commitment(self) -> bytes:
        return hashlib.blake2b(self.nonce + self.value, digest_size=32).digest()


def commitments_of(seeds: bytes, nonces: bytes) -> list[bytes]:
    """Return the commitment to each of many seeds, given all seeds and all nonces. Faster than ``Seed.commitment``."""
    columns = [np.frombuffer(data, np.uint8).reshape(-1, SEED_BYTES) for data in (nonces, seeds)]
    joined, width, begun = np.hstack(columns).tobytes(), 2 * SEED_BYTES, hashlib.blake2b(digest_size=32).copy
    found = []
    for start in range(0, len(joined), width):
        hasher = begun()
        hasher.update(joined[start : start + width])
        found.append(hasher.digest())
    return found


class SeedSource:
    """Where the seeds of a run come from: derived from one given seed, or the operating system."""

    def __init__(self, given: int | str | bytes | None) -> None:
        self._root = None
        if given is not None:
            text = given if isinstance(given, bytes) else _text(given)
            self._root = hashlib.blake2b(text, digest_size=SEED_BYTES, person=_PERSON).digest()

    @classmethod
    def of_person(cls, given: int | str | None) -> SeedSource:
        """Make the source for a seed that the caller chose. Refuse bytes: only FedForget's own seeds are bytes."""
        if isinstance(given, bytes):
            raise _no_seed(given)
        return cls(given)

    @property
    def origin(self) -> str:
        return "system" if self._root is None else "given"

    def _derive(self, purpose: str, block: bytes = b"") -> bytes:
        if self._root is None:
            return secrets.token_bytes(SEED_BYTES)
        message = purpose.encode().ljust(16, b"\0") + block
        return hashlib.blake2b(message, key=self._root, digest_size=SEED_BYTES, person=_PERSON).digest()

    def server(self) -> Seed:
        return Seed(self._derive("server"), self._derive("server nonce"))

    def client(self, client: Id) -> Seed:
        block = id_block(client)
        return Seed(self._derive("client", block), self._derive("client nonce", block))

    def initial_model(self) -> bytes:
        return self._derive("model")

    def tree_key(self) -> bytes:
        return self._derive("tree key")

    def partition(self) -> bytes:
        return self._derive("partition")


def _text(given: object) -> bytes:
    """Encode a given seed for hashing. 7 and "7" are one seed; refuse 7.0 and True, which look like one."""
    try:
        if isinstance(given, str):
            return given.encode()
        if not isinstance(given, (bool, np.bool_)):
            return str(operator.index(given)).encode()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    raise _no_seed(given)


def _no_seed(given: object) -> InvalidInput:
    kind = type(given).__name__
    return InvalidInput(f"this {kind} cannot be a seed", hint="give an integer or a string")
