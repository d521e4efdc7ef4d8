"""The plan of a run: what is decided once, before any data are touched, and never again.

K and b are formulas in M and N (Algorithm 1, line 1). Re-evaluated after an erasure they would change the law of
learning, so here they are integers that are frozen with the plan; the ρ they realise is only reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, Literal

from fedforget.errors import InvalidInput, PlanRefused, quoted

_MOST = 2**31 - 1
_MOST_A_ROUND = {"clients_per_round": 10**6, "local_steps": 10**6}
_FROM_ONE = "the nearest feasible value is 1"
KEEP_EVERY: Final = "every"
KEEP_ENDS: Final = "ends"
Keep = int | Literal["every", "ends"]
_WITNESS_INTERVAL = 10  # rounds: noting one each round takes 5 % of a short round


@dataclass(frozen=True, slots=True)
class LocalOptimizer:
    """Local SGD (Algorithm 1, line 13); its state is reset every round."""

    lr: float = 0.1  # η
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0  # FedProx's μ: pulls the local model towards the round's global one

    def __post_init__(self) -> None:
        _require(math.isfinite(self.lr) and self.lr > 0, f"the learning rate must be above 0, not {self.lr}")
        _require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), not {self.momentum}")
        _require(0 <= self.weight_decay < math.inf, f"weight decay must be 0 or more, not {self.weight_decay}")
        _require(0 <= self.prox < math.inf, f"the FedProx weight must be 0 or more, not {self.prox}")


@dataclass(frozen=True, slots=True)
class ServerOptimizer:
    """What the server does with the average: takes it (``average``), or steps towards it (``fedadam``)."""

    name: str = "average"
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 0.001

    def __post_init__(self) -> None:
        _require(
            self.name in ("average", "fedadam"),
            f"unknown server optimizer {quoted(self.name)}",
            "choose average or fedadam",
        )
        _require(math.isfinite(self.lr) and self.lr > 0, f"the server's learning rate must be above 0, not {self.lr}")
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            _require(0 <= beta < 1, f"{name} must lie in [0, 1), not {beta}")
        _require(math.isfinite(self.tau) and self.tau > 0, f"tau must be above 0, not {self.tau}")


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
            _require(whole and value >= 1, f"{words}, not {quoted(value)}", _FROM_ONE)
            most = _MOST_A_ROUND.get(name, _MOST)
            _require(value <= most, f"{words} to {most}, not {value}", f"the nearest feasible value is {most}")
        valid = self.keep in (KEEP_EVERY, KEEP_ENDS) or (
            isinstance(self.keep, int) and not isinstance(self.keep, bool) and self.keep >= 1
        )
        _require(valid, f"cannot keep models {quoted(self.keep)}", "keep every, ends, or a whole number from 1")

    @property
    def steps(self) -> int:
        """T = E·R."""
        return self.local_steps * self.rounds

    def step_of(self, round_: int, index: int) -> int:
        """The step t, from 1, of the local step ``index``, from 0, of a round."""
        return (round_ - 1) * self.local_steps + index + 1

    def round_of(self, step: int) -> int:
        """The round, from 1, that a step belongs to."""
        return (step - 1) // self.local_steps + 1

    def is_kept(self, round_: int, rounds_done: int) -> bool:
        """Whether the model of a round is on disk once ``rounds_done`` are: the first and the last always are."""
        if round_ in (0, rounds_done) or self.keep == KEEP_EVERY:
            return True
        return isinstance(self.keep, int) and round_ % self.keep == 0

    def last_witnessed_round(self, rounds_done: int) -> int:
        """The latest of the first ``rounds_done`` rounds that clients note a witness of; 0 if there is none.

        The first ten rounds and about every tenth after them, of those whose starting state stays on disk.
        """
        if not rounds_done or self.keep == KEEP_ENDS:
            return min(rounds_done, 1)
        kept = 1 if self.keep == KEEP_EVERY else int(self.keep)
        interval = -(-_WITNESS_INTERVAL // kept) * kept
        early = min(rounds_done, _WITNESS_INTERVAL)
        return max(early - (early - 1) % kept, rounds_done - (rounds_done - 1) % interval)

    def has_witness(self, round_: int) -> bool:
        """Whether the clients of a round note a witness of it."""
        return self.last_witnessed_round(round_) == round_

    def kept_count(self, rounds_done: int) -> int:
        """How many models are on disk once ``rounds_done`` rounds are."""
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
        """K = ρ_C·E·M/T and b = ρ_S·N/(ρ_C·E), rounded down so that no ρ exceeds what was asked for at this N.

        M and N come from the clients' ``sizes`` (N their mean) or directly from ``clients`` and ``samples``.

        >>> plan = Plan.from_rho(rho_s=0.25, rho_c=0.5, local_steps=10, rounds=30, clients=300, samples=200)
        >>> plan.clients_per_round, plan.batch_size
        (5, 10)
        """
        population, mean = _population(sizes, clients, samples)
        _require(local_steps >= 1, f"local steps must be a whole number from 1, not {local_steps}", _FROM_ONE)
        total = _total_steps(local_steps, rounds, steps)
        requested_s, requested_c = _as_written(rho_s), _as_written(rho_c)
        asked = _Asked(requested_s, requested_c, population, mean, local_steps, total // local_steps)
        for name, value, rho in (("rho_s", rho_s, requested_s), ("rho_c", rho_c, requested_c)):
            _require(0 < rho <= 1, f"{name} must lie in (0, 1], not {value}", asked.nearest_in_range())
        if asked.slots < 1:
            raise PlanRefused(
                f"rho_c = {_number(requested_c)} leaves less than one client a round "
                f"(K = rho_c*E*M/T = {_number(requested_c * population / asked.rounds)})",
                hint=asked.nearest(),
            )
        if asked.batch < 1:
            raise PlanRefused(
                f"rho_s = {_number(requested_s)} leaves less than one sample a batch "
                f"(b = rho_s*N/(rho_c*E) = {_number(requested_s * mean / (requested_c * local_steps))})",
                hint=asked.nearest(),
            )
        if asked.batch > mean:
            raise PlanRefused(
                f"rho_s = {_number(requested_s)} asks for batches of {asked.batch}, but a client has {_number(mean)} "
                "samples",
                hint=asked.nearest(),
            )
        return cls(asked.slots, asked.batch, local_steps, total // local_steps, **others)  # type: ignore[arg-type]

    def realised_rho_c(self, clients: int) -> float:
        """ρ_C = K·R/M on the present roster."""
        return self.clients_per_round * self.rounds / clients if clients else 0.0

    def realised_rho_s(self, sizes: Iterable[int]) -> float:
        """ρ_S = b·K·T/(N·M), with min(b, N_k) and N_k of the client for which it is worst."""
        present = [size for size in sizes if size]
        if not present:
            return 0.0
        share = max(Fraction(min(self.batch_size, size), size) for size in set(present))
        return float(share * self.clients_per_round * self.steps / len(present))


def goal_of(rounds: int, until: int | None) -> int:
    """The round to train to: the plan's last, or an earlier one."""
    if until is None:
        return rounds
    if not 0 <= until <= rounds:
        raise InvalidInput(f"round {until} is not in the plan", hint=f"it has {rounds} rounds; give 0 to {rounds}")
    return until


