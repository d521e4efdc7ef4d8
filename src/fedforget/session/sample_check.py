"""The content of a sample is compared with its digest when it is first read for training.

Samples that no mini-batch holds have no influence, so they are not read. ``fedforget verify`` compares all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import LocalRound
from fedforget.store.client_store import ClientStore

if TYPE_CHECKING:
    from fedforget.data.federated import FederatedData


class SampleCheck:
    """Knows which samples this process has compared."""

    def __init__(self, clients: ClientStore) -> None:
        self._clients = clients
        self._compared: dict[Id, tuple[tuple[Id, ...], NDArray[np.bool_]]] = {}  # a client's samples, and which of them

    def require_unchanged(self, data: FederatedData, work: LocalRound) -> None:
        """Raise DataChanged if a sample of these mini-batches is not what the run began with."""
        samples, compared = self._compared.get(work.client, ((), None))
        if compared is None or (samples is not work.samples and samples != work.samples):
            compared = np.zeros(len(work.samples), bool)
            self._compared[work.client] = work.samples, compared
        drawn = np.unique(work.rows)
        fresh = drawn[~compared[drawn]]
        if len(fresh):
            wanted = [work.samples[place] for place in fresh.tolist()]
            data.require_unchanged(work.client, self._clients.contents(work.client, wanted))
            compared[fresh] = True
