"""An open client: it answers the server's messages. The ClientApp opens one for each message."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import LocalLearner, LocalRound, Trained
from fedforget.client_side.directory import OpenDirectory, writing
from fedforget.client_side.own_ledger import OwnEpoch, OwnLedger
from fedforget.client_side.own_requests import OwnRequests
from fedforget.client_side.rules import Here
from fedforget.data.client_data import ClientData
from fedforget.disk.files import path_of
from fedforget.errors import DataChanged, FedForgetError, InvalidInput, shown
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.federation.party import ClientParty
from fedforget.federation.signing import sign
from fedforget.store.plan_file import PlanFile
from fedforget.training.environment import numeric_environment

log = logging.getLogger("fedforget")

# Stands in before the plan is known; messages that need a plan are refused.
_UNUSED = Plan(clients_per_round=1, batch_size=1, local_steps=1, rounds=1)
_BEFORE_PLAN = {parcels.PRESENCE, parcels.PLAN}


@dataclass(frozen=True, slots=True)
class Learning:
    """A learner for a client's rounds, with the names of the module's parts and of the loss."""

    learner: LocalLearner
    names: Mapping[str, str] = field(default_factory=dict)  # training.identity.parts_of
    environment: Callable[[], Mapping[str, str]] = numeric_environment


LearningOf = Callable[["OpenClient"], Learning]
Fits = Callable[[PlanFile], None]


def _anything_fits(_: PlanFile) -> None: ...


class OpenClient:
    """A client whose state directory this process holds."""

    def __init__(self, state: OpenDirectory) -> None:
        self._state = state

    @property
    def client(self) -> Id:
        return self._state.client

    @property
    def plan_file(self) -> PlanFile | None:
        """The run's plan, with the model's settings; None if the server has not sent it yet."""
        return self._state.plan()

    @property
    def run(self) -> str | None:
        """The id of the run that the client takes part in; None before the first contact."""
        found = self._state.record.value("run")
        return None if found is None else str(found)

    def checked(self, samples: Any) -> CheckedSamples:
        """Return the client's samples (a mapping of id → (x, y)) for its learner: each is compared with the book."""
        return CheckedSamples(self.client, ClientData(self.client, samples), self._state.book.contents())

    def answer(self, asked: Parcel, learning: LearningOf, fits: Fits = _anything_fits) -> Parcel:
        """Carry out a message and return the signed answer. ``learning`` is called only to compute.

        ``fits`` raises an error if the samples cannot be trained under a plan, before the client keeps it.
        """
        on_use = _OnUse(lambda: learning(self))
        run, file = self.run or str(asked.body.get("run")), self.plan_file
        problem = self._problem_before(asked, fits) if file is None else None
        if problem is not None:
            return sign(self._state.key(), asked, Parcel({"client": self.client, **parcels.failure(problem).body}))
        return self._party(on_use, run, _UNUSED if file is None else file.plan).answer(asked)

    def _problem_before(self, asked: Parcel, fits: Fits) -> FedForgetError | None:
        """Return why a client without a plan cannot do what a message asks."""
        kind = asked.body.get("kind")
        if kind not in _BEFORE_PLAN:
            return InvalidInput(f"client {shown(self.client)} has no plan yet", hint="the server sends it first")
        if kind == parcels.PLAN:
            with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError):  # refused when it is kept
                given = PlanFile.decode(str(asked.body["plan"]).encode())
                try:
                    fits(given)
                except FedForgetError as error:
                    return error
        return None

    def party(self, learning: Learning, run: str, plan: Plan) -> ClientParty:
        """Return the party of this client in a run, under its plan."""
        return self._party(_OnUse(lambda: learning), run, plan)

    def _party(self, learning: _OnUse, run: str, plan: Plan) -> ClientParty:
        state = self._state
        ledger = OwnLedger(state, learning.here)
        return ClientParty(
            run, self.client, plan, state.memory, learning, OwnEpoch(state), ledger=ledger, key=state.key()
        )


@contextlib.contextmanager
def open_client(state_dir: str | Path) -> Iterator[OpenClient]:
    """Open a client's state directory for the block, and keep other processes out.

    First finishes what a crash interrupted, and accepts requests from the inbox.
    """
    with writing(path_of(state_dir, "a state directory")) as state:
        requests = OwnRequests(state)
        requests.apply()
        requests.accept_inbox()
        yield OpenClient(state)


class _OnUse:
    """A learner that is built on first use."""

    def __init__(self, make: Callable[[], Learning]) -> None:
        self._make, self._made = make, None

    def _learning(self) -> Learning:
        if self._made is None:
            self._made = self._make()  # type: ignore[assignment]
        return self._made  # type: ignore[return-value]

    def train(self, work: LocalRound) -> Trained:
        return self._learning().learner.train(work)

    def here(self) -> Here:
        found = self._learning()
        return Here(found.environment(), found.names)


class CheckedSamples:
    """A ``SampleSource`` that refuses a sample whose content is not the recorded one.

    Its errors go to the server, so they name no sample. The client's own log does.
    """

    def __init__(self, client: Id, data: ClientData, known: Mapping[Id, bytes]) -> None:
        self._client, self._data, self._known = client, data, known

    def sample(self, client: Id, sample: Id) -> tuple[NDArray[Any], NDArray[Any]]:
        if client != self._client:
            raise DataChanged(
                f"client {shown(client)} is not client {shown(self._client)}", hint="check its node's configuration"
            )
        try:
            found, content = self._data.sample(sample), self._data.content(sample)
        except FedForgetError as error:
            raise without_names(self._client, error) from error
        if content != self._known.get(sample):
            log.error("the content of %s is not the recorded one", self._data.named(sample))
            raise DataChanged(
                f"the content of a sample of client {shown(client)} is not the recorded one",
                hint="the log of its node names it: restore it, or run `fedforget client sync` there: changed content "
                "counts as another sample",
            )
        return found


def without_names(client: Id, error: FedForgetError) -> FedForgetError:
    """Return what the server may read of an error about a client's data. All of it goes to the client's own log."""
    log.error("%s (%s)", error.message, error.hint)
    return type(error)(
        f"the data of client {shown(client)} cannot be read at its node",
        hint="the log of its node says why; a module of its own must be where `fedforget client init` found it, or on "
        "PYTHONPATH",
    )
