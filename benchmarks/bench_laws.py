"""Enumerating laws: how many orders of priorities a second the production code walks in a tiny world."""

from __future__ import annotations

import time

from benchmarks.harness import Figure, give, median_figure, options
from fedforget.evidence.worlds import STANDARD, prove

CASES = (
    "unequal sizes: N < b, N = b, N = b+1",
    "a client, two rounds",
    "a sample, two slots, two rounds",
    "N = b+1 becomes b",
    "an emptied client",
)


def measure(name: str, repetitions: int) -> Figure:
    case = next(case for case in STANDARD if case.name == name)
    rates, orders = [], 0
    for _ in range(repetitions):
        start = time.perf_counter()
        proved = prove(case)
        orders = proved.orders
        rates.append(orders / (time.perf_counter() - start))
        if proved.total_variation:
            raise SystemExit(f"the law of {name!r} is not the textbook's")
    return median_figure(f"orders of “{name}”", rates, "per second", note=f"{orders:,} orders, learning and forgetting")


def main() -> None:
    chosen = options(__doc__)
    figures = [measure(name, 1 if chosen.quick else 3) for name in (CASES[:2] if chosen.quick else CASES)]
    give("Enumerating laws", __doc__, figures)


if __name__ == "__main__":
    main()
