"""A forked process that answers one question at a time, until its parent closes the pipe or exits."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from fedforget.errors import FedForgetError, InvalidInput, TrainingFailed

_PR_SET_PDEATHSIG = 1
_GRACE = 5.0  # seconds that a worker has to exit

_STOPS = {signal.SIGINT, signal.SIGTERM}
_SMALL = 2**15  # bytes that a pipe buffers while its other end is not read

_pipes: set[Connection] = set()  # this process's ends of the pipes to its workers


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


class Lost(Exception):
    """A worker exited without an answer; the message says how."""

    remedy = "after checking the model and the data"


class Killed(Lost):
    """Killed by a signal (for example by the OOM killer)."""

    remedy = "with fewer --workers if memory is short"


class Late(Lost):
    """Timed out."""

    remedy = "with a longer --worker-timeout (patience, in Python) if it only needs more time"

    def __init__(self, patience: float) -> None:
        super().__init__(f"did not finish within {patience:g} s")


class Worker:
    """A worker process. It is forked, so that it has the module and the data without a copy.

    The worker runs ``get_ready`` once, then ``answer`` for each question. The parent gets the result or the error.
    """

    def __init__(
        self,
        answer: Callable[[Any], Any],
        *,
        get_ready: Callable[[], None] = lambda: None,
        niceness: int = 0,
    ) -> None:
        if not can_fork() or multiprocessing.current_process().daemon:
            raise InvalidInput("no worker process can be started from here", hint="use --federation inline")
        context = multiprocessing.get_context("fork")
        try:
            self.pipe, theirs = context.Pipe()
        except OSError as error:
            raise _cannot_start(error) from error
        _pipes.add(self.pipe)

        def live(parent: int) -> None:
            _enter_worker(parent, niceness)
            get_ready()
            _serve(theirs, answer)

        self._process = context.Process(target=live, args=(os.getpid(),), daemon=True)
        self._fork(theirs)

    def _fork(self, theirs: Connection) -> None:
        """Start the process. ``theirs``: its end of the pipe, which this process then closes."""
        gc.freeze()  # objects that the collector does not visit stay on shared pages
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)  # workers use one thread only
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # until the worker has set its handlers
            try:
                self._process.start()
            except OSError as error:
                self.pipe.close()
                _pipes.discard(self.pipe)
                raise _cannot_start(error) from error
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                gc.unfreeze()
                theirs.close()

    def ask(self, question: Any, patience: float) -> None:
        """Send a question. Raise ``Late`` on timeout."""
        message = ForkingPickler.dumps(question)
        with contextlib.suppress(OSError):  # the worker is gone: ``answer`` reports it
            if len(message) <= _SMALL:
                self.pipe.send_bytes(message)
            else:
                _within(patience, lambda: self.pipe.send_bytes(message))

    def answer(self, patience: float, *, large: bool = False) -> Any:
        """Return the answer; raise the worker's error or ``Lost``. ``large``: the answer may come in several reads."""
        try:
            if not self.pipe.poll(patience):
                raise Late(patience)
            result, error = _within(patience, self.pipe.recv) if large else self.pipe.recv()
        except (EOFError, OSError) as gone:
            raise self._how_it_ended() from gone
        if error is not None:
            raise error
        return result

    def _how_it_ended(self) -> Lost:
        self._process.join(_GRACE)
        code = self._process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return Killed(f"was killed ({name}{', perhaps for lack of memory' if name == 'SIGKILL' else ''})")
        return Lost(f"ended with code {code}")

    @property
    def process_id(self) -> int | None:
        return self._process.pid

    def close(self, *, at_once: bool) -> None:
        """Stop the worker: after its current question, or at once."""
        _pipes.discard(self.pipe)
        self.pipe.close()
        if at_once:
            self._process.kill()
        self._process.join(_GRACE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _cannot_start(error: OSError) -> TrainingFailed:
    return TrainingFailed(
        f"no worker process could be started: {error.strerror}", hint="use fewer --workers, or --federation inline"
    )


def _within(patience: float, action: Callable[[], Any]) -> Any:
    """Run a blocking call with a timeout. Raise ``Late`` on timeout."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(action())
        except BaseException as error:  # noqa: BLE001 (raised again by ``result``)
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return outcome.result(patience)
    except TimeoutError as error:
        raise Late(patience) from error


def _serve(pipe: Connection, answer: Callable[[Any], Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            question = pipe.recv()
            try:
                pipe.send((answer(question), None))
            except FedForgetError as error:
                pipe.send((None, error))
    os._exit(0)  # skip the parent's exit handlers


def _enter_worker(parent: int, niceness: int) -> None:
    """Prepare a new worker: pipes, signals, and its end when the parent exits."""
    for inherited in _pipes:
        inherited.close()  # otherwise this process would keep other workers' pipes open
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    _end_with(parent)
    os.nice(niceness)


def _end_with(parent: int) -> None:
    """Let Linux kill this process when its parent exits. On other systems the closed pipe ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has exited already
        os._exit(1)
