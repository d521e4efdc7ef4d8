"""Algorithms 1 to 3 as the paper prints them, walked over every draw of a tiny world with exact fractions.

The model of a client is the tuple of the batches it was trained on. The global model is the tuple of its rounds
``(slots, ((client, (batch, …)), …))``, as in ``fedforget.evidence.laws``, so that the textbook's law serves for both.
Nothing here is used by FedForget, and nothing of FedForget is used here. Entries are those of ``docs/errata.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import floor, prod
from typing import Any, TypeVar

Option = TypeVar("Option")
Outcome = TypeVar("Outcome", bound=Hashable)
World = Mapping[int, tuple[int, ...]]  # client → its samples


class Draws:
    """Fresh, independent, uniform draws; which ones is told by ``path``, one number for each."""

    def __init__(self, path: Sequence[int]) -> None:
        self._path = list(path)
        self._sizes: list[int] = []

    def uniform(self, options: Sequence[Option]) -> Option:
        if len(self._sizes) == len(self._path):
            self._path.append(0)
        self._sizes.append(len(options))
        return options[self._path[len(self._sizes) - 1]]

    @property
    def probability(self) -> Fraction:
        return Fraction(1, prod(self._sizes))

    def next_path(self) -> list[int] | None:
        path = self._path
        while path and path[-1] + 1 == self._sizes[len(path) - 1]:
            path.pop()
        return [*path[:-1], path[-1] + 1] if path else None


def law_of(run: Callable[[Draws], Outcome]) -> dict[Outcome, Fraction]:
    """The law of ``run``'s outcome over every draw it makes."""
    law: dict[Outcome, Fraction] = {}
    path: list[int] | None = []
    while path is not None:
        draws = Draws(path)
        outcome = run(draws)
        law[outcome] = law.get(outcome, Fraction(0)) + draws.probability
        path = draws.next_path()
    return law


@dataclass(frozen=True)
class Setting:
    """K, b, E and R."""

    K: int
    b: int
    E: int
    R: int

    @property
    def T(self) -> int:  # noqa: N802 (the paper's symbol)
        return self.E * self.R

    def opens_round(self, t: int) -> bool:
        """Whether t is in I_E."""
        return (t - 1) % self.E == 0


@dataclass
class Memory:
    """What ``save`` and ``load`` refer to: P^(t), B_k^(t), θ_k^(t) and θ^(t)."""

    slots: dict[int, tuple[int, ...]] = field(default_factory=dict)
    batches: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    local: dict[tuple[int, int], tuple[Any, ...]] = field(default_factory=dict)
    models: dict[int, tuple[Any, ...]] = field(default_factory=lambda: {0: ()})


def batches_of(samples: Sequence[int], b: int) -> list[tuple[int, ...]]:
    """Every batch; of min(b, N) samples, since the printed b does not exist where N < b (entry 5)."""
    return list(combinations(sorted(samples), min(b, len(samples))))


def without(world: World, client: int, sample: int | None = None) -> dict[int, tuple[int, ...]]:
    """The world after an erasure. A client that loses its last sample stays, as printed: with nothing."""
    if sample is None:
        return {k: samples for k, samples in world.items() if k != client}
    return {k: tuple(x for x in samples if (k, x) != (client, sample)) for k, samples in world.items()}


def fats(
    draws: Draws, world: World, setting: Setting, memory: Memory, t0: int = 1, *, load_before: bool = False
) -> tuple[Any, ...]:
    """Algorithm 1 from step t0. ``load_before`` loads θ_k^(t0-1), which is a correction (entry 3)."""
    slots: tuple[int, ...] = ()
    local: dict[int, tuple[Any, ...]] = {}
    if not setting.opens_round(t0):
        slots = memory.slots[t0]
        local = {k: memory.local[t0 - 1 if load_before else t0, k] for k in slots}
    for t in range(t0, setting.T + 1):
        if setting.opens_round(t):
            slots = tuple(draws.uniform(sorted(world)) for _ in range(setting.K))
            local = dict.fromkeys(slots, ())
        memory.slots[t] = slots
        for k in sorted(set(slots)):
            batch = draws.uniform(batches_of(world[k], setting.b))
            local[k] = (*local[k], batch)
            memory.batches[t, k], memory.local[t, k] = batch, local[k]
        if t % setting.E == 0:
            memory.models[t] = (*memory.models[t - setting.E], (slots, tuple((k, local[k]) for k in sorted(local))))
    return memory.models[setting.T]


def first_use_of_sample(setting: Setting, memory: Memory, client: int, sample: int) -> int | None:
    """t_S: the search of Algorithm 2."""
    for t in range(1, setting.T + 1):
        if client in memory.slots[t] and sample in memory.batches[t, client]:
            return t
    return None


def first_use_of_client(setting: Setting, memory: Memory, client: int) -> int | None:
    """t_C: the search of Algorithm 3."""
    for r in range(1, setting.R + 1):
        t = (r - 1) * setting.E + 1
        if client in memory.slots[t]:
            return t
    return None


