"""A federation whose clients are reached over a wire. It keeps nothing about them but who is there.

The server raises its epoch when it starts and before it takes anything back (see ``party``). It sends a rewind to the
clients that rounds after it drew, and to no other, so the cost of a rewind follows the rounds and not the number of
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from fedforget.algorithm.ids import Id, id_block
from fedforget.algorithm.ports import (
    ForgetQuery,
    ForgetReply,
    JoinQuery,
    JoinReply,
    Newcomer,
    Presence,
    RemoveOrder,
    TrainReply,
    TrainTask,
)
from fedforget.algorithm.seeds import Seed
from fedforget.errors import ClientUnreachable, FedForgetError
from fedforget.federation import parcels
from fedforget.federation.parcels import Arrays, Parcel, require_like
from fedforget.federation.party import Epoch


class Wire(Protocol):
    """Carries parcels to clients and brings their answers back."""

    def everyone(self, asked: Parcel) -> list[Parcel]:
        """Ask every node that can be reached now, and return the answers."""

    def exchange(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        """Return the answer of each client in the order of the parcels, or why there is none.

        A parcel may be delivered more than once. ClientUnreachable stands for a client that did not answer in time.
        """

    def close(self) -> None: ...


class RemoteFederation:
    """A ``Federation`` over a wire.

    ``drawn_after``: the clients that a round after this one has drawn, including the one that is under way.
    ``undelivered``: whole clients that left while they could not be reached; they are told when they are back.
    """

    def __init__(
        self,
        wire: Wire,
        run: str,
        epoch: Epoch,
        drawn_after: Callable[[int], Collection[Id]],
        *,
        undelivered: set[Id] | None = None,
        check: Callable[[Any, Any, Id], None] = require_like,
    ) -> None:
        self._wire, self._run, self._epoch, self._drawn_after = wire, run, epoch, drawn_after
        self.undelivered = set() if undelivered is None else undelivered
        self._check = check
        self._begin_epoch()

    def who_are_you(self) -> list[Presence]:
        answers = self._wire.everyone(self._request(parcels.PRESENCE, None))
        presences = [parcels.presence_in(answer) for answer in answers if "error" not in answer.body]
        found = [presence for presence in presences if presence is not None]
        back = [presence.client for presence in found if presence.client in self.undelivered]
        self._deliver_removals(back)
        present = [presence for presence in found if presence.client not in back]
        return sorted(present, key=lambda presence: id_block(presence.client))

    def train(self, tasks: Sequence[TrainTask]) -> list[TrainReply]:
        answers = self._ask([self._with_model(parcels.TRAIN, task) for task in tasks])
        results = [self._reply(task, answer) for task, answer in zip(tasks, answers, strict=True)]
        failed = next((each for each in results if isinstance(each, FedForgetError)), None)
        if failed is not None:
            self._take_back([task for task, each in zip(tasks, answers, strict=True) if isinstance(each, Parcel)])
            raise failed
        return [each for each in results if isinstance(each, TrainReply)]

    def _reply(self, task: TrainTask, answer: Parcel | FedForgetError) -> TrainReply | FedForgetError:
        if isinstance(answer, FedForgetError):
            return answer
        try:
            self._check(task.model, answer.model, task.client)
        except FedForgetError as error:
            return error
        return TrainReply(task.client, answer.model)

    def _take_back(self, trained: Sequence[TrainTask]) -> None:
        """Tell the clients that have trained a failed round to drop its notes.

        A client that this does not reach drops them when it trains the round again, or with the rewind of the request
        after which the round no longer draws it.
        """
        self._begin_epoch()
        self._ask([self._to(parcels.REWIND, task.client, rounds_done=task.round - 1) for task in trained])

    def repeats(self, task: TrainTask, leaving: Collection[Id] = (), *, bitwise: bool = True) -> bool | None:
        [answer] = self._answers([self._with_model(parcels.REPEAT, task, leaving=list(leaving), bitwise=bitwise)])
        return parcels.agreement_in(answer, task.client)

    def what_would_change(self, queries: Sequence[ForgetQuery]) -> list[ForgetReply]:
        asked = [self._to(parcels.WOULD_CHANGE, query.client, samples=list(query.samples)) for query in queries]
        return [
            parcels.forget_reply_in(answer, query.client, len(query.samples))
            for query, answer in zip(queries, self._answers(asked), strict=True)
        ]

    def what_would_join(self, queries: Sequence[JoinQuery]) -> list[JoinReply]:
        asked = [
            self._to(parcels.WOULD_JOIN, query.client, samples=list(query.samples), rounds=list(query.rounds))
            for query in queries
        ]
        return [
            parcels.join_reply_in(answer, query.client)
            for query, answer in zip(queries, self._answers(asked), strict=True)
        ]

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        self._begin_epoch()
        self._deliver_removals([order.client for order in orders if order.samples is None])
        parts = [(order.client, order.samples) for order in orders if order.samples is not None]
        asked = [self._to(parcels.REMOVE, client, samples=list(samples)) for client, samples in parts]
        for answer in self._ask(asked):
            if isinstance(answer, FedForgetError):
                raise answer

    def _deliver_removals(self, clients: Sequence[Id]) -> None:
        """Remove whole clients, and note those that can't be reached: the server forgets them all the same."""
        asked = [self._to(parcels.REMOVE, client, samples=None) for client in clients]
        for client, answer in zip(clients, self._ask(asked), strict=True):
            if isinstance(answer, ClientUnreachable):
                self.undelivered.add(client)
            elif isinstance(answer, FedForgetError):
                raise answer
            else:
                self.undelivered.discard(client)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        self._begin_epoch()
        self._answers([self._to(parcels.JOIN, new.client, **parcels.newcomer_fields(new)) for new in newcomers])

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        self._begin_epoch()
        self._answers([self._to(parcels.RESEED, client, **parcels.seed_fields(seed)) for client, seed in seeds.items()])

    def rewind(self, rounds_done: int) -> None:
        self._begin_epoch()
        told = sorted(set(self._drawn_after(rounds_done)) - self.undelivered, key=id_block)
        self._answers([self._to(parcels.REWIND, client, rounds_done=rounds_done) for client in told])

    def close(self) -> None:
        self._wire.close()

    # Asking

    def _begin_epoch(self) -> None:
        self._epoch.raise_to(self._epoch.now() + 1)

    def _request(self, kind: str, client: Id | None, model: Arrays | None = None, **fields: Any) -> Parcel:
        return parcels.request(self._run, self._epoch.now(), kind, client, model, **fields)

    def _to(self, kind: str, client: Id, **fields: Any) -> tuple[Id, Parcel]:
        return client, self._request(kind, client, **fields)

    def _with_model(self, kind: str, task: TrainTask, **fields: Any) -> tuple[Id, Parcel]:
        return task.client, self._request(kind, task.client, task.model, round=task.round, **fields)

    def _ask(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        """Return each client's answer, or the error that it raised or that stands for it."""
        answers = self._wire.exchange(asked) if asked else []
        return [
            answer if isinstance(answer, FedForgetError) else parcels.error_in(answer, client) or answer
            for (client, _), answer in zip(asked, answers, strict=True)
        ]

    def _answers(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel]:
        """Return each client's answer. Raise the first error in the order of the clients."""
        answers = self._ask(asked)
        for answer in answers:
            if isinstance(answer, FedForgetError):
                raise answer
        return [answer for answer in answers if isinstance(answer, Parcel)]
