"""A federation whose clients are reached over a wire. It keeps nothing about them but who is there.

The server raises its epoch when it starts and before it takes anything back (see ``party``). It sends a rewind to the
clients that rounds after it drew, and to no other, so the cost of a rewind follows the rounds and not the number of
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableSet, Sequence
from typing import Any, Protocol

from fedforget.algorithm.ids import Id, id_block
from fedforget.algorithm.notes import NO_NOTES
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
from fedforget.errors import ClientUnreachable, FedForgetError, SignatureRefused
from fedforget.federation import parcels
from fedforget.federation.parcels import Arrays, Parcel, require_like
from fedforget.federation.party import Epoch
from fedforget.federation.standing import Standing, standing_in
from fedforget.federation.wires import Wire


class Listener(Protocol):
    """Hears what clients say about themselves."""

    def tells(self, client: Id, standing: Standing) -> None:
        """Hear how a client stands. Called with every answer."""

    def holds(self, client: Id, standing: Standing) -> None:
        """Hear what a client holds in the state that is committed next."""


def _none() -> Collection[Id]:
    return ()


class RemoteFederation:
    """A ``Federation`` over a wire.

    ``drawn_after``: the clients that a round after this one has drawn, including the one that is under way.
    ``undelivered``: whole clients that left while they could not be reached; they are told when they are back.
    ``leaving``: clients that a batch is about to remove as a whole, so that nothing less needs to reach them.
    ``silent``: clients that did not answer lately, so that their removal need not wait for them. ``until_done``: a
    client that left stays undelivered until the caller has told it that everything is done. ``replaying`` returns the
    rounds that drew a client, which then trains them again without noting anything; ``disagreeing`` says which clients
    had noted something else.
    """

    def __init__(
        self,
        wire: Wire,
        run: str,
        epoch: Epoch,
        drawn_after: Callable[[int], Collection[Id]],
        *,
        undelivered: MutableSet[Id] | None = None,
        leaving: Callable[[], Collection[Id]] = _none,
        listener: Listener | None = None,
        check: Callable[[Any, Any, Id], None] = require_like,
        silent: Callable[[], Collection[Id]] = _none,
        accept_mixed: bool = False,
        until_done: bool = False,
        replaying: Callable[[Id], Sequence[int]] | None = None,
    ) -> None:
        self._wire, self._run, self._epoch, self._drawn_after = wire, run, epoch, drawn_after
        self.undelivered: MutableSet[Id] = set() if undelivered is None else undelivered
        self._leaving, self._silent, self._listener, self._check = leaving, silent, listener, check
        self._until_done = until_done
        self.removed: set[Id] = set()  # whole clients that know that they leave
        self._mixed = {"mixed": True} if accept_mixed else {}
        self._replaying = replaying
        self.disagreeing: list[tuple[Id, int]] = []
        if replaying is None:
            self._begin_epoch()

    def who_are_you(self) -> list[Presence]:
        return self.met(self.everyone())

    def everyone(self) -> list[Parcel]:
        """Ask every node that can be reached who it is, and hear what the clients say."""
        answers = self._wire.everyone(self._request(parcels.PRESENCE, None))
        found = [answer for answer in answers if "error" not in answer.body]
        for answer in found:
            self._heard(parcels.client_in(answer), answer)
        return found

    def met(self, answers: Sequence[Parcel]) -> list[Presence]:
        """Return the clients that have answered. Those that left are told so."""
        presences = [parcels.presence_in(answer) for answer in answers]
        found = [presence for presence in presences if presence is not None]
        gone = [parcels.client_in(answer) for answer, each in zip(answers, presences, strict=True) if each is None]
        self.removed |= set(gone) & set(self.undelivered)
        back = [presence.client for presence in found if presence.client in self.undelivered]
        self._deliver_removals(back)
        present = [presence for presence in found if presence.client not in back]
        return sorted(present, key=lambda presence: id_block(presence.client))

    def give_plan(self, clients: Sequence[Id], plan: str) -> dict[Id, FedForgetError]:
        """Send the plan of the run to clients that do not have it. Return why some of them do not take it."""
        answers = self._ask([self._to(parcels.PLAN, client, plan=plan) for client in clients])
        return {c: answer for c, answer in zip(clients, answers, strict=True) if isinstance(answer, FedForgetError)}

    def done(self, handles: Mapping[Id, Collection[str]], facts: Mapping[str, Any]) -> list[Id]:
        """Tell clients that their requests are carried out and purged. Return those that this did not reach."""
        asked = [
            self._to(parcels.DONE, client, handles=sorted(own), facts=dict(facts)) for client, own in handles.items()
        ]
        answers = zip(handles, self._ask(asked), strict=True)
        return [client for client, answer in answers if isinstance(answer, FedForgetError)]

    def train(self, tasks: Sequence[TrainTask]) -> list[TrainReply]:
        answers = self._ask([self._task(task) for task in tasks])
        results = [self._reply(task, answer) for task, answer in zip(tasks, answers, strict=True)]
        failed = next((each for each in results if isinstance(each, FedForgetError)), None)
        if failed is not None:
            if self._replaying is not None:
                raise failed
            self._take_back([task for task, each in zip(tasks, answers, strict=True) if isinstance(each, Parcel)])
            raise failed
        self._hold([(task.client, answer) for task, answer in zip(tasks, answers, strict=True)])
        return [each for each in results if isinstance(each, TrainReply)]

    def _task(self, task: TrainTask) -> tuple[Id, Parcel]:
        if self._replaying is not None:
            return self._with_model(parcels.REPLAY, task, rounds=list(self._replaying(task.client)))
        return self._with_model(parcels.TRAIN, task, **self._mixed)

    def _reply(self, task: TrainTask, answer: Parcel | FedForgetError) -> TrainReply | FedForgetError:
        if isinstance(answer, FedForgetError):
            return answer
        try:
            self._check(task.model, answer.model, task.client)
        except FedForgetError as error:
            return error
        if self._replaying is not None and parcels.agreement_in(answer, task.client) is not True:
            self.disagreeing.append((task.client, task.round))
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
        asked = [
            self._to(parcels.WOULD_CHANGE, query.client, samples=list(query.samples))
            for query in queries
            if not query.leaving
        ]
        answers = iter(self._answers(asked))
        return [
            ForgetReply(query.client, (None,) * len(query.samples), now_empty=True)
            if query.leaving
            else parcels.forget_reply_in(next(answers), query.client, len(query.samples))
            for query in queries
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
        leaving = set(self._leaving())
        parts = {
            order.client: order.samples for order in orders if order.samples is not None and order.client not in leaving
        }
        asked = [self._to(parcels.REMOVE, client, samples=list(samples)) for client, samples in parts.items()]
        self._hold(list(zip(parts, self._answers(asked), strict=True)))

    def _deliver_removals(self, clients: Sequence[Id]) -> None:
        """Remove whole clients, and note those that can't be reached: the server forgets them all the same."""
        silent = set(self._silent())
        for client in clients:
            if self._until_done or client in silent:
                self.undelivered.add(client)
        reached = [client for client in clients if client not in silent]
        asked = [self._to(parcels.REMOVE, client, samples=None) for client in reached]
        for client, answer in zip(reached, self._ask(asked), strict=True):
            if isinstance(answer, ClientUnreachable | SignatureRefused):
                self.undelivered.add(client)
            elif isinstance(answer, FedForgetError):
                raise answer
            else:
                self.removed.add(client)
                if not self._until_done:
                    self.undelivered.discard(client)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        self._begin_epoch()
        told = [new for new in newcomers if new.enrolled is None]
        for new in newcomers:
            if new.enrolled is not None and self._listener is not None:  # it holds its data already
                self._listener.holds(new.client, Standing(new.enrolled.root, NO_NOTES, new.enrolled.commitment))
        answers = self._answers([self._to(parcels.JOIN, new.client, **parcels.newcomer_fields(new)) for new in told])
        self._hold(list(zip([new.client for new in told], answers, strict=True)))

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        self._begin_epoch()
        self._answers([self._to(parcels.RESEED, client, **parcels.seed_fields(seed)) for client, seed in seeds.items()])

    def rewind(self, rounds_done: int) -> None:
        self._begin_epoch()
        away = {*self.undelivered, *self._leaving()}
        told = sorted(set(self._drawn_after(rounds_done)) - away, key=id_block)
        answers = self._answers([self._to(parcels.REWIND, client, rounds_done=rounds_done) for client in told])
        self._hold(list(zip(told, answers, strict=True)))

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
        found: list[Parcel | FedForgetError] = [
            answer if isinstance(answer, FedForgetError) else parcels.error_in(answer, client) or answer
            for (client, _), answer in zip(asked, answers, strict=True)
        ]
        for (client, _), answer in zip(asked, found, strict=True):
            if isinstance(answer, Parcel):
                self._heard(client, answer)
        return found

    def _heard(self, client: Id, answer: Parcel) -> None:
        if self._listener is not None:
            self._listener.tells(client, standing_in(answer, client))

    def _hold(self, answers: Sequence[tuple[Id, Parcel | FedForgetError]]) -> None:
        for client, answer in answers:
            if self._listener is not None and isinstance(answer, Parcel):
                self._listener.holds(client, standing_in(answer, client))

    def _answers(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel]:
        """Return each client's answer. Raise the first error in the order of the clients."""
        answers = self._ask(asked)
        for answer in answers:
            if isinstance(answer, FedForgetError):
                raise answer
        return [answer for answer in answers if isinstance(answer, Parcel)]
