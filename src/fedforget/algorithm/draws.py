"""Draws that are a pure function of a seed and of who is there.

Every draw has an address (purpose, round, slot or step, client). At an address each id has a priority, and the ids with
the smallest priorities are drawn. Take an id away and a draw changes only if it held that id; the next in line
takes its place. What is left is the draw on the remaining ids for the same seed.

The functions that draw take the priorities as an argument: from the PRF in production, from an oracle that walks every
order under test (``fedforget.evidence.laws``).
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
_TOGETHER = 2**14  # priorities that are compared by one call: more calls cost time, more priorities cost memory


class Purpose(IntEnum):
    """What a draw is for; part of its address, fixed for ever."""

    SLOT = 1
    BATCH = 2
    STATE = 3  # dropout and initial states
    AUGMENTATION = 4
    WITNESS = 5  # the key of a client's witness of a round


@dataclass(frozen=True, slots=True)
class Address:
    """Where a draw stands: rounds from 1, slots and steps from 0."""

    purpose: Purpose
    round: int
    index: int
    client: bytes = NO_CLIENT

    def message(self) -> bytes:
        return struct.pack(">BQQ", self.purpose, self.round, self.index) + self.client


class Priorities(Protocol):
    """Gives every id of a set its priority at an address, as two columns of 64 bits: high and low half."""

    def __call__(self, address: Address, ids: IdSet) -> NDArray[np.uint64]: ...

    def stream(self, address: Address) -> bytes:
        """The key of the random stream at an address (dropout and the like)."""


def draw_key(seed: bytes, address: Address) -> bytes:
    """The AES-128 key of an address."""
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
        encrypted = np.empty(size + BLOCK_BYTES - 1, np.uint8)  # update_into asks for room for one more block
        if size:
            cipher.encryptor().update_into(ids.blocks.data.cast("B"), encrypted.data)
        return encrypted[:size].view(">u8").reshape(-1, 2)

    def stream(self, address: Address) -> bytes:
        return draw_key(self._seed, address)


def smallest(priorities: NDArray[np.uint64], count: int) -> NDArray[np.intp]:
    """Positions, ascending, of the ``count`` smallest priorities in each row, compared over all 16 bytes."""
    *rows, size, _ = priorities.shape
    if count >= size:
        return np.tile(np.arange(size), (*rows, 1))
    high = priorities[..., 0].astype(np.uint64)
    bound = high.min(-1) if count == 1 else np.partition(high, count - 1)[..., count - 1]
    chosen = high <= bound[..., None]
    if np.count_nonzero(chosen) > count * bound.size:  # equal high halves at the boundary: the low halves decide
        return np.sort(np.lexsort((priorities[..., 1], high))[..., :count])
    return chosen.nonzero()[-1].reshape(*rows, count)


def _draw(priorities: Priorities, addresses: Sequence[Address], ids: IdSet, count: int) -> NDArray[np.intp]:
    """A row for each address: the positions of those that are drawn there."""
    together = max(1, _TOGETHER // len(ids))
    groups = [addresses[start : start + together] for start in range(0, len(addresses), together)]
    return np.concatenate(
        [smallest(np.stack([priorities(address, ids) for address in group]), count) for group in groups]
    )


def draw_clients_with_replacement(priorities: Priorities, roster: IdSet, round_: int, slots: int) -> list[Id]:
    """The clients in the K slots of a round: each slot uniform over the roster, the slots independent.

    Algorithm 1, line 7: the multiset P^(t).
    """
    if not len(roster):
        raise ValueError("no client to draw: the roster is empty")
    addresses = [Address(Purpose.SLOT, round_, slot) for slot in range(slots)]
    return [roster.ids[place] for place in _draw(priorities, addresses, roster, 1)[:, 0]]


def draw_batches_without_replacement(
    priorities: Priorities, client: Id, samples: IdSet, round_: int, steps: Sequence[int], size: int
) -> NDArray[np.intp]:
    """A client's mini-batch for each step, as positions in ``samples``: a uniform subset of min(b, N_k), in ascending
    block order, the steps independent.

    Algorithm 1, line 11: B_k^(t).
    """
    if size >= len(samples):
        return np.tile(np.arange(len(samples)), (len(steps), 1))
    block = id_block(client)
    addresses = [Address(Purpose.BATCH, round_, step, block) for step in steps]
    return _draw(priorities, addresses, samples, size)


def draw_batch_without_replacement(
    priorities: Priorities, client: Id, samples: IdSet, round_: int, step: int, size: int
) -> NDArray[np.intp]:
    """The mini-batch of one step."""
    batch: NDArray[np.intp] = draw_batches_without_replacement(priorities, client, samples, round_, (step,), size)[0]
    return batch


def multiplicities(slots: Sequence[Id]) -> dict[Id, int]:
    """How often each distinct client was drawn, in ascending order of id blocks."""
    counts: dict[Id, int] = {}
    for client in sorted(slots, key=id_block):
        counts[client] = counts.get(client, 0) + 1
    return counts
