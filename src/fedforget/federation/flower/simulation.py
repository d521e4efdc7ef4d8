"""A Flower simulation of our own: its processes start with the first round, and all end with the command.

The command stays the server: it keeps the run open, its lock and its progress. Flower runs an app without code whose
ServerApp (``fedforget.flower.relays``) hands on what the command sends through a socket. So every command works in a
simulation as it does with the pool. Everything that Flower and Ray write is in one temporary directory.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from fedforget.errors import InvalidInput, TrainingFailed
from fedforget.federation.flower.app_text import app_text
from fedforget.federation.flower.processes import Home, NotStarted
from fedforget.federation.flower.trainer import Answers
from fedforget.federation.parcels import Parcel

log = logging.getLogger("fedforget")

_START = 150.0  # seconds; 20 to 30 are usual
_ATTEMPTS = 2  # Ray now and then hangs while it starts
_GRACE = 60.0  # seconds beyond the patience of the relay
_END = object()

APP = app_text(
    "fedforget-simulation",
    "Hands local rounds on to the nodes of a simulation",
    dependency="flwr[simulation]",
    serverapp="simulation_relay",
)


def require_installed() -> None:
    """Refuse if Flower or Ray is missing, before anything is created or started."""
    if importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None:
        raise InvalidInput(
            "Flower's simulation is not installed", hint="pip install 'fedforget[simulation]', or use --federation pool"
        )


class Simulation:
    """``Nodes`` in processes that this one starts. ``processes``: how many compute (None: one per core)."""

    def __init__(self, processes: int | None, patience: float) -> None:
        require_installed()
        self._processes, self._patience = processes, patience
        self._home: Home | None = None
        self._socket: Connection | None = None
        self._order = 0

    def exchange(self, asked: Sequence[Parcel], idle: Iterator[None]) -> Answers:
        """Yield the nodes' answers. An order that was not waited for is passed over by the next one."""
        if self._socket is None:
            self._start()
        assert self._socket is not None  # noqa: S101 (set above)
        self._order += 1
        try:
            self._socket.send((self._order, self._patience, list(asked)))
            for _ in asked:
                yield self._next(idle)
        except (OSError, EOFError) as error:
            raise self._ended() from error

    def close(self) -> None:
        """End every process of the simulation, and remove its directory."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._home is not None:
            self._home.close()
            self._home = None

    def _next(self, idle: Iterator[None]) -> tuple[int, Parcel]:
        assert self._socket is not None  # noqa: S101
        while True:
            while not self._socket.poll(0) and next(idle, _END) is not _END:
                pass
            if not self._socket.poll(self._patience + _GRACE):
                raise TrainingFailed(
                    f"Flower's simulation has not answered for {self._patience + _GRACE:g} s",
                    hint="give the same command again, with a longer --worker-timeout if it only needs more time",
                )
            order, place, answer = self._socket.recv()
            if order == self._order:
                return place, answer

    def _start(self) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start_once()
            except OSError as error:
                self.close()
                raise TrainingFailed(
                    f"Flower could not be started: {error.strerror}", hint="use --federation pool"
                ) from error
            except NotStarted as error:
                self.close()
                if attempt == _ATTEMPTS:
                    raise TrainingFailed(str(error), hint=f"{error.said}; give the same command again") from error
                log.warning("%s (%s): trying once more", error, error.said)
            except BaseException:
                self.close()
                raise
            else:
                return

    def _start_once(self) -> None:
        started = time.monotonic()
        self._home = home = Home()
        home.start_superlink(_START)
        home.submit(APP, self._processes, _START)
        self._socket = home.accept(_START)
        if not self._socket.poll(_START):
            raise NotStarted(f"Flower's nodes did not answer within {_START:g} s", home.hint())
        try:
            self._socket.recv()  # ready
        except (EOFError, OSError) as error:
            raise self._ended() from error
        log.info("a Flower simulation started in %.1f s", time.monotonic() - started)

    def _ended(self) -> TrainingFailed:
        said = self._home.hint() if self._home is not None else ""
        return TrainingFailed(
            "Flower's simulation ended before it had answered", hint=f"{said}; give the same command again"
        )
