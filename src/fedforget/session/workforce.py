"""How clients are trained on this machine: in this process, by worker processes, or by the nodes of a simulation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fedforget.errors import InvalidInput, quoted, shown
from fedforget.federation.flower.deployment import superlink_of
from fedforget.federation.flower.simulation import Simulation, require_installed
from fedforget.federation.flower.trainer import Nodes
from fedforget.federation.pool import PATIENCE
from fedforget.session.arguments import number_of, whole_or_none

INLINE, POOL, FLOWER_SIMULATION = "inline", "pool", "flower-simulation"
FLOWER_APP = "flower-app"  # of a Flower app, which has nodes already
FEDERATIONS = (INLINE, POOL, FLOWER_SIMULATION)
_LONGEST = 1e6  # seconds


@dataclass(frozen=True, slots=True)
class Workforce:
    """How clients are trained on this machine: the results are the same.

    ``nodes``: the nodes of a Flower app, or of a simulation that several trainings share.
    """

    federation: str = INLINE
    workers: int | None = None  # None: one per core
    patience: float = PATIENCE  # seconds that a worker has for one local round
    nodes: Nodes | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        of_app = (self.federation, self.nodes is None) == (FLOWER_APP, False)
        if self.federation not in FEDERATIONS and not of_app and self.superlink is None:
            known = ", ".join((*FEDERATIONS, "flower:NAME"))
            raise InvalidInput(f"unknown federation {quoted(self.federation)}", hint=f"use {known}")
        patience = number_of(self.patience, "patience")
        workers = whole_or_none(self.workers, "workers")
        if workers is not None and workers < 1:
            raise InvalidInput(f"{shown(workers)} workers cannot train", hint="give at least 1 of them (--workers)")
        if workers is not None and self.federation == INLINE:
            raise InvalidInput("--workers is for the pool", hint="leave it out, or use --federation pool")
        if not 0 < patience <= _LONGEST:
            raise InvalidInput(
                f"a worker cannot have {patience:g} s for a round",
                hint=f"give more than 0 seconds, and at most {_LONGEST:g}",
            )
        if self.federation == FLOWER_SIMULATION and self.nodes is None:
            require_installed()

    @property
    def superlink(self) -> str | None:
        """The name of the SuperLink that reaches clients on other machines (``flower:NAME``)."""
        return superlink_of(self.federation)

    @property
    def can_fork(self) -> bool:
        """Whether other processes train the clients, and this one may be forked: a Flower app has threads."""
        return self.federation in (POOL, FLOWER_SIMULATION)

    @property
    def uses_nodes(self) -> bool:
        """Whether the nodes of a Flower simulation train the clients."""
        return self.federation in (FLOWER_SIMULATION, FLOWER_APP)

    @contextlib.contextmanager
    def shared(self) -> Iterator[Workforce]:
        """Keep one simulation for everything that is trained in the block, if it is to be one."""
        if self.federation != FLOWER_SIMULATION or self.nodes is not None:
            yield self
            return
        with contextlib.closing(Simulation(self.workers, self.patience)) as nodes:
            yield replace(self, nodes=nodes)
