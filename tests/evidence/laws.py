"""The laws of production ``learn`` and ``forget`` on a tiny world, by the numbers of its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedforget.algorithm.plan import KEEP_EVERY, Keep, Plan
from fedforget.evidence.laws import Law, Progress, World, enumerate_forgetting


def law_of_learning(
    world: World, *, K: int, b: int, E: int, R: int, keep: Keep = KEEP_EVERY, progress: Progress | None = None
) -> Law:
    """Return the law of the history of ``learn``."""
    return law_after_forgetting(world, (), K=K, b=b, E=E, R=R, keep=keep, progress=progress)


def law_after_forgetting(
    world: World,
    requests: Sequence[Any],
    *,
    K: int,
    b: int,
    E: int,
    R: int,
    keep: Keep = KEEP_EVERY,
    progress: Progress | None = None,
) -> Law:
    """Return the law of the history after ``learn`` and ``forget`` of a stream of requests."""
    return enumerate_forgetting(world, requests, Plan(K, b, E, R, keep=keep), progress).law
