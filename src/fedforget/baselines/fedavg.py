"""FedAvg (McMahan et al., 2017): K clients without replacement each round, and a plain or weighted average.

E and b are the plan's, so that a round costs what a round of FATS costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.draws import Address, Priorities, Purpose, smallest
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.ports import Aggregator, State, TrainReply
from fedforget.algorithm.seeds import SeedSource
from fedforget.baselines.method import Cost, Problem
from fedforget.baselines.simulation import SimulatedMethod, Simulation
from fedforget.errors import InvalidInput


def draw_clients_without_replacement(priorities: Priorities, roster: IdSet, round_: int, count: int) -> list[Id]:
    """A uniform subset of min(K, M) clients: those with the smallest priorities at the round's first slot."""
    places = smallest(priorities(Address(Purpose.SLOT, round_, 0), roster), count)
    return [roster.ids[place] for place in places]


class WeightedAverage:
    """The next model is the average of the replies, weighted by the clients' numbers of samples N_k."""

    def __init__(self, sizes: Mapping[Id, int]) -> None:
        self._sizes = sizes

    def __call__(self, state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State:  # noqa: ARG002
        total = sum(self._sizes[reply.client] for reply in replies)
        return State({name: self._average(name, replies, total) for name in replies[0].model})

    def _average(self, name: str, replies: Sequence[TrainReply], total: int) -> NDArray[Any]:
        example: NDArray[Any] = replies[0].model[name]
        if not np.issubdtype(example.dtype, np.floating):
            return example.copy()
        weighted = np.zeros(example.shape, np.float64)
        for reply in replies:
            weighted += self._sizes[reply.client] / total * reply.model[name].astype(np.float64)
        return weighted.astype(example.dtype)


class Averaging(SimulatedMethod):
    """Federated averaging. A subclass writes ``remove``.

    ``weighted``: average with weights N_k instead of 1/K.
    """

    weighted = False

    def __init__(self, problem: Problem, without: Sequence[Request] = (), attempt: int = 0) -> None:
        super().__init__(problem, without)
        self._attempt = attempt
        self.simulation = self._start(attempt)

    def _start(self, attempt: int) -> Simulation:
        """A training on what remains. Each attempt has its own draws; the initial weights are the same."""
        seeds = SeedSource(self.problem.seed if not attempt else f"{self.problem.seed}/fedavg/{attempt}")
        return Simulation(
            self.problem,
            seeds,
            self.gone,
            keep="ends",
            draw_slots=draw_clients_without_replacement,
            aggregate=self._weighting if self.weighted else None,
        )

    def _weighting(self) -> Aggregator:
        return WeightedAverage(self.simulation.clients.sizes())

    def fork(self) -> Averaging:
        other = type(self)(self.problem, self.gone, self._attempt)
        other.resume_at(self.rounds_done, self.state)
        return other

    def resume_at(self, round_: int, state: State) -> None:
        """Go on from a state that the same training reached elsewhere."""
        self.simulation.resume_at(round_, state)


class FedAvg(Averaging):
    """Federated averaging. It cannot unlearn."""

    name = "FedAvg"

    def remove(self, requests: Sequence[Request]) -> Cost:
        raise InvalidInput(f"{self.name} cannot unlearn {len(requests)} requests", hint="compare with FRS instead")
