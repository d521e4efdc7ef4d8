"""Scheduling of local steps: w workers finish n equal tasks in n/w of the time of one, instead of ceil(n/w).

McNaughton's rule ("Scheduling with deadlines and loss functions", 1959): lay the tasks on a line and cut it into w
equal pieces. One worker begins a cut task early in the round, another finishes it late, and never both at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Some steps of a task: all of them, the first ones, or the last ones."""

    task: int
    start: int
    stop: int


def parts_of_round(tasks: int, workers: int, steps: int) -> list[Part]:
    """Return the parts in the order in which free workers take them: first parts, whole tasks, last parts.

    >>> parts_of_round(3, 2, 10)
    [Part(task=1, start=0, stop=5), Part(task=0, start=0, stop=10), Part(task=2, start=0, stop=10), \
Part(task=1, start=5, stop=10)]
    """
    cuts: dict[int, int] = {}  # how many steps the first part of a cut task has
    for worker in range(1, workers if tasks > workers else 1):
        task, beyond = divmod(round(worker * tasks * steps / workers), steps)
        if beyond:
            cuts[task] = steps - beyond
    longest = sorted(cuts, key=lambda task: -cuts[task])
    return [
        *(Part(task, 0, cuts[task]) for task in longest),
        *(Part(task, 0, steps) for task in range(tasks) if task not in cuts),
        *(Part(task, cuts[task], steps) for task in reversed(longest)),
    ]


class RoundSchedule:
    """The parts of a round that no worker has yet, and the progress and failures of the others."""

    def __init__(self, tasks: int, workers: int, steps: int) -> None:
        self._waiting = parts_of_round(tasks, workers, steps)
        self._begun: set[int] = set()
        self._failures: dict[int, Exception] = {}

    def take(self) -> Part | None:
        """Take the next part that a worker can begin: the first of a task, or one whose first part is done."""
        for part in self._waiting:
            if (part.start == 0 or part.task in self._begun) and self.matters(part):
                self._waiting.remove(part)
                return part
        return None

    def put_back(self, parts: Iterable[Part]) -> None:
        """Return parts to the schedule that a worker was given and did not begin."""
        self._waiting[:0] = parts

    def done(self, part: Part) -> None:
        self._begun.add(part.task)

    def failed(self, part: Part, failure: Exception) -> None:
        self._failures[part.task] = failure

    def matters(self, part: Part) -> bool:
        """Return whether a part can still affect the result. It cannot if an earlier task failed."""
        return not self._failures or part.task < min(self._failures)

    def raise_first_failure(self) -> None:
        """Raise the first failure in the order of tasks, as a single worker would."""
        if self._failures:
            raise self._failures[min(self._failures)]
