"""Draws as a pure function of a seed and of the ids present.

Every draw has an address (purpose, round, slot or step, client). At an address each id has a priority, and the ids with
the smallest priorities are drawn. Removing an id changes a draw only if the draw held that id; the id with the next
smallest priority takes its place. The result is the draw from the remaining ids with the same seed.

The drawing functions take the priorities as an argument: a PRF in production, an oracle that enumerates every order
under test (``fedforget.evidence.laws``).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedforget.algorithm.ids import BLOCK_BYTES, Id, IdSet, id_block

SEED_BYTES = 32
NO_CLIENT = b"\xff" * BLOCK_BYTES
_PERSON = b"fedforget/draw/1"
_TOGETHER = 2**14  # priorities compared by one call: fewer cost more calls, more cost more memory


class Purpose(IntEnum):
    """The purpose of a draw: part of its address, never renumbered."""

    SLOT = 1
    BATCH = 2
    STATE = 3  # dropout and initial states
    AUGMENTATION = 4
    WITNESS = 5  # the key of a client's witness of a round


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a draw: rounds count from 1, slots and steps from 0."""

    purpose: Purpose
    round: int
    index: int
    client: bytes = NO_CLIENT

    def message(self) -> bytes:
        return struct.pack(">BQQ", self.purpose, self.round, self.index) + self.client


class Priorities(Protocol):
    """Return the priority of every id at an address, as two columns of 64 bits: high and low half."""

    def __call__(self, address: Address, ids: IdSet) -> NDArray[np.uint64]: ...

    def stream(self, address: Address) -> bytes:
        """Return the key of the random stream at an address (for dropout and the like)."""


def draw_key(seed: bytes, address: Address) -> bytes:
    """Derive the AES-128 key of an address."""
    return hashlib.blake2b(address.message(), key=seed, digest_size=16, person=_PERSON).digest()


class PrfPriorities:
    """Priority = AES-128 of the id's block under the key of the address. A permutation: no ties, uniform orders."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
        self._seed = seed

    def __call__(self, address: Address, ids: IdSet) -> NDArray[np.uint64]:
        cipher = Cipher(algorithms.AES(draw_key(self._seed, address)), modes.ECB())  # noqa: S305 (used as a PRP)
        size = ids.blocks.size
        encrypted = np.empty(size + BLOCK_BYTES - 1, np.uint8)  # update_into needs space for one more block
        if size:
            cipher.encryptor().update_into(ids.blocks.data.cast("B"), encrypted.data)
        return encrypted[:size].view(">u8").reshape(-1, 2)

    def stream(self, address: Address) -> bytes:
        return draw_key(self._seed, address)


def smallest(priorities: NDArray[np.uint64], count: int) -> NDArray[np.intp]:
    """Return the positions, ascending, of the ``count`` smallest priorities of each row, compared over all 16 bytes."""
    *rows, size, _ = priorities.shape
    if count >= size:
        return np.tile(np.arange(size), (*rows, 1))
    high = priorities[..., 0].astype(np.uint64)
    if count == 1:
        return _smallest_one(priorities, high)
    bound = np.partition(high, count - 1)[..., count - 1]
    chosen = high <= bound[..., None]
    if np.count_nonzero(chosen) > count * bound.size:  # equal high halves at the boundary: the low halves decide
        return np.sort(np.lexsort((priorities[..., 1], high))[..., :count])
    return chosen.nonzero()[-1].reshape(*rows, count)


def _smallest_one(priorities: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.intp]:
    places: NDArray[np.intp] = high.argmin(-1)[..., None]
    if np.count_nonzero(high == np.take_along_axis(high, places, -1)) > places.size:  # the low halves decide
        return np.lexsort((priorities[..., 1], high))[..., :1]
    return places


def _draw(priorities: Priorities, addresses: Sequence[Address], ids: IdSet, count: int) -> NDArray[np.intp]:
    """Return a row for each address: the positions of the ids drawn there."""
    together = max(1, _TOGETHER // len(ids))
    groups = [addresses[start : start + together] for start in range(0, len(addresses), together)]
    return np.concatenate(
        [smallest(_together([priorities(address, ids) for address in group]), count) for group in groups]
    )


def _together(rows: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return rows[0][None] if len(rows) == 1 else np.stack(rows)  # of a large set, one row is not copied


def draw_clients_with_replacement(priorities: Priorities, roster: IdSet, round_: int, slots: int) -> list[Id]:
    """Draw the clients in the K slots of a round: each slot uniform over the roster, the slots independent.

    Algorithm 1, line 7: the multiset P^(t).
    """
    if not len(roster):
        raise ValueError("no client to draw: the roster is empty")
    addresses = [Address(Purpose.SLOT, round_, slot) for slot in range(slots)]
    return [roster.at(place) for place in _draw(priorities, addresses, roster, 1)[:, 0].tolist()]


def draw_batches_without_replacement(
    priorities: Priorities, client: Id, samples: IdSet, round_: int, steps: Sequence[int], size: int
) -> NDArray[np.intp]:
    """Draw a client's mini-batch for each step, as positions in ``samples``.

    Each is a uniform subset of min(b, N_k) samples, in ascending block order; the steps are independent. Algorithm 1,
    line 11: B_k^(t).
    """
    if size >= len(samples):
        return np.tile(np.arange(len(samples)), (len(steps), 1))
    block = id_block(client)
    addresses = [Address(Purpose.BATCH, round_, step, block) for step in steps]
    return _draw(priorities, addresses, samples, size)


def draw_batch_without_replacement(
    priorities: Priorities, client: Id, samples: IdSet, round_: int, step: int, size: int
) -> NDArray[np.intp]:
    """Draw the mini-batch of one step."""
    batch: NDArray[np.intp] = draw_batches_without_replacement(priorities, client, samples, round_, (step,), size)[0]
    return batch


def multiplicities(slots: Sequence[Id]) -> dict[Id, int]:
    """Count how often each client was drawn, in ascending order of id blocks."""
    counts: dict[Id, int] = {}
    for client in sorted(slots, key=id_block):
        counts[client] = counts.get(client, 0) + 1
    return counts
