"""FATS: the production algorithm (``algorithm.learn`` and ``algorithm.forget``) as a method to compare."""

from __future__ import annotations

from collections.abc import Sequence

from fedforget.algorithm.forget import Request, apply, decide
from fedforget.algorithm.ids import Id
from fedforget.algorithm.seeds import SeedSource
from fedforget.baselines.method import Cost, Problem
from fedforget.baselines.simulation import SimulatedMethod, Simulation


class Fats(SimulatedMethod):
    """Clients with replacement, batches without, and a rewind to before the first draw that held the data."""

    name = "FATS"

    def __init__(self, problem: Problem, without: Sequence[Request] = ()) -> None:
        super().__init__(problem, without)
        self.simulation = Simulation(problem, SeedSource(problem.seed), without)

    def remove(self, requests: Sequence[Request]) -> Cost:
        """Algorithms 2 and 3 up to the point where learning goes on; nothing is computed."""
        with self.simulation.server() as server:
            apply(server, decide(server, requests))
        self.gone += tuple(requests)
        return Cost()

    def first_rounds(self) -> dict[Id, int]:
        """The first round of every client that took part."""
        return self.simulation.memory.first_rounds()

    def first_steps(self) -> dict[Id, dict[Id, int]]:
        """The first step of every sample that a batch held, by client."""
        roster = self.simulation.memory.roster
        return {client: dict(self.simulation.clients.first_steps(client)) for client in roster}

    def fork(self) -> Fats:
        other = Fats(self.problem, self.gone)
        other.simulation.take_over(self.simulation)
        return other
