"""Partition a dataset over clients, once, before training; the run directory then records each client's samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.streams import numpy_stream
from fedforget.errors import PlanRefused

Ids = NDArray[np.int64]


def dirichlet_label_partition(
    labels: NDArray[np.integer], ids: Sequence[int] | Ids, *, clients: int, beta: float, seed: bytes
) -> dict[int, list[int]]:
    """Split each label's samples over the clients by p ~ Dir(β); no client stays empty (Section 6.1 of the paper)."""
    _require_possible(clients, len(ids), beta)
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
    return {client: sorted(int(ids[place]) for place in places) for client, places in enumerate(owned)}


def equal_label_partition(
    labels: NDArray[np.integer], ids: Sequence[int] | Ids, *, clients: int, beta: float, seed: bytes
) -> dict[int, list[int]]:
    """Give every client N = total // M samples, with its own mix of labels p ~ Dir(β).

    A client draws N labels from its mix; those without a sample left it draws again among the others. The remainder
    of the division belongs to no client.
    """
    _require_possible(clients, len(ids), beta)
    stream = numpy_stream(seed)
    kinds = np.unique(labels)
    supply = [stream.permutation(np.flatnonzero(labels == kind)) for kind in kinds]
    mixes = stream.dirichlet(np.full(len(kinds), beta), clients)
    left = np.array([len(members) for members in supply])
    owners = {}
    for client, mix in enumerate(mixes):
        places = []
        for kind, count in enumerate(_counts(stream.multinomial, mix, left, len(ids) // clients)):
            places += supply[kind][left[kind] - count : left[kind]].tolist()
            left[kind] -= count
        owners[client] = sorted(int(ids[place]) for place in places)
    return owners


def _counts(
    multinomial: Callable[..., NDArray[np.int64]], mix: NDArray[np.float64], left: NDArray[np.int64], wanted: int
) -> NDArray[np.int64]:
    """Return how many samples of each label a client takes, none more than are left."""
    counts = np.zeros_like(left)
    while missing := wanted - int(counts.sum()):
        room = left - counts
        weights = np.where(room > 0, mix, 0)
        if weights.sum() <= 0:  # only labels that are used up are in its mix
            weights = room.astype(float)
        counts += np.minimum(multinomial(missing, weights / weights.sum()), room)
    return counts


def _require_possible(clients: int, samples: int, beta: float) -> None:
    if clients < 1:
        raise PlanRefused(f"there cannot be {clients} clients", hint="give at least one")
    if clients > samples:
        raise PlanRefused(
            f"{clients} clients are more than the {samples} samples", hint=f"give at most {samples} clients"
        )
    if not 0 < beta < float("inf"):
        raise PlanRefused(f"beta must be above 0, not {beta}", hint="0.5 is the paper's")
