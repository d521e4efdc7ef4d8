"""A job on the models of training, in a separate process at lowest priority."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from fedforget.errors import TrainingFailed
from fedforget.federation.shared_arrays import SharedArrays
from fedforget.federation.worker import Lost, Worker

_LOWEST_PRIORITY = 19


class BackgroundJob:
    """Runs ``job(model)`` in a separate process, one model at a time. The process starts with the first model.

    A result is a pair: the number of a model, and what the job returned for it. Results come in the order of models.
    """

    def __init__(self, job: Callable[[Any], Any], get_ready: Callable[[], None], patience: float) -> None:
        self._job, self._get_ready, self._patience = job, get_ready, patience
        self._worker: Worker | None = None
        self._at: int | None = None

    def start(self, number: int, model: Any) -> list[tuple[int, Any]]:
        """Start the job on a model. Wait for the previous model's result, and return it."""
        found = self.finish()
        worker = self._worker or self._start_worker(model)
        shared = self._block.fits(model)
        if shared:
            self._block.write(model)
        self._at = number
        with self._naming(number):
            worker.ask(None if shared else model, self._patience)
        return found

    def finish(self) -> list[tuple[int, Any]]:
        """Wait for the outstanding result, if any, and return it."""
        if self._at is None or self._worker is None:
            return []
        number, self._at = self._at, None
        with self._naming(number):
            return [(number, self._worker.answer(self._patience))]

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close(at_once=True)

    def _start_worker(self, example: Any) -> Worker:
        self._block = SharedArrays(example)
        self._worker = Worker(
            lambda model: self._job(self._block.views() if model is None else model),
            get_ready=self._get_ready,
            niceness=_LOWEST_PRIORITY,
        )
        return self._worker

    @contextlib.contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        try:
            yield
        except Lost as how:
            raise TrainingFailed(
                f"the process that measured the model of round {number} {how}",
                hint="give the same command again: training continues where it stopped",
            ) from how
