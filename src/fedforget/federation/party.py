"""One client on its own side of the wire: it answers the server from its own memory.

The server may send a message twice, and an old message may arrive late. The server raises its *epoch* when it starts
and before it takes anything back; a client that has seen an epoch refuses messages of earlier ones, so a late message
never brings back what a rewind took away. Within an epoch rounds only go forward, and notes are taken back before the
first of them: the client remembers the last round that it has trained, so a late message never takes away what
stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fedforget.algorithm.draws import PrfPriorities, Priorities
from fedforget.algorithm.ids import Id, canonical_id
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import (
    ClientMemory,
    ForgetQuery,
    JoinQuery,
    LocalLearner,
    RemoveOrder,
    TrainTask,
)
from fedforget.errors import FedForgetError, InvalidInput, UnknownTarget, quoted, shown
from fedforget.federation import parcels
from fedforget.federation.local import LocalFederation
from fedforget.federation.parcels import Parcel


class Epoch(Protocol):
    """The latest epoch that this side knows. ``raise_to`` is durable before it returns."""

    def now(self) -> int: ...

    def raise_to(self, epoch: int) -> None: ...


class ClientEpoch(Epoch, Protocol):
    """The epoch of a client, with the last round that it has trained in it: 0 when an epoch begins."""

    def last_round(self) -> int: ...

    def trains(self, round_: int) -> None:
        """Note the round. Durable before it returns."""


class EpochInMemory:
    """An ``Epoch`` of either side, without a disk."""

    def __init__(self) -> None:
        self._epoch = self._round = 0

    def now(self) -> int:
        return self._epoch

    def raise_to(self, epoch: int) -> None:
        self._epoch, self._round = epoch, 0

    def last_round(self) -> int:
        return self._round

    def trains(self, round_: int) -> None:
        self._round = round_


class ClientParty:
    """A client that takes part in one run. One process at a time may answer for it."""

    def __init__(
        self,
        run: str,
        client: Id,
        plan: Plan,
        memory: ClientMemory,
        learner: LocalLearner,
        epoch: ClientEpoch,
        priorities: Callable[[bytes], Priorities] = PrfPriorities,
    ) -> None:
        self._run, self.client, self._memory, self._epoch = run, client, memory, epoch
        self._federation = LocalFederation(plan, memory, learner, priorities)
        self._answers: Mapping[str, Callable[[Parcel], Parcel]] = {
            parcels.TRAIN: self._train,
            parcels.REPEAT: self._repeat,
            parcels.WOULD_CHANGE: self._would_change,
            parcels.WOULD_JOIN: self._would_join,
            parcels.RESEED: self._reseed,
        }
        self._after_leaving: Mapping[str, Callable[[Parcel], Parcel]] = {
            parcels.PRESENCE: self._presence,
            parcels.REMOVE: self._remove,
            parcels.REWIND: self._rewind,
            parcels.JOIN: self._join,
        }

    def answer(self, asked: Parcel) -> Parcel:
        """Do what a message asks. An error becomes an answer that names it."""
        try:
            act = self._act_for(asked.body)
            return act(asked)
        except FedForgetError as error:
            return parcels.failure(error)
        except (KeyError, TypeError, ValueError) as error:
            return parcels.failure(
                InvalidInput(
                    f"client {shown(self.client)} cannot read a message: {type(error).__name__}: {error}",
                    hint="update FedForget on both sides",
                )
            )

    def _act_for(self, body: Mapping[str, Any]) -> Callable[[Parcel], Parcel]:
        """Refuse messages of other runs, for other clients and of earlier epochs."""
        if body["run"] != self._run:
            raise InvalidInput(f"client {shown(self.client)} takes part in another run", hint="start its node anew")
        if body["client"] is not None and canonical_id(body["client"]) != self.client:
            raise UnknownTarget(f"this is client {shown(self.client)}, not client {shown(body['client'])}")
        epoch, known = body["epoch"], self._epoch.now()
        if type(epoch) is not int or epoch < known:
            raise InvalidInput(f"client {shown(self.client)} refuses a message from before a later change to the run")
        if epoch > known:
            self._epoch.raise_to(epoch)
        kind = body["kind"]
        if kind in self._after_leaving:
            return self._after_leaving[kind]
        if kind not in self._answers:
            raise InvalidInput(f"client {shown(self.client)} does not know the message {quoted(kind)}")
        if not self._is_present():
            raise UnknownTarget(f"client {shown(self.client)} has left the run")
        return self._answers[kind]

    def _is_present(self) -> bool:
        return self.client in self._memory.commitments()

    def _presence(self, asked: Parcel) -> Parcel:  # noqa: ARG002 (it has no fields)
        if not self._is_present():
            return Parcel({"client": self.client, "gone": True})
        commitment = self._memory.commitments()[self.client]
        return Parcel({"client": self.client, "gone": False, "commitment": commitment.hex()})

    # Training

    def _task(self, asked: Parcel) -> TrainTask:
        if asked.model is None:
            raise InvalidInput(f"client {shown(self.client)} was sent no model")
        return TrainTask(int(asked.body["round"]), self.client, asked.model)

    def _train(self, asked: Parcel) -> Parcel:
        task, last = self._task(asked), self._epoch.last_round()
        if task.round < last:
            raise InvalidInput(f"client {shown(self.client)} refuses a round from before the last one that it trained")
        if task.round > last:
            self._federation.rewind(task.round - 1)  # notes that the server has not committed, of an earlier epoch
            self._epoch.trains(task.round)
        [reply] = self._federation.train([task])
        return Parcel({}, reply.model)

    def _repeat(self, asked: Parcel) -> Parcel:
        leaving, bitwise = _ids(asked.body["leaving"]), bool(asked.body["bitwise"])
        return Parcel({"agrees": self._federation.repeats(self._task(asked), leaving, bitwise=bitwise)})

    # Forgetting and joining

    def _would_change(self, asked: Parcel) -> Parcel:
        [reply] = self._federation.what_would_change([ForgetQuery(self.client, _ids(asked.body["samples"]))])
        return Parcel({"first_steps": list(reply.first_steps), "now_empty": reply.now_empty})

    def _would_join(self, asked: Parcel) -> Parcel:
        query = JoinQuery(self.client, _ids(asked.body["samples"]), tuple(map(int, asked.body["rounds"])))
        [reply] = self._federation.what_would_join([query])
        return Parcel({"first_step": reply.first_step})

    def _remove(self, asked: Parcel) -> Parcel:
        samples = asked.body["samples"]
        self._federation.remove([RemoveOrder(self.client, None if samples is None else _ids(samples))])
        return Parcel({})

    def _rewind(self, asked: Parcel) -> Parcel:
        rounds_done = int(asked.body["rounds_done"])
        if self._is_present() and rounds_done >= self._epoch.last_round():  # else it is late: it was done before
            self._federation.rewind(rounds_done)
        return Parcel({})

    def _join(self, asked: Parcel) -> Parcel:
        self._federation.join([parcels.newcomer_in(asked.body, self.client)])
        return Parcel({})

    def _reseed(self, asked: Parcel) -> Parcel:
        self._federation.reseed({self.client: parcels.seed_in(asked.body)})
        return Parcel({})


def _ids(given: Any) -> tuple[Id, ...]:
    return tuple(canonical_id(each) for each in given)
