"""One job beside the training, on the models that it makes: in a process that gives way to everybody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fedforget.errors import TrainingFailed
from fedforget.federation.shared_arrays import SharedArrays
from fedforget.federation.worker import Lost, Worker

_LOWEST_PRIORITY = 19


class Beside:
    """Does ``job(model)`` in a process of its own, one model at a time. Results come in the order of the models."""

    def __init__(self, job: Callable[[Any], Any], example: Any, get_ready: Callable[[], None], patience: float) -> None:
        self._patience = patience
        self._block = SharedArrays(example)
        self._worker = Worker(
            lambda model: job(self._block.views() if model is None else model),
            get_ready=get_ready,
            niceness=_LOWEST_PRIORITY,
        )
        self._at: int | None = None

    def start(self, number: int, model: Any) -> Iterator[tuple[int, Any]]:
        """Begin with a model; gives the result of the one before, waiting for it if it must."""
        yield from self.finish()
        shared = self._block.fits(model)
        if shared:
            self._block.write(model)
        self._at = number
        self._worker.ask(None if shared else model, self._patience)

    def finish(self) -> Iterator[tuple[int, Any]]:
        """The result that is still due, if any."""
        if self._at is not None:
            number, self._at = self._at, None
            try:
                yield number, self._worker.answer(self._patience)
            except Lost as how:
                raise TrainingFailed(
                    f"the process that measured the model of round {number} {how}",
                    hint="give the same command again: training goes on where it stopped",
                ) from how

    def close(self) -> None:
        self._worker.close(at_once=True)
