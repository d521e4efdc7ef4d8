"""Search for the K, b and E with the least expected recomputation within given limits.

Without a lower bound, the cheapest plan trains nothing. So the caller gives the needs of training: T steps in total, a
number of samples per step (K·b, which divides the gradient noise in the convergence bound of Lemma 2), and a largest
number of local steps (the same bound grows with E). Among the plans that satisfy the needs and the limits, the search
finds the one with the fewest expected recomputed steps per request, counted from the start of the first changed round.

Cost, probabilities and both ρ grow with K and with b. So for each E only the minimal pairs of K and b matter. There are
about 2·sqrt(K·b) of them, and the search tries all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields

import numpy as np

from fedforget.errors import PlanRefused
from fedforget.planner.costs import sample_change
from fedforget.planner.geometric import Floats, change_within, expected_rounds_redone
from fedforget.planner.round_law import client_change

_MOST = 10**12  # steps, and samples per step: the search tries about its square root
_LARGEST = 2**31 - 1  # largest number in a plan


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of training. E is a divisor of ``steps`` (T) within its two limits."""

    steps: int
    samples_per_step: int = 1  # K·b, at least
    clients_per_round: int = 1  # K, at least
    batch_size: int = 1  # b, at least
    least_local_steps: int = 1
    most_local_steps: int = _LARGEST
    most_rounds: int = _LARGEST

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 1 <= value <= _MOST:
                name = field.name.replace("_", " ")
                raise PlanRefused(f"{name} must be a whole number from 1, not {value}", hint="correct the value")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the cost of forgetting: ρ, and exact probabilities; for a sample, those of the worst client."""

    rho_s: float = math.inf
    rho_c: float = math.inf
    sample_probability: float = math.inf
    client_probability: float = math.inf

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                value = getattr(self, field.name)
                raise PlanRefused(f"a limit of {value} on {field.name} rules out every plan", hint="give more than 0")


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan that satisfies the needs of training, with its cost of forgetting."""

    clients_per_round: int
    batch_size: int
    local_steps: int
    rounds: int
    rho_s: float
    rho_c: float
    sample_probability: float  # for the worst client
    client_probability: float
    expected_steps: float  # per request, averaged over samples and clients by ``sample_share``

    def excess(self, limits: Limits) -> float:
        """Return the factor by which it exceeds the limits; at most 1 if it is within them."""
        here = (self.rho_s, self.rho_c, self.sample_probability, self.client_probability)
        return max(value / float(limit) for value, limit in zip(here, astuple(limits), strict=True))


