"""One case of ``fedforget prove``: a tiny world with requests, enumerated completely and compared with the textbook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from fedforget.algorithm.plan import KEEP_EVERY, Keep, Plan
from fedforget.evidence.laws import (
    Enumeration,
    World,
    enumerate_forgetting,
    remaining_world,
    textbook_law,
    total_variation,
)
from fedforget.evidence.lives import Add, Event, Learn, enumerate_life, world_after


@dataclass(frozen=True, slots=True)
class Case:
    """A world, a plan and a stream of requests, or a life of requests that goes through the processor."""

    name: str
    world: World
    requests: tuple[Any, ...]
    K: int
    b: int
    E: int
    R: int
    keep: Keep = KEEP_EVERY
    life: tuple[Event, ...] = ()

    @property
    def plan(self) -> Plan:
        return Plan(self.K, self.b, self.E, self.R, keep=self.keep)

    def enumerate(self, progress: Callable[[int], None] | None = None) -> Enumeration:
        if self.life:
            return enumerate_life(self.world, self.life, self.plan, progress)
        return enumerate_forgetting(self.world, self.requests, self.plan, progress)

    def left(self) -> World:
        """The world at the end."""
        return world_after(self.world, self.life) if self.life else remaining_world(self.world, self.requests)

    def least_change(self) -> Fraction | None:
        """The total variation distance between learning with the data and without: no exact method changes less often.

        None where that is no bound: requests that come at several times, or additions.
        """
        times = {when for entry in self.requests for when in _arrivals(entry, self.R)} or {self.R}
        if any(isinstance(event, Add | Learn) for event in self.life) or len(times) > 1:
            return None
        numbers = {"K": self.K, "b": self.b, "E": self.E, "R": times.pop()}
        return total_variation(textbook_law(self.world, **numbers), textbook_law(self.left(), **numbers))


def _arrivals(entry: Any, default: int) -> set[int]:
    """The rounds done when the requests of an entry arrive."""
    if isinstance(entry, list):
        return {when for each in entry for when in _arrivals(each, default)}
    return {entry[-1] if len(entry) > {"sample": 3, "client": 2}[entry[0]] else default}


@dataclass(frozen=True, slots=True)
class Proved:
    """The result of enumerating a case."""

    name: str
    K: int
    b: int
    E: int
    R: int
    orders: int
    histories: int
    total_variation: Fraction  # from the textbook's law on what is left: 0
    change_probability: Fraction  # that learned rounds were changed
    least_change: Fraction | None  # what no exact method can go below
    processor: bool  # whether the requests went through the processor

    @property
    def exact(self) -> bool:
        """Whether the law is the textbook's."""
        return self.total_variation == 0

    @property
    def optimal(self) -> bool | None:
        """Whether no exact method changes state less often. None if the world has no such bound."""
        return None if self.least_change is None else self.change_probability == self.least_change

    def as_dict(self) -> dict[str, Any]:
        exact = {key: None if value is None else str(value) for key, value in self._fractions().items()}
        return {**asdict(self), **exact, "exact": self.exact, "optimal": self.optimal}

    def _fractions(self) -> dict[str, Fraction | None]:
        return {
            "total_variation": self.total_variation,
            "change_probability": self.change_probability,
            "least_change": self.least_change,
        }


def prove(case: Case, progress: Callable[[int], None] | None = None) -> Proved:
    """Enumerate a case and measure its distance from the textbook law on the remaining data."""
    orders = 0

    def count(done: int) -> None:
        nonlocal orders
        orders = done
        if progress is not None:
            progress(done)

    numbers = {"K": case.K, "b": case.b, "E": case.E, "R": case.R}
    found = case.enumerate(count)
    return Proved(
        case.name,
        **numbers,
        orders=orders,
        histories=len(found.law),
        total_variation=total_variation(found.law, textbook_law(case.left(), **numbers)),
        change_probability=found.change_probability,
        least_change=case.least_change(),
        processor=bool(case.life),
    )
