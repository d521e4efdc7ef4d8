"""The clients of a run for a replay: what they note is in memory, and the rest is read when a round needs it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.memory import ClientsInMemory
from fedforget.store.client_store import ClientStore


class ReplayedClients(ClientsInMemory):
    """The present clients of a run, without first uses and witnesses. A client that no round draws costs nothing."""

    def __init__(self, clients: ClientStore) -> None:
        super().__init__({}, {})
        self._clients = clients
        self._first = defaultdict(dict)
        self._witnesses = defaultdict(dict)

    def samples(self, client: Id) -> IdSet:
        if client not in self._samples:
            self._samples[client] = self._clients.samples(client)
        return self._samples[client]

    def seed(self, client: Id) -> bytes:
        return self._clients.seed(client)

    def sizes(self) -> dict[Id, int]:
        return self._clients.sizes()

    def all_first_steps(self) -> Mapping[Id, Mapping[Id, int]]:
        """Return the first uses of each client that has some."""
        return {client: steps for client, steps in self._first.items() if steps}

    def all_witnesses(self) -> Mapping[Id, Mapping[int, bytes]]:
        """Return the witnesses of each client that has some."""
        return {client: noted for client, noted in self._witnesses.items() if noted}
