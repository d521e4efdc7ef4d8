"""Failures of a learner: the error names the client and the round, in every process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fedforget.algorithm.ports import LocalRound
from fedforget.errors import FedForgetError, TrainingFailed, shown
from fedforget.federation import shortage


@contextlib.contextmanager
def as_training_failed(work: LocalRound) -> Iterator[None]:
    """Wrap a learner's exceptions in TrainingFailed. A FedForgetError passes unchanged."""
    try:
        yield
    except FedForgetError:
        raise
    except Exception as error:
        remedy = shortage.REMEDY if shortage.is_lack_of_memory(error) else "correct the model or the data"
        raise TrainingFailed(
            f"client {shown(work.client)} failed in round {work.round}: {type(error).__name__}: {error}",
            hint=f"{remedy} and give the same command again",
        ) from error
