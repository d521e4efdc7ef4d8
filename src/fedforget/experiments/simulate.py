"""First uses from the production draws, without training: for every K and b of a grid at once.

Draws nest. Slot s of a round has the same client whatever K > s is, and the mini-batch of b is contained in that of
b + 1. So one pass over the addresses gives the first use of a target for every K and b up to the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.draws import Address, PrfPriorities, Purpose, draw_clients_with_replacement
from fedforget.algorithm.ids import IdSet, id_block
from fedforget.algorithm.seeds import SeedSource

Whole = NDArray[np.int64]


def draw_slots(seeds: SeedSource, clients: int, rounds: int, slots: int) -> Whole:
    """The client in each slot of each round, by the production draw: a row per round."""
    priorities, roster = PrfPriorities(seeds.server().value), IdSet(range(clients))
    return np.array(
        [draw_clients_with_replacement(priorities, roster, round_, slots) for round_ in range(1, rounds + 1)], np.int64
    )


def draw_slot_orders(seeds: SeedSource, clients: int, rounds: int, slots: int, depth: int) -> Whole:
    """The ``depth`` clients with the smallest priorities in each slot, in order: the next fills it when one leaves."""
    priorities, roster = PrfPriorities(seeds.server().value), IdSet(range(clients))
    orders = np.empty((rounds, slots, depth), np.int64)
    for round_ in range(rounds):
        for slot in range(slots):
            high, low = priorities(Address(Purpose.SLOT, round_ + 1, slot), roster).astype(np.uint64).T
            least = np.argpartition(high, depth)[: depth + 1] if depth < clients else np.arange(clients)
            orders[round_, slot] = least[np.lexsort((low[least], high[least]))][:depth]
    return orders


def first_rounds(slots: Whole, clients: int, counts: Sequence[int]) -> dict[int, Whole]:
    """For each K of ``counts``, the first round of every client; 0 for a client that no slot holds."""
    rounds = np.arange(1, len(slots) + 1)
    never, found = len(slots) + 1, dict[int, Whole]()
    first = np.full(clients, never, np.int64)
    for count in range(1, max(counts) + 1):
        np.minimum.at(first, slots[:, count - 1], rounds)
        if count in counts:
            found[count] = np.where(first == never, 0, first)
    return found


def steps_from_round(first: Whole, rounds: int, local_steps: int) -> Whole:
    """Steps to recompute from the start of a round on; none if it is 0."""
    return np.where(first == 0, 0, (rounds - first + 1) * local_steps)


@dataclass(frozen=True, slots=True)
class BatchRanks:
    """One target sample: the rounds that hold its client, that client's smallest slot, and the sample's ranks.

    ``ranks`` has a row per round and a column per local step: how many of the client's samples come before it.
    """

    rounds: Whole
    slots: Whole
    ranks: Whole

    def first_step(self, clients_per_round: int, batch_size: int) -> int:
        """The step of its first use, from 1; 0 if no batch holds it."""
        drawn = self.slots < clients_per_round
        held = self.ranks[drawn] < batch_size
        if not held.any():
            return 0
        row = int(held.any(1).argmax())
        return int((self.rounds[drawn][row] - 1) * self.ranks.shape[1] + held[row].argmax() + 1)


def rank_target(
    seeds: SeedSource, slots: Whole, client: int, samples: int, sample: int, local_steps: int
) -> BatchRanks:
    """The rank of a sample, of a client with N samples, in each local step that the client may take."""
    at = np.argwhere(slots == client)
    rounds, places = np.unique(at[:, 0], return_index=True)
    priorities, ids, block = PrfPriorities(seeds.client(client).value), IdSet(range(samples)), id_block(client)
    ranks = np.empty((len(rounds), local_steps), np.int64)
    for row, round_ in enumerate(rounds):
        for step in range(local_steps):
            high, low = priorities(Address(Purpose.BATCH, int(round_) + 1, step, block), ids).astype(np.uint64).T
            before = (high < high[sample]) | ((high == high[sample]) & (low < low[sample]))
            ranks[row, step] = np.count_nonzero(before)
    return BatchRanks(rounds + 1, at[places, 1], ranks)


def stream_first_rounds(orders: Whole, targets: Sequence[int], counts: Sequence[int]) -> dict[int, list[int]]:
    """For each K, the first round of every target after the earlier targets have left; 0 if none holds it.

    A slot whose client has left holds the next in its order.
    """
    gone = np.zeros(orders.max() + 1, bool)
    found: dict[int, list[int]] = {count: [] for count in counts}
    for target in targets:
        holder = np.take_along_axis(orders, gone[orders].argmin(2)[..., None], 2)[..., 0]
        held = holder == target
        for count in counts:
            rounds = held[:, :count].any(1)
            found[count].append(int(rounds.argmax()) + 1 if rounds.any() else 0)
        gone[target] = True
    return found
