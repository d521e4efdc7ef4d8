"""Local SGD on given batches: Algorithm 1, lines 10-13, with momentum, weight decay and FedProx's term.

A local round is a function of the model it starts from, of the batches and streams it is given, and of nothing else:
the optimiser starts afresh, dropout comes from addressed streams, and one thread does the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import LocalOptimizer
from fedforget.algorithm.ports import LocalRound, SampleSource
from fedforget.errors import FedForgetError, NonFiniteLoss, TrainingFailed
from fedforget.training.shelves import SharedShelves, Shelves
from fedforget.training.streams import start_stream
from fedforget.training.weights import PristineBuffers, Weights, float_type, load_weights, weights_of

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

Loss = Callable[[Tensor, Tensor], Tensor]


class TorchLearner:
    """Trains any ``nn.Module`` on any federated data."""

    def __init__(
        self,
        module: nn.Module,
        data: SampleSource,
        settings: LocalOptimizer,
        loss: Loss | None = None,
        pristine: PristineBuffers | None = None,
    ) -> None:
        self._module = module
        self._settings = settings
        self._loss = loss or nn.functional.cross_entropy
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        self._has_batch_norm = any(isinstance(part, _BATCH_NORMS) for part in module.modules())
        self._pristine = pristine or PristineBuffers(module)
        self._data = data
        self._shelves = Shelves(data, float_type(module))

    def share(self, sizes: Mapping[Id, int], example: LocalRound) -> None:
        """Lay the clients' samples out in memory that processes forked from this one share."""
        self._shelves = SharedShelves(self._data, float_type(self._module), sizes, example)

    def train(self, work: LocalRound) -> Weights:
        """θ_k^(t) after E steps from θ^(t-1)."""
        load_weights(self._module, work.model)
        self._pristine.restore()
        self._module.train()
        try:
            self._run_steps(work)
        except FedForgetError:
            raise
        except Exception as error:
            raise TrainingFailed(
                f"client {work.client} failed in round {work.round}: {type(error).__name__}: {error}",
                hint="correct the model or the data and give the same command again",
            ) from error
        weights = weights_of(self._module)
        if not all(np.isfinite(weights[name]).all() for name in self._trained):
            raise self._not_finite(work, len(work.batches) - 1)
        return weights

    def _run_steps(self, work: LocalRound) -> None:
        start = [p.detach().clone() for p in self._parameters] if self._settings.prox else []
        velocities: list[Tensor] = []
        for index, (batch, stream) in enumerate(zip(work.batches, work.streams, strict=True)):
            if self._has_batch_norm and len(batch) == 1:
                raise TrainingFailed(
                    f"BatchNorm on a batch of one (client {work.client}, round {work.round}, step {index + 1})",
                    hint="use a larger batch size, give every client two samples, or use GroupNorm",
                )
            start_stream(stream)
            x, y = self._shelves.batch(work, index)
            loss = self._loss(self._module(x), y)
            if not math.isfinite(loss.item()):
                raise self._not_finite(work, index)
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            with torch.no_grad():
                self._step(gradients, start, velocities)

    def _step(self, gradients: tuple[Tensor | None, ...], start: list[Tensor], velocities: list[Tensor]) -> None:
        """θ ← θ - η·v with v ← momentum·v + g + weight_decay·θ + prox·(θ - θ_start)."""
        chosen, first = self._settings, not velocities
        for place, (parameter, found) in enumerate(zip(self._parameters, gradients, strict=True)):
            gradient = torch.zeros_like(parameter) if found is None else found
            if chosen.weight_decay:
                gradient = gradient.add(parameter, alpha=chosen.weight_decay)
            if chosen.prox:
                gradient = gradient.add(parameter - start[place], alpha=chosen.prox)
            if chosen.momentum:
                if first:
                    velocities.append(gradient.clone())
                else:
                    velocities[place].mul_(chosen.momentum).add_(gradient)
                gradient = velocities[place]
            parameter.add_(gradient, alpha=-chosen.lr)

    def _not_finite(self, work: LocalRound, index: int) -> NonFiniteLoss:
        return NonFiniteLoss(
            f"the loss became NaN or infinite at client {work.client}, round {work.round}, step {index + 1}",
            hint="the round was not committed; look at its samples, forget it, or lower the learning rate in a new run",
        )
