"""How clients are trained on this machine: in this process or by worker processes."""

from __future__ import annotations

from dataclasses import dataclass

from fedforget.errors import InvalidInput, quoted, shown
from fedforget.federation.pool import PATIENCE
from fedforget.session.arguments import number_of, whole_or_none

INLINE, POOL = "inline", "pool"
FEDERATIONS = (INLINE, POOL)
_LONGEST = 1e6  # seconds


@dataclass(frozen=True, slots=True)
class Workforce:
    """How clients are trained on this machine: in this process, or by worker processes. The results are the same."""

    federation: str = INLINE
    workers: int | None = None  # None: one per core
    patience: float = PATIENCE  # seconds that a worker has for one local round

    def __post_init__(self) -> None:
        if self.federation not in FEDERATIONS:
            raise InvalidInput(f"unknown federation {quoted(self.federation)}", hint=f"use {' or '.join(FEDERATIONS)}")
        patience = number_of(self.patience, "patience")
        workers = whole_or_none(self.workers, "workers")
        if workers is not None and workers < 1:
            raise InvalidInput(f"{shown(workers)} workers cannot train", hint="give at least 1 of them (--workers)")
        if workers is not None and self.federation != POOL:
            raise InvalidInput("--workers is for the pool", hint="leave it out, or use --federation pool")
        if not 0 < patience <= _LONGEST:
            raise InvalidInput(
                f"a worker cannot have {patience:g} s for a round",
                hint=f"give more than 0 seconds, and at most {_LONGEST:g}",
            )
