"""The plan of a run: settings that are fixed before any data are read, and never change.

K and b are formulas in M and N (Algorithm 1, line 1). Evaluating them again after an erasure would change the law of
learning, so the plan freezes them as integers; the ρ they realise is only reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from fractions import Fraction
from numbers import Real
from typing import Final, Literal

from fedforget.algorithm.rho import FROM_ONE, population_of, require, slots_and_batch
from fedforget.errors import InvalidInput, quoted

_MOST = 2**31 - 1
_MOST_A_ROUND = {"clients_per_round": 10**6, "local_steps": 10**6}
KEEP_EVERY: Final = "every"
KEEP_ENDS: Final = "ends"
Keep = int | Literal["every", "ends"]
_WITNESS_INTERVAL = 10  # rounds: a witness each round would take 5 % of a short round


@dataclass(frozen=True, slots=True)
class LocalOptimizer:
    """Local SGD (Algorithm 1, line 13); its state is reset every round."""

    lr: float = 0.1  # η
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0  # FedProx's μ: pulls the local model towards the round's global one

    def __post_init__(self) -> None:
        _require_numbers(self)
        require(math.isfinite(self.lr) and self.lr > 0, f"the learning rate must be above 0, not {self.lr}")
        require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), not {self.momentum}")
        require(0 <= self.weight_decay < math.inf, f"weight decay must be 0 or more, not {self.weight_decay}")
        require(0 <= self.prox < math.inf, f"the FedProx weight must be 0 or more, not {self.prox}")


@dataclass(frozen=True, slots=True)
class ServerOptimizer:
    """How the server uses the average: as the next model (``average``), or as a step (``fedadam``)."""

    name: str = "average"
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 0.001

    def __post_init__(self) -> None:
        require(
            self.name in ("average", "fedadam"),
            f"unknown server optimizer {quoted(self.name)}",
            "choose average or fedadam",
        )
        _require_numbers(self)
        require(math.isfinite(self.lr) and self.lr > 0, f"the server's learning rate must be above 0, not {self.lr}")
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            require(0 <= beta < 1, f"{name} must lie in [0, 1), not {beta}")
        require(math.isfinite(self.tau) and self.tau > 0, f"tau must be above 0, not {self.tau}")


@dataclass(frozen=True, slots=True)
class Plan:
    """K, b, E and R, the optimisers, and which rounds' models are kept.

    >>> Plan(clients_per_round=5, batch_size=10, local_steps=10, rounds=30).steps
    300
    """

    clients_per_round: int  # K
    batch_size: int  # b
    local_steps: int  # E
    rounds: int  # R
    local: LocalOptimizer = field(default_factory=LocalOptimizer)
    server: ServerOptimizer = field(default_factory=ServerOptimizer)
    keep: Keep = KEEP_EVERY  # every round, every c-th, or only the ends

    def __post_init__(self) -> None:
        for name in ("clients_per_round", "batch_size", "local_steps", "rounds"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            words = f"{name.replace('_', ' ')} must be a whole number from 1"
            require(whole and value >= 1, f"{words}, not {quoted(value)}", FROM_ONE)
            most = _MOST_A_ROUND.get(name, _MOST)
            require(value <= most, f"{words} to {most}, not {value}", f"the nearest feasible value is {most}")
        valid = self.keep in (KEEP_EVERY, KEEP_ENDS) or (
            isinstance(self.keep, int) and not isinstance(self.keep, bool) and self.keep >= 1
        )
        require(valid, f"cannot keep models {quoted(self.keep)}", "keep every, ends, or a whole number from 1")

    @property
    def steps(self) -> int:
        """T = E·R."""
        return self.local_steps * self.rounds

    def step_of(self, round_: int, index: int) -> int:
        """Return the step t, from 1, of the local step ``index``, from 0, of a round."""
        return (round_ - 1) * self.local_steps + index + 1

    def round_of(self, step: int) -> int:
        """Return the round, from 1, of a step."""
        return (step - 1) // self.local_steps + 1

    def is_kept(self, round_: int, rounds_done: int) -> bool:
        """Return whether a round's model is kept after ``rounds_done`` rounds; the first and the last always are."""
        if round_ in (0, rounds_done) or self.keep == KEEP_EVERY:
            return True
        return isinstance(self.keep, int) and round_ % self.keep == 0

    def last_witnessed_round(self, rounds_done: int) -> int:
        """Return the latest of the first ``rounds_done`` rounds that has a witness; 0 if none has.

        Clients note a witness in the first ten rounds and in about every tenth after them, where the round's starting
        state is kept.
        """
        if not rounds_done or self.keep == KEEP_ENDS:
            return min(rounds_done, 1)
        kept = 1 if self.keep == KEEP_EVERY else int(self.keep)
        interval = -(-_WITNESS_INTERVAL // kept) * kept
        early = min(rounds_done, _WITNESS_INTERVAL)
        return max(early - (early - 1) % kept, rounds_done - (rounds_done - 1) % interval)

    def has_witness(self, round_: int) -> bool:
        """Return whether the clients of a round note a witness of it."""
        return self.last_witnessed_round(round_) == round_

    def kept_count(self, rounds_done: int) -> int:
        """Return how many models are kept after ``rounds_done`` rounds."""
        every = {KEEP_EVERY: 1, KEEP_ENDS: max(1, rounds_done)}.get(str(self.keep)) or int(self.keep)
        return 1 + -(-rounds_done // every)

    @classmethod
    def from_rho(
        cls,
        *,
        rho_s: float | Fraction,
        rho_c: float | Fraction,
        local_steps: int,
        rounds: int | None = None,
        steps: int | None = None,
        sizes: Iterable[int] | None = None,
        clients: int | None = None,
        samples: float | Fraction | None = None,
        **others: object,
    ) -> Plan:
        """Make a plan with K = ρ_C·E·M/T and b = ρ_S·N/(ρ_C·E), rounded down so that no ρ exceeds the given one.

        M and N come from the clients' ``sizes`` (N their mean) or directly from ``clients`` and ``samples``.

        >>> plan = Plan.from_rho(rho_s=0.25, rho_c=0.5, local_steps=10, rounds=30, clients=300, samples=200)
        >>> plan.clients_per_round, plan.batch_size
        (5, 10)
        """
        found = slots_and_batch(
            rho_s, rho_c, population_of(sizes, clients, samples), local_steps, rounds=rounds, steps=steps
        )
        return cls(found.slots, found.batch, local_steps, found.rounds, **others)  # type: ignore[arg-type]

    def realised_rho_c(self, clients: int) -> float:
        """Return ρ_C = K·R/M on the present roster."""
        return self.clients_per_round * self.rounds / clients if clients else 0.0

    def realised_rho_s(self, sizes: Iterable[int]) -> float:
        """Return ρ_S = b·K·T/(N·M), with min(b, N_k) and N_k of the client where it is largest."""
        present = [size for size in sizes if size]
        if not present:
            return 0.0
        share = max(Fraction(min(self.batch_size, size), size) for size in set(present))
        return float(share * self.clients_per_round * self.steps / len(present))


def _require_numbers(settings: LocalOptimizer | ServerOptimizer) -> None:
    for each in fields(settings):
        value = getattr(settings, each.name)
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        require(each.name == "name" or is_number, f"{each.name} must be a number, not {quoted(value)}")


def goal_of(rounds: int, until: int | None) -> int:
    """Return the round to train to: ``until``, or the plan's last."""
    if until is None:
        return rounds
    if not 0 <= until <= rounds:
        raise InvalidInput(f"round {until} is not in the plan", hint=f"it has {rounds} rounds; give 0 to {rounds}")
    return until


def check_eval_every(rounds: int | None) -> None:
    if rounds is not None and rounds < 1:
        raise InvalidInput(f"cannot measure every {rounds} rounds", hint="give a whole number from 1")
