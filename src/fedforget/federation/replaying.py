"""The server's side of a replay: clients on other machines train their rounds again, and note nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import TrainReply, TrainTask
from fedforget.errors import FedForgetError
from fedforget.federation import parcels
from fedforget.federation.messages import Messages
from fedforget.federation.parcels import Parcel, require_like


class ReplayFederation:
    """The part of a ``Federation`` that a replay needs. ``rounds_of``: the rounds that drew a client."""

    def __init__(
        self,
        messages: Messages,
        rounds_of: Callable[[Id], Sequence[int]],
        check: Callable[[Any, Any, Id], None] = require_like,
    ) -> None:
        self._messages, self._rounds_of, self._check = messages, rounds_of, check
        self._disagreeing: list[tuple[Id, int]] = []

    @property
    def disagreements(self) -> Sequence[tuple[Id, int]]:
        """The clients and rounds whose replay differs from what the client had noted."""
        return tuple(self._disagreeing)

    def everyone(self) -> list[Parcel]:
        """Ask every reachable node who it is."""
        return self._messages.everyone()

    def train(self, tasks: Sequence[TrainTask]) -> list[TrainReply]:
        asked = [
            self._messages.with_model(parcels.REPLAY, task, rounds=list(self._rounds_of(task.client))) for task in tasks
        ]
        results = [self._reply(task, answer) for task, answer in zip(tasks, self._messages.ask(asked), strict=True)]
        for result in results:
            if isinstance(result, FedForgetError):
                raise result
        return [each for each in results if isinstance(each, TrainReply)]

    def _reply(self, task: TrainTask, answer: Parcel | FedForgetError) -> TrainReply | FedForgetError:
        reply = reply_in(task, answer, self._check)
        if (
            isinstance(answer, Parcel)
            and isinstance(reply, TrainReply)
            and parcels.agreement_in(answer, task.client) is not True
        ):
            self._disagreeing.append((task.client, task.round))
        return reply

    def close(self) -> None:
        self._messages.close()


def reply_in(
    task: TrainTask, answer: Parcel | FedForgetError, check: Callable[[Any, Any, Id], None]
) -> TrainReply | FedForgetError:
    """Return the local model in an answer, or the error in its place. ``check`` raises for a model of another form."""
    if isinstance(answer, FedForgetError):
        return answer
    try:
        check(task.model, answer.model, task.client)
    except FedForgetError as error:
        return error
    return TrainReply(task.client, answer.model)
