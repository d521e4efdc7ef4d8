"""Parts of a local round: one worker trains its first steps, another may train the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from fedforget.algorithm.ports import LocalLearner, LocalRound, Trained


@dataclass(frozen=True, slots=True)
class RoundPart:
    """What the pool sends to a worker: train the steps from ``start`` up to ``stop`` of this task of the round.

    ``work`` is the whole local round, without what the worker has already: its model is None if the model is in shared
    memory, its samples are empty if the worker knows the client's samples.
    """

    task: int
    start: int
    stop: int
    work: LocalRound

    @property
    def is_first(self) -> bool:
        return self.start == 0

    @property
    def is_last(self) -> bool:
        return self.stop == len(self.work.rows)


@runtime_checkable
class ResumableLearner(LocalLearner, Protocol):
    """A learner that can stop between two steps, so that a learner in another process can continue."""

    def halfway_like(self, model: Any) -> Mapping[str, NDArray[Any]] | None:
        """Return arrays shaped like those that one learner hands to the next, for rounds that start from such a model.

        None if this learner cannot hand a round over.
        """

    def train_part(self, work: LocalRound, start: int, stop: int, halfway: Any = None, into: Any = None) -> Trained:
        """Train the steps from ``start`` up to ``stop`` of a local round.

        ``halfway`` is what the learner of the earlier steps returned. The last part returns the local model; an earlier
        part returns what the next learner needs. The learner may write its result to ``into``, which has the same
        shapes, and return ``into``.
        """
