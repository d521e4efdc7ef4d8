"""The cases of ``fedforget prove``: tiny worlds that are enumerated completely and together cover every situation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.algorithm.plan import KEEP_EVERY, Keep, Plan
from fedforget.evidence.laws import (
    Enumeration,
    World,
    enumerate_forgetting,
    remaining_world,
    textbook_law,
    total_variation,
)
from fedforget.evidence.lives import (
    Add,
    Arrive,
    Cancel,
    Crash,
    Defer,
    Event,
    FallSilent,
    Forget,
    Learn,
    RunPending,
    enumerate_life,
    world_after,
)
from fedforget.requests.lifecycle import Stage


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


PAIR = {0: (0, 1), 1: (0, 1)}
UNEQUAL = {0: (0, 1, 2), 1: (0,), 2: (0, 1)}
LOPSIDED = {0: (0, 1, 2), 1: (0, 1)}
SINGLE = {0: (0, 1, 2)}


def _sample(client: int, sample: int, *arrival: int) -> tuple[Any, ...]:
    return ("sample", client, sample, *arrival)


def _client(client: int, *arrival: int) -> tuple[Any, ...]:
    return ("client", client, *arrival)


def _requests(targets: tuple[tuple[int, int | None], ...]) -> tuple[Request, ...]:
    return tuple(Request(client, sample) for client, sample in targets)


def _now(*targets: tuple[int, int | None]) -> Forget:
    return Forget(_requests(targets))


def _later(*targets: tuple[int, int | None]) -> Defer:
    return Defer(_requests(targets))


def _meanwhile(*targets: tuple[int, int | None]) -> Arrive:
    return Arrive(_requests(targets))


_all_pending = RunPending()

_Life = tuple[str, World, tuple[int, int, int, int], tuple[Event, ...]]
_CRASHES: tuple[_Life, ...] = tuple(
    (f"{name}; a crash {when}, and another process finishes", world, numbers, (Crash(stage), event))
    for name, world, numbers, event in (
        ("a sample", PAIR, (1, 1, 1, 2), _now((0, 0))),
        ("a client", UNEQUAL, (1, 2, 1, 2), _now((2, None))),
    )
    for when, stage in (
        ("after the intent", Stage.ACCEPTED),
        ("after the removal", Stage.REMOVED),
        ("between two rounds", None),
        ("before the receipt", Stage.COMPLETED),
    )
)

_LIVES: tuple[_Life, ...] = (
    ("a sample", PAIR, (1, 1, 2, 2), (_now((0, 0)),)),
    ("a client, two slots", UNEQUAL, (2, 2, 1, 1), (_now((0, None)),)),
    (
        "a sample that waits is covered by its client's request",
        UNEQUAL,
        (1, 2, 1, 2),
        (_later((0, 1)), _now((0, None))),
    ),
    (
        "a client that waits is covered by the request for its last sample",
        {0: (0,), 1: (0, 1), 2: (0,)},
        (1, 1, 1, 2),
        (_later((0, None)), _now((0, 0))),
    ),
    (
        "three that wait, by one rewind",
        UNEQUAL,
        (1, 1, 1, 2),
        (_later((0, 0), (0, 1), (2, None)), _all_pending),
    ),
    (
        "one of two that wait is cancelled",
        LOPSIDED,
        (1, 2, 1, 2),
        (
            _later((0, 0), (1, 0)),
            Cancel(Request(1, 0)),
            _all_pending,
        ),
    ),
    ("one that waits and is never carried out", PAIR, (1, 1, 1, 2), (_later((1, 1)), _now((0, 0)))),
    ("a sample arrives while another is recomputed", PAIR, (1, 1, 1, 3), (_meanwhile((1, 0)), _now((0, 0)))),
    (
        "a client arrives while a sample is recomputed",
        UNEQUAL,
        (1, 2, 1, 2),
        (
            _meanwhile((2, None)),
            _now((0, 0)),
        ),
    ),
    (
        "the client arrives whose sample is recomputed",
        LOPSIDED,
        (1, 2, 1, 2),
        (
            _meanwhile((0, None)),
            _now((0, 0)),
        ),
    ),
    (
        "two arrive while a client is recomputed",
        UNEQUAL,
        (1, 1, 1, 2),
        (
            _meanwhile((0, 0)),
            _meanwhile((0, 1)),
            _now((2, None)),
        ),
    ),
    ("two batches in a row", UNEQUAL, (1, 1, 1, 2), (_now((0, 0), (0, 1)), _now((2, None)))),
    ("the same request twice", PAIR, (1, 1, 2, 1), (_now((0, 0)), _now((0, 0)))),
    ("everyone, by one rewind", PAIR, (1, 1, 1, 2), (_later((0, None), (1, 0), (1, 1)), _all_pending)),
    ("a sample while training goes on", PAIR, (1, 1, 1, 2), (Learn(1), _now((0, 0)))),
    ("a sample joins", {0: (0, 1), 1: (0,)}, (1, 1, 1, 2), (Learn(2), Add(1, (1,)))),
    ("a client joins", {0: (0, 1)}, (2, 1, 1, 1), (Learn(1), Add(1, (0, 1), is_new=True))),
    (
        "an addition between two erasures",
        PAIR,
        (1, 1, 1, 2),
        (
            Learn(2),
            _now((0, 0)),
            Add(1, (2,)),
            _now((1, 0)),
        ),
    ),
    *_CRASHES,
    (
        "a sample arrives before a crash, and is pending after it",
        PAIR,
        (1, 1, 1, 3),
        (_meanwhile((1, 0)), Crash(None), _now((0, 0)), _all_pending),
    ),
    *(
        (
            f"a client that fell silent is erased while its sample's removal waits for it{what}",
            PAIR,
            (1, 1, 1, 2),
            (FallSilent(0), _now((0, 0)), *crash, _now((0, None))),
        )
        for what, crash in (("", ()), ("; a crash after the intent", (Crash(Stage.ACCEPTED),)))
    ),
    ("an erased sample comes back", PAIR, (1, 1, 1, 2), (Learn(2), _now((0, 0)), Add(0, (0,)))),
)

STANDARD = (
    Case("learning alone", LOPSIDED, (), 2, 2, 1, 1),
    Case("learning alone, two rounds", PAIR, (), 1, 1, 2, 2),
    Case("the paper's counterexample: a sample", PAIR, (_sample(0, 0),), 1, 1, 1, 1),
    Case("a sample, two steps", PAIR, (_sample(0, 0),), 1, 1, 2, 1),
    Case("a sample, two rounds of two steps", PAIR, (_sample(0, 0),), 1, 1, 2, 2),
    Case("a sample, two slots: a client drawn twice", PAIR, (_sample(0, 0),), 2, 1, 2, 1),
    Case("a sample, two slots, two rounds", PAIR, (_sample(1, 0),), 2, 1, 1, 2),
    Case("unequal sizes: N < b, N = b, N = b+1", UNEQUAL, (_sample(0, 1),), 2, 2, 1, 1),
    Case("unequal sizes, two rounds", UNEQUAL, (_sample(0, 1),), 1, 2, 1, 2),
    Case("N = b+1 becomes b", SINGLE, (_sample(0, 2),), 1, 2, 2, 2),
    Case("N = b becomes b-1", LOPSIDED, (_sample(1, 0),), 2, 2, 1, 1),
    Case("an emptied client", {0: (0,), 1: (0, 1), 2: (0,)}, (_sample(0, 0),), 2, 1, 1, 2),
    Case("a client", UNEQUAL, (_client(0),), 2, 2, 1, 1),
    Case("a client, two rounds", UNEQUAL, (_client(2),), 1, 2, 1, 2),
    Case("a client, two slots, two rounds", LOPSIDED, (_client(1),), 2, 2, 1, 2),
    Case("sample then client", UNEQUAL, (_sample(0, 0), _client(2)), 1, 1, 1, 2),
    Case("client then sample", UNEQUAL, (_client(2), _sample(0, 0)), 1, 1, 1, 2),
    Case("sample, then the client it belonged to", LOPSIDED, (_sample(0, 0), _client(0)), 2, 1, 1, 1),
    Case("three in a row", UNEQUAL, (_sample(0, 0), _sample(0, 1), _client(2)), 1, 1, 1, 2),
    Case(
        "three in a row, one client to its last sample",
        LOPSIDED,
        (_sample(0, 0), _sample(0, 1), _sample(0, 2)),
        1,
        1,
        2,
        1,
    ),
    Case(
        "a client, then the one that took its place", {0: (0,), 1: (0,), 2: (0,)}, (_client(2), _client(1)), 1, 1, 1, 2
    ),
    Case("simultaneous samples", LOPSIDED, ([_sample(0, 0), _sample(0, 2)],), 1, 2, 1, 2),
    Case("simultaneous sample and client", UNEQUAL, ([_sample(0, 0), _client(2)],), 1, 2, 1, 2),
    Case("everyone", PAIR, (_client(0), _client(1)), 2, 1, 1, 1),
    *(Case(f"a sample after round {r}", PAIR, (_sample(0, 0, r),), 1, 1, 2, 2) for r in (0, 1, 2)),
    *(Case(f"a client after round {r}", UNEQUAL, (_client(1, r),), 1, 2, 1, 2) for r in (0, 1, 2)),
    *(
        Case(
            f"a sample after round {r}, a client after round {s}",
            UNEQUAL,
            (_sample(0, 0, r), _client(2, s)),
            1,
            1,
            1,
            2,
        )
        for r, s in ((0, 1), (1, 1), (1, 2))
    ),
    Case("a sample, two slots, two steps, two rounds", PAIR, (_sample(0, 0),), 2, 1, 2, 2),
    Case("N = b+1 and N = b, two slots, two steps, two rounds", LOPSIDED, (_sample(0, 0),), 2, 2, 2, 2),
    Case("a client, unequal sizes, two slots, two rounds", UNEQUAL, (_client(1),), 2, 2, 1, 2),
    Case("a sample, only the ends kept", PAIR, (_sample(0, 0),), 1, 1, 2, 2, keep="ends"),
    *(Case(f"processor: {name}", world, (), K, b, E, R, life=life) for name, world, (K, b, E, R), life in _LIVES),
)


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


def prove_all(only: str | None = None, progress: Callable[[int], None] | None = None) -> list[Proved]:
    """Prove every standard case (whose name contains ``only``)."""
    results: list[Proved] = []
    done = 0
    for case in STANDARD:
        if only is None or only in case.name:
            results.append(prove(case, None if progress is None else lambda n, done=done: progress(done + n)))  # type: ignore[misc]
            done += results[-1].orders
    return results
