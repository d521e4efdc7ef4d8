"""The verdicts on a claim, alone and over several cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedforget.experiments.rows import Row

HOLDS, CONDITION, FAILS = "holds", "holds under a condition", "does not hold"
OPEN, UNKNOWN = "not decided", "not measured"
Results = Mapping[str, Sequence[Row]]  # rows by experiment
Found = tuple[str, str]  # our figure, verdict


def overall(verdicts: Mapping[str, str]) -> str:
    """One verdict from those of several cases: it fails if it fails anywhere, and names where it holds."""
    holding = [name for name, verdict in verdicts.items() if verdict == HOLDS]
    if FAILS in verdicts.values():
        return FAILS
    if not holding:
        return OPEN
    return HOLDS if len(holding) == len(verdicts) else f"{CONDITION}: {', '.join(holding)}; elsewhere not decided"


def where(holds: Mapping[str, bool]) -> str:
    """The verdict over several cases. One run decides nothing, so its case is not among them."""
    if not holds:
        return f"{OPEN}: one run"
    holding = [name for name, held in holds.items() if held]
    return HOLDS if len(holding) == len(holds) else f"{CONDITION}: {', '.join(holding)}" if holding else FAILS


def decided(found: bool | None) -> str:
    return {None: OPEN, True: HOLDS, False: FAILS}[found]
