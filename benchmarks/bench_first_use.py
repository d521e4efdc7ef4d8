"""First uses in bulk: how many ids of a client are looked up in a second, in random order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.harness import Figure, give, median_figure, options, seconds
from fedforget.algorithm.first_use import FirstUse
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.streams import numpy_stream

LIMIT = 1e6
_KEY = bytes(range(16))


def measure(kind: str, make: Callable[[int], Id], size: int, repetitions: int) -> list[Figure]:
    ids = IdSet(make(number) for number in range(size))
    first_use = FirstUse(ids)
    first_use.note(np.arange(0, size, 3), 5)
    asked = [make(number) for number in numpy_stream(_KEY).permutation(size).tolist()]
    singles = asked[: size // 10]
    return [
        median_figure(
            f"look-ups in bulk, {size:,} {kind} ids",
            [size / took for took in seconds(lambda: first_use.look_up(asked), repetitions)],
            "per second",
            at_least=LIMIT,
            note="FirstUse.look_up, ids in random order, equal to the set's but other objects",
        ),
        median_figure(
            f"look-ups one by one, {size:,} {kind} ids",
            [len(singles) / took for took in seconds(lambda: [first_use.of(each) for each in singles], repetitions)],
            "per second",
            note="FirstUse.of",
        ),
    ]


def main() -> None:
    chosen = options(__doc__)
    size, repetitions = (10**5, 3) if chosen.quick else (10**6, 7)
    figures = measure("integer", lambda number: number * 1009, size, repetitions)
    for strings in sorted({10**5, size}):
        figures += measure("string", lambda number: f"patient-{number:07d}", strings, repetitions)
    give("First-use look-ups", __doc__, figures)


if __name__ == "__main__":
    main()