def check_eval_every(rounds: int | None) -> None:
    if rounds is not None and rounds < 1:
        raise InvalidInput(f"cannot measure every {rounds} rounds", hint="give a whole number from 1")


def _require(holds: bool, message: str, hint: str = "") -> None:
    if not holds:
        raise PlanRefused(message, hint=hint or "correct the value and give the command again")


def _as_written(value: float | Fraction) -> Fraction:
    """The decimal that was written, not its binary neighbour; what is no number is below every ρ."""
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        return Fraction(0)


def _population(
    sizes: Iterable[int] | None, clients: int | None, samples: float | Fraction | None
) -> tuple[int, Fraction]:
    if sizes is not None:
        counted = list(sizes)
        _require(sum(counted) > 0, "the federation has no samples", "give it at least one client with one sample")
        return len(counted), Fraction(sum(counted), len(counted))
    if clients is None or samples is None:
        raise PlanRefused("M and N are needed", hint="give sizes, or clients and samples")
    _require(clients >= 1, f"the federation has {clients} clients", _FROM_ONE)
    try:
        mean = Fraction(str(samples))
    except ValueError:
        mean = Fraction(0)
    _require(mean >= 1, f"a client has {samples} samples", _FROM_ONE)
    return clients, mean


def _total_steps(local_steps: int, rounds: int | None, steps: int | None) -> int:
    if rounds is not None:
        _require(rounds >= 1, f"rounds must be a whole number from 1, not {rounds}", _FROM_ONE)
        return rounds * local_steps
    if steps is None:
        raise PlanRefused("the length of training is needed", hint="give rounds or steps")
    below = max(1, steps // local_steps) * local_steps
    _require(
        steps >= 1 and steps % local_steps == 0,
        f"{steps} steps are not a whole number of rounds of {local_steps}",
        f"the nearest feasible numbers are {below} and {below + local_steps}",
    )
    return steps


@dataclass(frozen=True, slots=True)
class _Asked:
    """ρ_S, ρ_C, M, N, E and R as they were asked for."""

    rho_s: Fraction
    rho_c: Fraction
    clients: int
    samples: Fraction
    local_steps: int
    rounds: int

    @property
    def slots(self) -> int:
        return math.floor(self.rho_c * self.clients / self.rounds)

    @property
    def batch(self) -> int:
        return math.floor(self.rho_s * self.samples / (self.rho_c * self.local_steps))

    @property
    def feasible(self) -> bool:
        in_range = 0 < self.rho_s <= 1 and 0 < self.rho_c <= 1 and min(self.local_steps, self.rounds) >= 1
        return in_range and self.slots >= 1 and 1 <= self.batch <= self.samples

    def nearest(self) -> str:
        """The changes that make it feasible: one value where one is enough. The last of ``several`` always is."""
        lowest_c = _rounded(Fraction(self.rounds, self.clients), up=True)
        change = self._change
        if self.slots < 1:
            single = [change(rho_c=lowest_c), change(rounds=math.floor(self.rho_c * self.clients))]
            single.append(change(clients=math.ceil(self.rounds / self.rho_c)))
        elif self.batch < 1:
            single = [change(rho_s=_rounded(self.rho_c * self.local_steps / self.samples, up=True))]
            single.append(change(local_steps=math.floor(self.rho_s * self.samples / self.rho_c)))
            single.append(change(rho_c=_rounded(self.rho_s * self.samples / self.local_steps, up=False)))
        else:
            single = [change(rho_s=self._nearest_rho_s(self.rho_c))]
        steps, enough = math.ceil(self.rho_s / self.rho_c), math.ceil(self.rounds / self.rho_c)
        samples = math.ceil(self.rho_c * steps / self.rho_s)
        several = [
            change(rho_c=lowest_c, rho_s=self._nearest_rho_s(lowest_c)),
            change(clients=enough, rho_s=self._nearest_rho_s(self.rho_c)),
            change(clients=enough, local_steps=steps, samples=Fraction(max(samples, math.ceil(self.samples)))),
        ]
        options = [words for words in single if words] or [words for words in several if words]
        return "the nearest feasible: " + " or ".join(dict.fromkeys(options[:2]))

    def nearest_in_range(self) -> str:
        """The ρ nearest to what was asked for, both of them in (0, 1]; and how to have others."""
        instead = "to have any value, give clients per round and batch size instead"
        if self.rounds > self.clients:
            return f"no rho_c in (0, 1] fills one slot in each of {self.rounds} rounds; {instead}"
        rho_c = min(max(self.rho_c, _rounded(Fraction(self.rounds, self.clients), up=True)), Fraction(1))
        rho_s = self._nearest_rho_s(rho_c)
        found = {name: rho for name, rho, asked in (("rho_s", rho_s, self.rho_s), ("rho_c", rho_c, self.rho_c))
                 if rho != asked}  # fmt: skip
        words = self._change(**found)
        return f"the nearest feasible: {words}; {instead}" if words else instead

    def _nearest_rho_s(self, rho_c: Fraction) -> Fraction:
        """From batches of one sample to batches of all, at this ρ_C."""
        least = _rounded(rho_c * self.local_steps / self.samples, up=True)
        most = _rounded(rho_c * self.local_steps, up=True)  # so that b is rounded down to all of them, not to fewer
        if math.floor(most * self.samples / (rho_c * self.local_steps)) > self.samples:
            most = _rounded(rho_c * self.local_steps, up=False)
        return min(max(self.rho_s, least), most, Fraction(1))

    def _change(self, **values: Any) -> str:
        if not replace(self, **values).feasible:
            return ""
        shown = {name: _number(Fraction(value)) for name, value in values.items()}
        words = {"rounds": "round", "clients": "client", "samples": "sample", "local_steps": "local step"}
        parts = [
            f"{shown[name]} {words[name]}{'' if value == 1 else 's'}" if name in words else f"{name} = {shown[name]}"
            for name, value in values.items()
            if value != getattr(self, name)
        ]
        return " and ".join(parts)


def _rounded(value: Fraction, *, up: bool) -> Fraction:
    """Six significant digits, away from the values that are not feasible."""
    unit = Fraction(10) ** (math.floor(math.log10(value)) - 5)
    return (math.ceil if up else math.floor)(value / unit) * unit


def _number(value: Fraction) -> str:
    return f"{float(value):.6g}" if value.denominator > 1 else str(value)
