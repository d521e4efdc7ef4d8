"""Partition a dataset over clients, once, before training; the run directory then records each client's samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.streams import numpy_stream
from fedforget.errors import PlanRefused


def dirichlet_label_partition(
    labels: NDArray[np.integer], ids: Sequence[int], *, clients: int, beta: float, seed: bytes
) -> dict[int, list[int]]:
    """Split each label's samples over the clients by p ~ Dir(β); no client stays empty (Section 6.1 of the paper)."""
    if clients < 1:
        raise PlanRefused(f"there cannot be {clients} clients", hint="give at least one")
    if clients > len(ids):
        raise PlanRefused(
            f"{clients} clients are more than the {len(ids)} samples", hint=f"give at most {len(ids)} clients"
        )
    if not 0 < beta < float("inf"):
        raise PlanRefused(f"beta must be above 0, not {beta}", hint="0.5 is the paper's")
    stream = numpy_stream(seed)
    owned: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = stream.permutation(np.flatnonzero(labels == label))
        shares = stream.dirichlet(np.full(clients, beta))
        cuts = np.floor(np.cumsum(shares)[:-1] * len(members) + 0.5).astype(int)
        for client, part in enumerate(np.split(members, cuts)):
            owned[client] += part.tolist()
    for client in range(clients):
        if not owned[client]:
            richest = max(range(clients), key=lambda other: (len(owned[other]), -other))
            owned[client].append(owned[richest].pop())
    return {client: sorted(ids[place] for place in places) for client, places in enumerate(owned)}