def cheapest_plans(
    sizes: Mapping[int, int], needs: Needs, limits: Limits | None = None, sample_share: float = 0.5
) -> list[Choice]:
    """Return the cheapest plan for each E, cheapest first. Ties: fewer rounds, then smaller K, then smaller b.

    ``sizes`` maps a number of samples to the number of clients that have it; b is at most their mean.
    ``sample_share`` of the requests are for a sample, the others for a client.

    >>> best, *others = cheapest_plans({200: 300}, Needs(steps=300, samples_per_step=50, most_local_steps=20))
    >>> best.clients_per_round, best.batch_size, best.local_steps, best.rounds
    (1, 50, 20, 15)
    """
    limits = limits or Limits()
    if not 0 <= sample_share <= 1:
        raise PlanRefused(f"a share lies between 0 and 1, not at {sample_share}", hint="correct the value")
    slots, batches = _least_pairs(sizes, needs)
    found, nearest = [], []
    for local_steps in _local_steps(needs):
        table = _Table.of(sizes, slots, batches, local_steps, needs.steps // local_steps, sample_share)
        excess = table.excess(limits)
        if excess.min() <= 1:
            fits = np.flatnonzero(excess <= 1)
            found.append(table.choice(fits[np.lexsort((slots[fits], table.expected_steps[fits]))[0]]))
        else:
            nearest.append(table.choice(int(excess.argmin())))
    if not found:
        raise _refusal(min(nearest, key=lambda choice: (choice.excess(limits), choice.expected_steps)), limits)
    return sorted(found, key=lambda choice: (choice.expected_steps, choice.rounds))


@dataclass(frozen=True, slots=True)
class _Table:
    """The cost of every pair of K and b for one E."""

    slots: Floats
    batches: Floats
    local_steps: int
    rounds: int
    rho_s: Floats
    rho_c: Floats
    sample_probability: Floats
    client_probability: Floats
    expected_steps: Floats

    @classmethod
    def of(
        cls, sizes: Mapping[int, int], slots: Floats, batches: Floats, local_steps: int, rounds: int, share: float
    ) -> _Table:
        clients, samples = sum(sizes.values()), sum(size * number for size, number in sizes.items())
        leaving = client_change(clients, slots)
        steps = (1 - share) * expected_rounds_redone(leaving, rounds)
        worst = np.zeros(len(slots))
        for size, number in sizes.items():
            going = sample_change(
                size, clients=clients, clients_per_round=slots, batch_size=batches, local_steps=local_steps
            )
            worst = np.maximum(worst, going)
            if share:
                steps = steps + share * number * size / samples * expected_rounds_redone(going, rounds)
        held = np.minimum(batches, min(sizes)) / min(sizes)
        return cls(
            slots,
            batches,
            local_steps,
            rounds,
            rho_s=held * slots * local_steps * rounds / clients,
            rho_c=slots * rounds / clients,
            sample_probability=change_within(worst, rounds),
            client_probability=change_within(leaving, rounds),
            expected_steps=local_steps * steps,
        )

    def excess(self, limits: Limits) -> Floats:
        here = np.stack([self.rho_s, self.rho_c, self.sample_probability, self.client_probability])
        over: Floats = (here / np.array(astuple(limits))[:, np.newaxis]).max(axis=0)
        return over

    def choice(self, place: int) -> Choice:
        return Choice(
            int(self.slots[place]),
            int(self.batches[place]),
            self.local_steps,
            self.rounds,
            float(self.rho_s[place]),
            float(self.rho_c[place]),
            float(self.sample_probability[place]),
            float(self.client_probability[place]),
            float(self.expected_steps[place]),
        )


def _least_pairs(sizes: Mapping[int, int], needs: Needs) -> tuple[Floats, Floats]:
    """Return the minimal pairs of K and b that satisfy the needs, K ascending."""
    largest = sum(size * number for size, number in sizes.items()) // sum(sizes.values())
    if needs.batch_size > largest:
        raise PlanRefused(
            f"batches of {needs.batch_size} are larger than a client, which has {largest} samples on average",
            hint=f"ask for batches of at most {largest}",
        )
    root = math.isqrt(needs.samples_per_step) + 1
    small = np.arange(1, root + 1)
    batches = np.unique(np.concatenate([small, -(-needs.samples_per_step // small), [needs.batch_size]]))
    batches = batches[(batches >= needs.batch_size) & (batches <= largest)]
    slots = np.maximum(needs.clients_per_round, -(-needs.samples_per_step // batches))
    slots, first = np.unique(slots, return_index=True)  # the first has the smallest batch
    possible = slots <= _LARGEST
    return slots[possible].astype(np.float64), batches[first][possible].astype(np.float64)


def _local_steps(needs: Needs) -> list[int]:
    small = np.arange(1, math.isqrt(needs.steps) + 1)
    small = small[needs.steps % small == 0]
    divisors = sorted({int(d) for part in (small, needs.steps // small) for d in part})
    allowed = [
        d
        for d in divisors
        if needs.least_local_steps <= d <= needs.most_local_steps and needs.steps // d <= needs.most_rounds
    ]
    if not allowed:
        raise PlanRefused(
            f"no number of local steps that divides {needs.steps} lies within the limits",
            hint=f"allow one of: {', '.join(map(str, divisors[:12]))}",
        )
    return allowed


def _refusal(nearest: Choice, limits: Limits) -> PlanRefused:
    here = f"K = {nearest.clients_per_round}, b = {nearest.batch_size}, E = {nearest.local_steps}"
    missed = [
        f"{name} = {getattr(nearest, name):.4g} instead of {limit:.4g}"
        for name, limit in ((field.name, getattr(limits, field.name)) for field in fields(limits))
        if getattr(nearest, name) > limit
    ]
    return PlanRefused(
        f"no plan satisfies the needs of training within these limits; the nearest, {here}, has {' and '.join(missed)}",
        hint="allow more, fewer samples a step, fewer steps, or more local steps (which means fewer rounds)",
    )
