"""What a node of a simulation does: computes local rounds of any client, and keeps nothing between them.

The module, the loss and the data are built once per process. Of a client's samples a node reads those that the round
draws, and compares each with its content digest.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from fedforget.algorithm.ids import Id
from fedforget.algorithm.ports import Trained
from fedforget.data.federated import FederatedData
from fedforget.federation import local_rounds
from fedforget.federation.learner_failures import as_training_failed
from fedforget.federation.local_rounds import NodeWork
from fedforget.federation.parcels import Parcel
from fedforget.session.engine import Model
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.environment import arithmetic_digest
from fedforget.training.local_sgd import TorchLearner
from fedforget.training.streams import own_streams
from fedforget.training.weights import float_type

Array = NDArray[Any]
_CLIENTS_IN_MEMORY = 64


class Samples(Protocol):
    """The samples of clients, as ``FederatedData`` and ``OwnSamples`` hold them."""

    def sample(self, client: Id, sample: Id) -> tuple[Array, Array]: ...

    def require_unchanged(self, client: Id, known: Mapping[Id, bytes]) -> None: ...


class OwnSamples:
    """The samples that a user's function returns for a client. Those of the latest clients stay in memory."""

    def __init__(self, data: Callable[[Any], Any]) -> None:
        self._data = data
        self._clients: OrderedDict[Id, FederatedData] = OrderedDict()

    def sample(self, client: Id, sample: Id) -> tuple[Array, Array]:
        return self._of(client).sample(client, sample)

    def require_unchanged(self, client: Id, known: Mapping[Id, bytes]) -> None:
        self._of(client).require_unchanged(client, known)

    def _of(self, client: Id) -> FederatedData:
        if client in self._clients:
            self._clients.move_to_end(client)
        else:
            self._clients[client] = FederatedData({client: self._data(client)})
            if len(self._clients) > _CLIENTS_IN_MEMORY:
                self._clients.popitem(last=False)
        return self._clients[client]


@dataclass(frozen=True, slots=True)
class Built:
    """What a node computes with."""

    model: Model
    samples: Samples


class NodeWorker:
    """Answers local rounds. ``build`` makes what a problem is computed with; only the latest problem is kept."""

    def __init__(self, build: Callable[[Mapping[str, Any]], Built]) -> None:
        self._build = build
        self._kept: tuple[str, Built] | None = None

    def __call__(self, parcel: Parcel) -> Parcel:
        asked = local_rounds.work_in(parcel)
        with as_training_failed(asked.work):
            trained = self._train(asked)
        return local_rounds.answer(trained, arithmetic_digest())

    def _train(self, asked: NodeWork) -> Trained:
        built = self._built(asked.problem)
        model = built.model
        with fixed_arithmetic(float_type(model.module)), own_streams():
            if asked.contents:
                built.samples.require_unchanged(asked.work.client, asked.contents)
            # A learner caches the samples of its clients, so this one lives for a single round.
            learner = TorchLearner(model.module, built.samples, asked.local, model.loss, model.pristine)
            return learner.train(asked.work)

    def _built(self, problem: Mapping[str, Any]) -> Built:
        key = json.dumps(problem, sort_keys=True)
        if self._kept is None or self._kept[0] != key:
            torch.set_num_threads(1)
            self._kept = key, self._build(problem)
        return self._kept[1]
