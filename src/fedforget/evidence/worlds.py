"""The cases of ``fedforget prove``: tiny worlds that are enumerated completely and together cover every situation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedforget.algorithm.forget import Request
from fedforget.evidence.case import Case, Proved, prove
from fedforget.evidence.laws import World
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
)
from fedforget.requests.lifecycle import Stage

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


def prove_all(only: str | None = None, progress: Callable[[int], None] | None = None) -> list[Proved]:
    """Prove every standard case (whose name contains ``only``)."""
    results: list[Proved] = []
    done = 0
    for case in STANDARD:
        if only is None or only in case.name:
            results.append(prove(case, None if progress is None else lambda n, done=done: progress(done + n)))  # type: ignore[misc]
            done += results[-1].orders
    return results
