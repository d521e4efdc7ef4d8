"""One client on its own side of the wire: it answers the server from its own memory.

The server may send a message twice, and an old message may arrive late. The server raises its *epoch* when it starts
and before it rewinds anything; a client that has seen an epoch refuses messages of earlier ones, so a late message
cannot restore rewound notes. Within an epoch rounds only go forward, and notes are rewound before the first of them:
the client remembers the last round that it has trained, so a late message cannot rewind valid notes.

Each answer carries the client's report (``standing``) and, if the client has a key, a signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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
from fedforget.federation.ledger import ClientLedger, LedgerInMemory
from fedforget.federation.local import LocalFederation
from fedforget.federation.parcels import Parcel
from fedforget.federation.replayed_memory import ReplayedMemory
from fedforget.federation.signing import sign
from fedforget.federation.standing import withdrawal_in


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
        *,
        ledger: ClientLedger | None = None,
        key: Ed25519PrivateKey | None = None,
    ) -> None:
        self._run, self.client, self._memory, self._epoch, self._key = run, client, memory, epoch, key
        self._plan = plan
        self.ledger = LedgerInMemory(client, memory) if ledger is None else ledger
        self._learner, self._priorities = learner, priorities
        self._federation = LocalFederation(plan, memory, learner, priorities)
        self._answers: Mapping[str, Callable[[Parcel], Parcel]] = {
            parcels.TRAIN: self._train,
            parcels.REPEAT: self._repeat,
            parcels.REPLAY: self._replay,
            parcels.WOULD_CHANGE: self._would_change,
            parcels.WOULD_JOIN: self._would_join,
            parcels.RESEED: self._reseed,
        }
        self._after_leaving: Mapping[str, Callable[[Parcel], Parcel]] = {
            parcels.PRESENCE: self._presence,
            parcels.REMOVE: self._remove,
            parcels.REWIND: self._rewind,
            parcels.JOIN: self._join,
            parcels.PLAN: self._keep_plan,
            parcels.DONE: self._done,
        }

    def answer(self, asked: Parcel) -> Parcel:
        """Do what a message asks. An error becomes an answer that names it."""
        found = self._answer(asked)
        answered = Parcel({"client": self.client, **found.body}, found.model)
        return answered if self._key is None else sign(self._key, asked, answered)

    def _answer(self, asked: Parcel) -> Parcel:
        try:
            found = self._act_for(asked.body)(asked)
            return Parcel({**found.body, "now": self.ledger.standing().fields()}, found.model)
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
        about = {"run": self._run, "plan": self.ledger.plan_digest()}
        if not self._is_present():
            return Parcel({"gone": True, **about})
        return Parcel({"gone": False, "commitment": self._commitment().hex(), **about})

    def _commitment(self) -> bytes:
        return self._memory.commitments()[self.client]

    def _keep_plan(self, asked: Parcel) -> Parcel:
        return Parcel({"plan": self.ledger.keep_plan(self._run, str(asked.body["plan"]))})

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
            self._federation.rewind(task.round - 1)  # notes of an earlier epoch that the server has not committed
            self._epoch.trains(task.round)
        self.ledger.before_training(task.round, mixed=asked.body.get("mixed") is True)
        [reply] = self._federation.train([task])
        return Parcel({}, reply.model)

    def _repeat(self, asked: Parcel) -> Parcel:
        task, bitwise = self._task(asked), bool(asked.body["bitwise"])
        self.ledger.before_repeating(task.round, bitwise=bitwise)
        agrees = self._federation.repeats(task, _united(self._samples(asked.body["leaving"])), bitwise=bitwise)
        self.ledger.repeated(agrees=agrees)
        return Parcel({"agrees": agrees})

    def _replay(self, asked: Parcel) -> Parcel:
        """Train a round again, and change nothing. The answer says whether the client had noted the same."""
        task, rounds = self._task(asked), [int(each) for each in asked.body["rounds"]]
        self.ledger.before_repeating(task.round, bitwise=True)
        memory = ReplayedMemory(self._memory, self.client)
        [reply] = LocalFederation(self._plan, memory, self._learner, self._priorities).train([task])
        return Parcel({"agrees": memory.agrees(self._plan, task.round, rounds)}, reply.model)

    # Forgetting and joining

    def _samples(self, given: Any) -> list[tuple[Id, ...]]:
        return self.ledger.samples_of(_ids(given))

    def _would_change(self, asked: Parcel) -> Parcel:
        groups = self._samples(asked.body["samples"])
        samples = _united(groups)
        [reply] = self._federation.what_would_change([ForgetQuery(self.client, samples)])
        steps = dict(zip(samples, reply.first_steps, strict=True))
        first = [
            self._first_step(each, [step for sample in group if (step := steps[sample]) is not None])
            for each, group in zip(_ids(asked.body["samples"]), groups, strict=True)
        ]
        return Parcel({"first_steps": first, "now_empty": reply.now_empty})

    def _first_step(self, given: Id, steps: Sequence[int]) -> int | None:
        """Return the first of these steps; of a withdrawal only the first of its round, where the server rewinds to."""
        if not steps or withdrawal_in(given) is None:
            return min(steps, default=None)
        return self._plan.step_of(self._plan.round_of(min(steps)), 0)

    def _would_join(self, asked: Parcel) -> Parcel:
        samples = self.ledger.joining(tuple((sample, b"") for sample in _ids(asked.body["samples"])))
        query = JoinQuery(self.client, tuple(each for each, _ in samples), tuple(map(int, asked.body["rounds"])))
        [reply] = self._federation.what_would_join([query])
        return Parcel({"first_step": reply.first_step})

    def _remove(self, asked: Parcel) -> Parcel:
        samples = asked.body["samples"]
        given = None if samples is None else _ids(samples)
        self.ledger.removing(given)
        order = RemoveOrder(self.client, None if given is None else _united(self.ledger.samples_of(given)))
        self._federation.remove([order])
        self.ledger.removed(given)
        return Parcel({})

    def _rewind(self, asked: Parcel) -> Parcel:
        rounds_done = int(asked.body["rounds_done"])
        if self._is_present() and rounds_done >= self._epoch.last_round():  # otherwise the message is late
            self._federation.rewind(rounds_done)
        return Parcel({})

    def _join(self, asked: Parcel) -> Parcel:
        new = parcels.newcomer_in(asked.body, self.client)
        self._federation.join([replace(new, samples=self.ledger.joining(new.samples))])
        self.ledger.joined([sample for sample, _ in new.samples])
        return Parcel({})

    def _reseed(self, asked: Parcel) -> Parcel:
        body = asked.body
        given = parcels.seed_in(body) if "seed" in body else None
        seed = self.ledger.new_seed(str(body.get("key")), given)
        self._federation.reseed({self.client: seed})
        return Parcel({"commitment": self._commitment().hex()})

    def _done(self, asked: Parcel) -> Parcel:
        handles = [str(each) for each in asked.body["handles"]]
        self.ledger.done(handles, dict(asked.body["facts"]))
        return Parcel({"done": handles})


def _ids(given: Any) -> tuple[Id, ...]:
    return tuple(canonical_id(each) for each in given)


def _united(groups: Iterable[Sequence[Id]]) -> tuple[Id, ...]:
    return tuple(dict.fromkeys(each for group in groups for each in group))
