"""Natural clients: the writers and roles of a dataset, and virtual clients that are made of writers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedforget.algorithm.streams import numpy_stream
from fedforget.data.partition import Ids
from fedforget.data.source import Group
from fedforget.errors import PlanRefused

VIRTUAL_SAMPLES = 811_586  # of Table 2's FEMNIST, over 3,556 clients: 228 each
_SEPARATOR = "."


def natural_partition(groups: Mapping[str, Group], *, clients: int | None, minimum: int, seed: bytes) -> dict[str, Ids]:
    """Return each writer's or role's samples, numbered from 0. Leaves out clients below ``minimum`` training samples.

    ``clients``: that many of them, chosen by the seed; None for all.
    """
    names = [name for name, group in groups.items() if len(group.train) >= minimum]
    if clients is not None and not 1 <= clients <= len(names):
        raise PlanRefused(
            f"{clients} clients cannot be chosen from the {len(names)} that have at least {minimum} samples",
            hint=f"give --clients from 1 to {len(names)}, or leave it out for all",
        )
    if clients is not None and clients < len(names):
        chosen = np.sort(numpy_stream(seed).permutation(len(names))[:clients])
        names = [names[place] for place in chosen]
    return {name: np.arange(len(groups[name].train), dtype=np.int64) for name in names}


def virtual_partition(
    groups: Mapping[str, Group], *, clients: int, minimum: int, samples: int, seed: bytes
) -> dict[str, Ids]:
    """Return many virtual clients, each a fixed random subset of one writer's samples, about ``samples`` in all.

    The writers take turns, and every client has the same share of its writer's samples. Clients of one writer overlap:
    erasing a sample at one of them does not erase it at the others.
    """
    names = [name for name, group in groups.items() if len(group.train) >= minimum]
    if not 1 <= len(names) <= clients:
        raise PlanRefused(
            f"{clients} virtual clients cannot be made of {len(names)} writers with at least {minimum} samples",
            hint=f"give at least {max(1, len(names))} clients, or the partition natural",
        )
    stream = numpy_stream(seed)
    writers = [names[client % len(names)] for client in range(clients)]
    share = min(1.0, samples / sum(len(groups[writer].train) for writer in writers))
    owners = {}
    for client, writer in enumerate(writers):
        has = len(groups[writer].train)
        chosen = stream.permutation(has)[: max(1, round(share * has))]
        owners[f"{writer}{_SEPARATOR}{client // len(names)}"] = np.sort(chosen).astype(np.int64)
    return owners


def writer_of(client: str) -> str:
    """Return the writer that a virtual client is made of."""
    return client.rpartition(_SEPARATOR)[0]
