"""K and b from ρ (Algorithm 1, line 1), and the nearest feasible values if a plan is infeasible."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fedforget.errors import PlanRefused, quoted

FROM_ONE = "the nearest feasible value is 1"


def slots_and_batch(
    rho_s: float | Fraction,
    rho_c: float | Fraction,
    population: tuple[int, Fraction],
    local_steps: int,
    *,
    rounds: int | None,
    steps: int | None,
) -> Asked:
    """Return K = ρ_C·E·M/T and b = ρ_S·N/(ρ_C·E), rounded down. Refuse values that leave no client or no sample."""
    clients, mean = population
    require(local_steps >= 1, f"local steps must be a whole number from 1, not {local_steps}", FROM_ONE)
    total = _total_steps(local_steps, rounds, steps)
    asked = Asked(_as_written(rho_s), _as_written(rho_c), clients, mean, local_steps, total // local_steps)
    for name, value, rho in (("rho_s", rho_s, asked.rho_s), ("rho_c", rho_c, asked.rho_c)):
        require(0 < rho <= 1, f"{name} must lie in (0, 1], not {value}", asked.nearest_in_range())
    if not asked.feasible:
        raise PlanRefused(asked.problem(), hint=asked.nearest())
    return asked


def require(holds: bool, message: str, hint: str = "") -> None:
    if not holds:
        raise PlanRefused(message, hint=hint or "correct the value and give the command again")


def _as_written(value: float | Fraction) -> Fraction:
    """Return the decimal as the caller wrote it, not its binary approximation; 0 if it is not a number."""
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        return Fraction(0)


def population_of(sizes: Any, clients: int | None, samples: float | Fraction | None) -> tuple[int, Fraction]:
    if sizes is not None:
        counted = list(sizes) if isinstance(sizes, Iterable) else [sizes]
        whole = all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in counted)
        require(whole, f"the sizes of clients cannot be {quoted(sizes)}", "give the number of samples of each client")
        require(sum(counted) > 0, "the federation has no samples", "give it at least one client with one sample")
        return len(counted), Fraction(sum(counted), len(counted))
    if clients is None or samples is None:
        raise PlanRefused("M and N are needed", hint="give sizes, or clients and samples")
    require(clients >= 1, f"the federation has {clients} clients", FROM_ONE)
    try:
        mean = Fraction(str(samples))
    except ValueError:
        mean = Fraction(0)
    require(mean >= 1, f"a client has {samples} samples", FROM_ONE)
    return clients, mean


def _total_steps(local_steps: int, rounds: int | None, steps: int | None) -> int:
    if rounds is not None:
        require(rounds >= 1, f"rounds must be a whole number from 1, not {rounds}", FROM_ONE)
        return rounds * local_steps
    if steps is None:
        raise PlanRefused("the length of training is needed", hint="give rounds or steps")
    below = max(1, steps // local_steps) * local_steps
    require(
        steps >= 1 and steps % local_steps == 0,
        f"{steps} steps are not a whole number of rounds of {local_steps}",
        f"the nearest feasible numbers are {below} and {below + local_steps}",
    )
    return steps


@dataclass(frozen=True, slots=True)
class Asked:
    """ρ_S, ρ_C, M, N, E and R as the caller gave them."""

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

    def problem(self) -> str:
        """Explain why it is not feasible."""
        if self.slots < 1:
            return (
                f"rho_c = {_number(self.rho_c)} leaves less than one client a round "
                f"(K = rho_c*E*M/T = {_number(self.rho_c * self.clients / self.rounds)})"
            )
        if self.batch < 1:
            return (
                f"rho_s = {_number(self.rho_s)} leaves less than one sample a batch "
                f"(b = rho_s*N/(rho_c*E) = {_number(self.rho_s * self.samples / (self.rho_c * self.local_steps))})"
            )
        return (
            f"rho_s = {_number(self.rho_s)} asks for batches of {self.batch}, but a client has "
            f"{_number(self.samples)} samples"
        )

    def nearest(self) -> str:
        """Name changes that make it feasible, of a single value if possible. The last of ``several`` always is."""
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
        """Name the nearest feasible ρ in (0, 1], and how to use other values."""
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
        """Return the ρ_S nearest to the given one, for mini-batches of 1 to N samples at this ρ_C."""
        least = _rounded(rho_c * self.local_steps / self.samples, up=True)
        most = _rounded(rho_c * self.local_steps, up=True)  # rounded up: b = floor(...) must reach N
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
    """Round to six significant digits, in the direction that stays feasible."""
    unit = Fraction(10) ** (math.floor(math.log10(value)) - 5)
    return (math.ceil if up else math.floor)(value / unit) * unit


def _number(value: Fraction) -> str:
    return f"{float(value):.6g}" if value.denominator > 1 else str(value)
