"""The verdicts on a claim, alone and over several cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedforget.experiments.differences import Difference
from fedforget.experiments.rows import Row

HOLDS, CONDITION, FAILS = "holds", "holds under a condition", "does not hold"
OPEN, UNKNOWN = "not decided", "not measured"
BY_THEORY = ", by theory"  # added to a verdict that exact expectations decide
Results = Mapping[str, Sequence[Row]]  # rows by experiment


class Comparison(NamedTuple):
    """One interval that a verdict rests on: of which case, and how likely it is at least as far from its bound."""

    case: str
    chance: float
    is_decided: bool


class Found(NamedTuple):
    """Our figure, the verdict, and the intervals behind it; none where theory or digests decide."""

    figure: str
    verdict: str
    comparisons: tuple[Comparison, ...] = ()


def overall(verdicts: Mapping[str, str]) -> str:
    """One verdict from those of several cases: it fails if it fails anywhere, and names where it holds or fails."""
    holding = [name for name, verdict in verdicts.items() if verdict == HOLDS]
    failing = [name for name, verdict in verdicts.items() if verdict == FAILS]
    if failing:
        return FAILS if len(failing) == len(verdicts) else f"{FAILS}: {', '.join(failing)}"
    if not holding:
        return OPEN
    return HOLDS if len(holding) == len(verdicts) else f"{CONDITION}: {', '.join(holding)}; elsewhere not decided"


def decided(found: bool | None) -> str:
    return {None: OPEN, True: HOLDS, False: FAILS}[found]


def all_of(*found: bool | None) -> bool | None:
    """Whether several statements hold together: not if one fails, and undecided if one is and none fails."""
    return False if False in found else None if None in found else True


def compared(case: str, difference: Difference, bound: float = 0.0) -> tuple[Comparison, ...]:
    """The interval of a difference against a bound; nothing for one run, which has no interval."""
    chance = difference.chance(bound)
    return () if chance is None else (Comparison(case, chance, difference.above(bound) is not None),)
