"""The server's messages to the clients of one run, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import TrainTask
from fedforget.errors import FedForgetError
from fedforget.federation import parcels
from fedforget.federation.parcels import Arrays, Parcel
from fedforget.federation.party import Epoch
from fedforget.federation.standing import Standing, standing_in
from fedforget.federation.wires import Wire


class Listener(Protocol):
    """Receives what clients report about themselves."""

    def receive(self, client: Id, standing: Standing) -> None:
        """Receive a client's report. Called with every answer."""

    def receive_held(self, client: Id, standing: Standing) -> None:
        """Receive what a client holds in the state that is committed next."""


class Messages:
    """Sends messages over a wire, and hands the report in each answer to the listener."""

    def __init__(self, wire: Wire, run: str, epoch: Epoch, listener: Listener | None = None) -> None:
        self._wire, self._run, self._epoch, self._listener = wire, run, epoch, listener

    def everyone(self) -> list[Parcel]:
        """Ask every reachable node who it is. Return the answers of clients."""
        answers = self._wire.everyone(self._request(parcels.PRESENCE, None))
        found = [answer for answer in answers if "error" not in answer.body]
        for answer in found:
            self._report(parcels.client_in(answer), answer)
        return found

    def to(self, kind: str, client: Id, **fields: Any) -> tuple[Id, Parcel]:
        return client, self._request(kind, client, **fields)

    def with_model(self, kind: str, task: TrainTask, **fields: Any) -> tuple[Id, Parcel]:
        return task.client, self._request(kind, task.client, task.model, round=task.round, **fields)

    def ask(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        """Return each client's answer, or the error that it raised or that stands for it."""
        answers = self._wire.exchange(asked) if asked else []
        found: list[Parcel | FedForgetError] = [
            answer if isinstance(answer, FedForgetError) else parcels.error_in(answer, client) or answer
            for (client, _), answer in zip(asked, answers, strict=True)
        ]
        for (client, _), answer in zip(asked, found, strict=True):
            if isinstance(answer, Parcel):
                self._report(client, answer)
        return found

    def answers(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel]:
        """Return each client's answer. Raise the first error in the order of the clients."""
        answers = self.ask(asked)
        for answer in answers:
            if isinstance(answer, FedForgetError):
                raise answer
        return [answer for answer in answers if isinstance(answer, Parcel)]

    def begin_epoch(self) -> None:
        """Let clients refuse every message that was sent before."""
        self._epoch.raise_to(self._epoch.now() + 1)

    def close(self) -> None:
        self._wire.close()

    def _request(self, kind: str, client: Id | None, model: Arrays | None = None, **fields: Any) -> Parcel:
        return parcels.request(self._run, self._epoch.now(), kind, client, model, **fields)

    def _report(self, client: Id, answer: Parcel) -> None:
        if self._listener is not None:
            self._listener.receive(client, standing_in(answer, client))
