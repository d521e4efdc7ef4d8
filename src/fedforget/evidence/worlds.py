"""The cases of ``fedforget prove``: tiny worlds that are enumerated completely and together cover every situation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from fedforget.algorithm.plan import KEEP_EVERY
from fedforget.evidence.laws import World, law_after_forgetting, remaining_world, textbook_law, total_variation


@dataclass(frozen=True, slots=True)
class Case:
    """A world, a plan and a stream of requests."""

    name: str
    world: World
    requests: tuple[Any, ...]
    K: int
    b: int
    E: int
    R: int
    keep: str | int = KEEP_EVERY


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
    total_variation: Fraction = field(default=Fraction(1))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "total_variation": str(self.total_variation)}


PAIR = {0: (0, 1), 1: (0, 1)}
UNEQUAL = {0: (0, 1, 2), 1: (0,), 2: (0, 1)}
LOPSIDED = {0: (0, 1, 2), 1: (0, 1)}
SINGLE = {0: (0, 1, 2)}


def _sample(client: int, sample: int, *arrival: int) -> tuple[Any, ...]:
    return ("sample", client, sample, *arrival)


def _client(client: int, *arrival: int) -> tuple[Any, ...]:
    return ("client", client, *arrival)


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
    law = law_after_forgetting(case.world, case.requests, **numbers, keep=case.keep, progress=count)
    expected = textbook_law(remaining_world(case.world, case.requests), **numbers)
    return Proved(
        case.name, **numbers, orders=orders, histories=len(law), total_variation=total_variation(law, expected)
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
