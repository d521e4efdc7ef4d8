"""A federation whose clients are reached over a wire. It stores only which clients are reachable.

The server raises its epoch when it starts and before it rewinds anything (see ``party``). It sends a rewind to the
clients that rounds after it drew, and to no other, so the cost of a rewind follows the rounds and not the number of
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableSet, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from fedforget.federation.messages import Listener, Messages
from fedforget.federation.parcels import Parcel, require_like
from fedforget.federation.party import Epoch
from fedforget.federation.replaying import reply_in
from fedforget.federation.standing import Standing, standing_in
from fedforget.federation.wires import Wire


def _none() -> Collection[Id]:
    return ()


@dataclass(frozen=True, slots=True)
class Absences:
    """What the server knows of clients that leave or do not answer.

    ``undelivered``: erased clients that have not confirmed the erasure; they are sent the removal when they are back.
    ``leaving``: clients that a batch is about to remove as a whole, so that nothing less needs to reach them.
    ``silent``: clients that did not answer lately, so that their removal need not wait for them. ``until_done``: an
    erased client stays undelivered until ``finish_erasures`` has reached it.
    """

    undelivered: MutableSet[Id] = field(default_factory=set)
    leaving: Callable[[], Collection[Id]] = _none
    silent: Callable[[], Collection[Id]] = _none
    until_done: bool = False


class RemoteFederation:
    """A ``Federation`` over a wire.

    ``drawn_after``: the clients that a round after this one has drawn, including the one that is under way.
    """

    def __init__(
        self,
        wire: Wire,
        run: str,
        epoch: Epoch,
        drawn_after: Callable[[int], Collection[Id]],
        absences: Absences | None = None,
        *,
        listener: Listener | None = None,
        check: Callable[[Any, Any, Id], None] = require_like,
        accept_mixed: bool = False,
    ) -> None:
        self._messages, self._drawn_after = Messages(wire, run, epoch, listener), drawn_after
        self._absences, self._listener, self._check = absences or Absences(), listener, check
        self._undelivered = self._absences.undelivered
        self._erased: set[Id] = set()  # erased clients that confirmed the erasure
        self._mixed = {"mixed": True} if accept_mixed else {}
        self._messages.begin_epoch()

    def who_are_you(self) -> list[Presence]:
        return self.met(self.everyone())

    def everyone(self) -> list[Parcel]:
        """Ask every reachable node who it is, and pass on the clients' reports."""
        return self._messages.everyone()

    def met(self, answers: Sequence[Parcel]) -> list[Presence]:
        """Return the clients that have answered. Erased clients are sent the removal."""
        presences = [parcels.presence_in(answer) for answer in answers]
        found = [presence for presence in presences if presence is not None]
        gone = [parcels.client_in(answer) for answer, each in zip(answers, presences, strict=True) if each is None]
        self._erased |= set(gone) & set(self._undelivered)
        back = [presence.client for presence in found if presence.client in self._undelivered]
        self._deliver_removals(back)
        present = [presence for presence in found if presence.client not in back]
        return sorted(present, key=lambda presence: id_block(presence.client))

    def give_plan(self, clients: Sequence[Id], plan: str) -> dict[Id, FedForgetError]:
        """Send the plan of the run to clients that lack it. Return the errors of those that refuse it."""
        answers = self._ask([self._to(parcels.PLAN, client, plan=plan) for client in clients])
        return {c: answer for c, answer in zip(clients, answers, strict=True) if isinstance(answer, FedForgetError)}

    def done(self, handles: Mapping[Id, Collection[str]], facts: Callable[[Id], Mapping[str, Any]]) -> list[Id]:
        """Tell clients that their requests are carried out and purged. Return the unreachable ones."""
        asked = [
            self._to(parcels.DONE, client, handles=sorted(own), facts=dict(facts(client)))
            for client, own in handles.items()
        ]
        answers = zip(handles, self._ask(asked), strict=True)
        return [client for client, answer in answers if isinstance(answer, FedForgetError)]

    def finish_erasures(self, facts: Callable[[Id], Mapping[str, Any]]) -> None:
        """Tell erased clients that everything is purged. An unreachable one is told at a later contact."""
        erased = self._erased & set(self._undelivered)
        missed = self.done({client: [] for client in sorted(erased, key=id_block)}, facts)
        for client in erased - set(missed):
            self._undelivered.discard(client)

    def train(self, tasks: Sequence[TrainTask]) -> list[TrainReply]:
        answers = self._ask([self._messages.with_model(parcels.TRAIN, task, **self._mixed) for task in tasks])
        results = [reply_in(task, answer, self._check) for task, answer in zip(tasks, answers, strict=True)]
        failed = next((each for each in results if isinstance(each, FedForgetError)), None)
        if failed is not None:
            self._discard_notes([task for task, each in zip(tasks, answers, strict=True) if isinstance(each, Parcel)])
            raise failed
        self._hold([(task.client, answer) for task, answer in zip(tasks, answers, strict=True)])
        return [each for each in results if isinstance(each, TrainReply)]

    def _discard_notes(self, trained: Sequence[TrainTask]) -> None:
        """Tell the clients that have trained a failed round to drop its notes.

        An unreachable client drops them when it trains the round again, or with the rewind of the request after which
        the round no longer draws it.
        """
        self._messages.begin_epoch()
        self._ask([self._to(parcels.REWIND, task.client, rounds_done=task.round - 1) for task in trained])

    def repeats(self, task: TrainTask, leaving: Collection[Id] = (), *, bitwise: bool = True) -> bool | None:
        [answer] = self._answers(
            [self._messages.with_model(parcels.REPEAT, task, leaving=list(leaving), bitwise=bitwise)]
        )
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
        self._messages.begin_epoch()
        self._deliver_removals([order.client for order in orders if order.samples is None])
        leaving = set(self._absences.leaving())
        parts = {
            order.client: order.samples for order in orders if order.samples is not None and order.client not in leaving
        }
        asked = [self._to(parcels.REMOVE, client, samples=list(samples)) for client, samples in parts.items()]
        self._hold(list(zip(parts, self._answers(asked), strict=True)))

    def _deliver_removals(self, clients: Sequence[Id]) -> None:
        """Remove whole clients, and record the unreachable ones: the server forgets them all the same."""
        silent = set(self._absences.silent())
        for client in clients:
            if self._absences.until_done or client in silent:
                self._undelivered.add(client)
        reached = [client for client in clients if client not in silent]
        asked = [self._to(parcels.REMOVE, client, samples=None) for client in reached]
        for client, answer in zip(reached, self._ask(asked), strict=True):
            if isinstance(answer, ClientUnreachable | SignatureRefused):
                self._undelivered.add(client)
            elif isinstance(answer, FedForgetError):
                raise answer
            else:
                self._erased.add(client)
                if not self._absences.until_done:
                    self._undelivered.discard(client)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        self._messages.begin_epoch()
        sent = [new for new in newcomers if new.enrolled is None]
        for new in newcomers:
            if new.enrolled is not None and self._listener is not None:  # it holds its data already
                self._listener.receive_held(new.client, Standing(new.enrolled.root, NO_NOTES, new.enrolled.commitment))
        answers = self._answers([self._to(parcels.JOIN, new.client, **parcels.newcomer_fields(new)) for new in sent])
        self._hold(list(zip([new.client for new in sent], answers, strict=True)))

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        self._messages.begin_epoch()
        self._answers([self._to(parcels.RESEED, client, **parcels.seed_fields(seed)) for client, seed in seeds.items()])

    def rewind(self, rounds_done: int) -> None:
        self._messages.begin_epoch()
        away = {*self._undelivered, *self._absences.leaving()}
        affected = sorted(set(self._drawn_after(rounds_done)) - away, key=id_block)
        answers = self._answers([self._to(parcels.REWIND, client, rounds_done=rounds_done) for client in affected])
        self._hold(list(zip(affected, answers, strict=True)))

    def close(self) -> None:
        self._messages.close()

    # Asking

    def _to(self, kind: str, client: Id, **fields: Any) -> tuple[Id, Parcel]:
        return self._messages.to(kind, client, **fields)

    def _ask(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        return self._messages.ask(asked)

    def _answers(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel]:
        return self._messages.answers(asked)

    def _hold(self, answers: Sequence[tuple[Id, Parcel | FedForgetError]]) -> None:
        for client, answer in answers:
            if self._listener is not None and isinstance(answer, Parcel):
                self._listener.receive_held(client, standing_in(answer, client))
