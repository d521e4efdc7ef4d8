"""FRS: federated retraining from scratch. FedAvg learns; every request starts it again on what remains."""

from __future__ import annotations

from collections.abc import Sequence

from fedforget.algorithm.forget import Request
from fedforget.baselines.fedavg import Averaging
from fedforget.baselines.method import Cost


class Frs(Averaging):
    """Exact, and as expensive as exact can be."""

    name = "FRS"

    def remove(self, requests: Sequence[Request]) -> Cost:
        self.gone += tuple(requests)
        self._attempt += 1
        self.simulation = self._start(self._attempt)
        return Cost()
