"""Aggregation: Algorithm 1, line 17, and the server optimisers on top of it.

Sums run in the order of client ids, never in order of arrival, in float64, and are rounded once. A missing reply is an
error: an average over the clients that happened to answer would change the law of learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.draws import multiplicities
from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import ServerOptimizer
from fedforget.algorithm.ports import Aggregator, State, TrainReply
from fedforget.errors import TrainingFailed, shown

_BLOCK = 2**15  # weights at a time: their sums stay in the processor's cache

Tensors = Mapping[str, NDArray[np.generic]]


def average(slots: Sequence[Id], replies: Sequence[TrainReply]) -> dict[str, NDArray[np.generic]]:
    """Return θ^(t) = 1/K Σ_{k in P^(t)} θ_k^(t): a client that fills m of the K slots counts m times."""
    models: dict[Id, Tensors] = {reply.client: reply.model for reply in replies}
    counts = multiplicities(slots)
    for client in counts:
        if client not in models:
            raise TrainingFailed(
                f"client {shown(client)} did not answer", hint="give the same command again when it can"
            )
    first = models[next(iter(counts))]
    return {name: _average_tensor(name, counts, models) for name in first}


def _average_tensor(name: str, counts: Mapping[Id, int], models: Mapping[Id, Tensors]) -> NDArray[np.generic]:
    sample = models[next(iter(counts))][name]
    if not np.issubdtype(sample.dtype, np.floating):
        for client in counts:
            if not np.array_equal(models[client][name], sample):
                raise TrainingFailed(
                    f"the integer buffer {name!r} differs between clients, so there is no average of it",
                    hint="keep per-client counters out of the model, for instance BatchNorm(momentum=None)",
                )
        return sample.copy()
    flat: list[tuple[int, NDArray[Any]]] = [(count, np.ravel(models[c][name])) for c, count in counts.items()]
    slots, mean = sum(counts.values()), np.empty(sample.size, sample.dtype)
    for start in range(0, sample.size, _BLOCK):
        here = slice(start, start + _BLOCK)
        total = np.zeros(len(mean[here]), np.float64)
        for count, values in flat:
            total += values[here] if count == 1 else np.multiply(values[here], count, dtype=np.float64)
        mean[here] = total / slots
    return mean.reshape(sample.shape)


class TakeAverage:
    """FedAvg's server: the average is the next model."""

    def __call__(self, state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State:  # noqa: ARG002
        return State(average(slots, replies))


class FedAdam:
    """A server Adam on the pseudo-gradient Δ = average - model (Reddi et al., "Adaptive Federated Optimization", 2021).

    Its moments are part of the state and are rewound with it. Buffers are averaged, not stepped.
    """

    def __init__(self, settings: ServerOptimizer, parameters: frozenset[str]) -> None:
        self._settings = settings
        self._parameters = parameters

    def __call__(self, state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State:
        model = average(slots, replies)
        moments: dict[str, NDArray[np.float64]] = {}
        for name in sorted(self._parameters & model.keys()):
            model[name] = self._step(name, state, model[name], moments)
        return State(model, moments)

    def _step(
        self, name: str, state: State, mean: NDArray[np.generic], moments: dict[str, NDArray[np.float64]]
    ) -> NDArray[np.generic]:
        old, chosen = state.model[name].astype(np.float64), self._settings
        delta = mean.astype(np.float64) - old
        before = state.optimizer or {}
        zero = np.zeros_like(delta)
        first = chosen.beta1 * before.get(f"m/{name}", zero) + (1 - chosen.beta1) * delta
        second = chosen.beta2 * before.get(f"v/{name}", zero) + (1 - chosen.beta2) * delta * delta
        moments[f"m/{name}"], moments[f"v/{name}"] = first, second
        return np.asarray(old + chosen.lr * first / (np.sqrt(second) + chosen.tau)).astype(mean.dtype)


def aggregator(settings: ServerOptimizer, parameters: frozenset[str]) -> Aggregator:
    """Return the aggregator that the plan selects; ``parameters`` are the names that an optimiser may step."""
    return TakeAverage() if settings.name == "average" else FedAdam(settings, parameters)