def learn_then_forget(
    draws: Draws,
    world: World,
    setting: Setting,
    client: int,
    sample: int | None = None,
    *,
    low_storage: bool = False,
    load_before: bool = False,
    later: Setting | None = None,
) -> tuple[Any, ...]:
    """Algorithm 1, then Algorithm 2 (a sample) or 3 (a client).

    ``low_storage`` is Section 5.3's variant, which starts again at step 1; ``later`` has the K and b of the restart
    where they are evaluated anew (entry 4).
    """
    memory = Memory()
    model = fats(draws, world, setting, memory)
    if sample is None:
        t = first_use_of_client(setting, memory, client)
    else:
        t = first_use_of_sample(setting, memory, client, sample)
    if t is None:
        return model
    left = without(world, client, sample)
    return fats(draws, left, later or setting, memory, 1 if low_storage else t, load_before=load_before)


def coupled_history(
    draws: Draws, world: World, setting: Setting, client: int, sample: int, *, keep_slots: bool
) -> tuple[Any, ...]:
    """H' of Appendix B: a round whose batches held the sample is drawn again on the remaining data.

    Slots and all in the coupling that is written before the claim about it. ``keep_slots`` replaces the batches that
    held the sample and nothing else: the map SU_r, from which the claim is said to follow.
    """
    left = without(world, client, sample)
    one_round = Setting(setting.K, setting.b, setting.E, 1)

    def again(batch: tuple[int, ...]) -> tuple[int, ...]:
        return draws.uniform(batches_of(left[client], setting.b)) if sample in batch else batch

    history = []
    for slots, trained in fats(draws, world, setting, Memory()):
        used = any(sample in batch for batch in dict(trained).get(client, ()))
        if not used:
            history.append((slots, trained))
        elif keep_slots:
            replaced = ((k, tuple(map(again, batches)) if k == client else batches) for k, batches in trained)
            history.append((slots, tuple(replaced)))
        else:
            history += fats(draws, left, one_round, Memory())
    return tuple(history)


def printed_sizes(*, rho_s: Fraction, rho_c: Fraction, M: int, N: int, E: int, T: int) -> tuple[int, int]:
    """Line 1 of Algorithm 1: K and b, rounded down where they are not whole."""
    return floor(rho_c * E * M / T), floor(rho_s * N / (rho_c * E))


def trained_slot_by_slot(draws: Draws, world: World, setting: Setting, client: int, sample: int) -> tuple[Any, ...]:
    """One step in which a client drawn twice trains twice, and saves under the same name twice (entry 9)."""
    memory = Memory()

    def trained(data: World) -> tuple[Any, ...]:
        slots = tuple(draws.uniform(sorted(data)) for _ in range(setting.K))
        memory.slots[1] = slots
        batches = []
        for k in slots:
            memory.batches[1, k] = draws.uniform(batches_of(data[k], setting.b))
            batches.append(memory.batches[1, k])
        return tuple(zip(slots, batches, strict=True))

    model = trained(world)
    if first_use_of_sample(setting, memory, client, sample) is None:
        return model
    return trained(without(world, client, sample))


def average_over_the_set(slots: Sequence[int], models: Mapping[int, Fraction]) -> Fraction:
    """Line 17 with P^(t) read as a set: 1/K times a sum that counts each client once (entry 9)."""
    return sum((models[k] for k in set(slots)), Fraction(0)) / len(slots)


def stretched_draw(draws: Draws, clients: Sequence[int], erased: int) -> int:
    """A draw ⌊u·M⌋ that is kept if it did not hit the erased client; else ⌊u·(M-1)⌋ of the same u (entry 6)."""
    left = [k for k in clients if k != erased]
    grid = len(clients) * len(left)  # fine enough for both to be exact
    u = Fraction(draws.uniform(range(grid)), grid)
    drawn = clients[floor(u * len(clients))]
    return left[floor(u * len(left))] if drawn == erased else drawn


def redrawn_until_success(draws: Draws, world: World, bad: tuple[int, int]) -> tuple[int, int] | None:
    """One slot, b = E = R = 1: a client whose batch is the bad sample fails, and the slot is drawn again (entry 6).

    Two attempts; None if both failed. Further ones would repeat the same law.
    """
    for _ in range(2):
        client = draws.uniform(sorted(world))
        sample = draws.uniform(world[client])
        if (client, sample) != bad:
            return client, sample
    return None


def average_of_answers(draws: Draws, world: World, K: int, bad: tuple[int, int]) -> tuple[Any, ...]:
    """b = E = R = 1: each client's share of the average, where failed clients are left out (entry 6)."""
    slots = [draws.uniform(sorted(world)) for _ in range(K)]
    samples = {k: draws.uniform(world[k]) for k in sorted(set(slots))}
    answered = [k for k in slots if (k, samples[k]) != bad]
    return tuple((k, Fraction(answered.count(k), len(answered))) for k in sorted(set(answered)))


def centred_model(draws: Draws, values: Mapping[int, Fraction], erased: int, *, recompute_mean: bool) -> Fraction:
    """One client, b = E = R = 1, trained on values from which the mean of the data was taken first (entry 8).

    The model is the centred value. After the erasure a restart keeps the mean, or computes it again.
    """

    def mean(of: Mapping[int, Fraction]) -> Fraction:
        return sum(of.values(), Fraction(0)) / len(of)

    drawn = draws.uniform(sorted(values))
    if drawn != erased:
        return values[drawn] - mean(values)
    left = {sample: value for sample, value in values.items() if sample != erased}
    return left[draws.uniform(sorted(left))] - mean(left if recompute_mean else values)
