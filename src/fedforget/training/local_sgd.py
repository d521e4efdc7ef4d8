"""Local SGD on given batches: Algorithm 1, lines 10-13, with momentum, weight decay and FedProx's term.

A local round is a function of its starting model, its mini-batches and its random streams alone: the optimiser is
reset, dropout uses addressed streams, and one thread does the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedforget.algorithm.ids import Id
from fedforget.algorithm.plan import LocalOptimizer
from fedforget.algorithm.ports import BatchSource, FirstStep, LocalRound, SampleSource, Trained
from fedforget.errors import InvalidInput, NonFiniteLoss, TrainingFailed
from fedforget.training.convolutions import convolutional_front
from fedforget.training.dense import Gradient, Products, dense_tail
from fedforget.training.sample_cache import SampleCache, SharedSampleCache, StoredBatches
from fedforget.training.streams import start_stream
from fedforget.training.weights import PristineBuffers, Weights, copied, float_type, load_weights, views_of
from fedforget.training.witness import LocalModelChecksum

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
        self._parameters: list[Tensor] = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._has_batch_norm = any(isinstance(part, _BATCH_NORMS) for part in module.modules())
        self._pristine = pristine or PristineBuffers(module)
        self._data = data
        self._tail = dense_tail(module) if loss is None else None
        self._convolutions = convolutional_front(self._tail)
        floats = float_type(module)
        self._cache: SampleCache | SharedSampleCache | StoredBatches = (
            StoredBatches(data, floats) if isinstance(data, BatchSource) else SampleCache(data, floats)
        )
        self._checksum = LocalModelChecksum(module, self._parameters)

    def share(self, sizes: Mapping[Id, int], example: LocalRound) -> None:
        """Cache the clients' samples in memory that processes forked from this one share, if they are not already."""
        if not isinstance(self._cache, StoredBatches):
            self._cache = SharedSampleCache(self._data, float_type(self._module), sizes, example)

    def halfway_like(self, model: Weights) -> Weights | None:
        """Return the model and the velocities; None if the module has unstored buffers, which cannot be handed over."""
        if len(self._pristine):
            return None
        moving = self._parameters if self._settings.momentum else []
        return _handed_over(model, [parameter.detach() for parameter in moving])

    def train(self, work: LocalRound) -> Trained:
        """Train E steps from θ^(t-1) and return θ_k^(t)."""
        return self.train_part(work, 0, len(work.rows))

    def train_part(
        self, work: LocalRound, start: int, stop: int, halfway: Weights | None = None, into: Weights | None = None
    ) -> Trained:
        """Train the steps from ``start`` up to ``stop`` of a local round.

        ``halfway`` is the result of the earlier steps. The last part returns θ_k^(t). An earlier part returns what the
        next part needs, in ``into`` if given.
        """
        if halfway is None or self._settings.prox:
            load_weights(self._module, work.model)
        origin = [p.detach().clone() for p in self._parameters] if self._settings.prox else []
        velocities: list[Tensor] = []
        if halfway is not None:
            model, velocities = _taken_over(halfway)
            load_weights(self._module, model)
        self._pristine.restore()
        self._module.train()
        checksum, first_step = self._run_steps(work, range(start, stop), origin, velocities)
        outcome = views_of(self._module)
        _require_same_tensors(outcome, work)
        if stop < len(work.rows):
            return Trained(copied(_handed_over(outcome, velocities), into), checksum, first_step)
        if not all(map(_is_finite, self._parameters)):
            raise self._not_finite(work, stop - 1)
        return Trained(copied(outcome, into), checksum, first_step)

    @torch.no_grad()
    def _run_steps(
        self, work: LocalRound, steps: range, origin: list[Tensor], velocities: list[Tensor]
    ) -> tuple[bytes | None, FirstStep]:
        """Run some steps. Return what a witness holds of them: the checksum after its last step, and its first step."""
        checksum: bytes | None = None
        first_step: FirstStep = ()
        part = slice(steps.start, steps.stop)
        cut = work if len(steps) == len(work.rows) else replace(work, rows=work.rows[part], streams=work.streams[part])
        for index, (x, y), stream in zip(steps, self._cache.batches(cut), cut.streams, strict=True):
            if self._has_batch_norm and len(x) == 1:
                raise TrainingFailed(
                    f"BatchNorm on a batch of one ({_where(work, index)})",
                    hint="use a larger batch size, give every client two samples, or use GroupNorm",
                )
            loss, gradients = self._loss_and_gradients(x, y, stream)
            value = loss.item()
            if not math.isfinite(value):
                raise self._not_finite(work, index)
            self._step(gradients, origin, velocities)
            if index + 1 == work.witness_after:
                checksum = self._checksum.after(value)
            if index == 0 and work.witness_after:
                first_step = self._checksum.first_step(value, work.model)
        return checksum, first_step

    def _loss_and_gradients(self, x: Tensor, y: Tensor, stream: bytes) -> tuple[Tensor, Sequence[Gradient | None]]:
        if self._convolutions is not None and self._convolutions.fits(x, y):
            return self._convolutions.loss_and_gradients(x, y)
        tail, module = self._tail, self._module
        if tail is None or tail.has_front:  # otherwise no layer is random
            start_stream(stream)
        if tail is not None:
            if tail.has_front:
                with torch.enable_grad():
                    x = tail.front(x)
            if tail.fits(x, y):
                return tail.loss_and_gradients(x, y)
            module = tail.after
        with torch.enable_grad():
            loss = self._loss(module(x), y)
        _require_one_number(loss)
        return loss, torch.autograd.grad(loss, self._parameters, allow_unused=True)

    def _step(self, found: Sequence[Gradient | None], start: list[Tensor], velocities: list[Tensor]) -> None:
        """Update all parameters; those of large layers block by block."""
        first = not velocities
        if first and self._settings.momentum:
            velocities += map(torch.empty_like, self._parameters)
        columns = self._parameters, start, velocities
        whole: list[Tensor] = []
        places: list[int] = []
        for place, gradient in enumerate(found):
            if isinstance(gradient, Products):
                for rows, block in gradient.blocks():
                    self._move([block], *([column[place][rows]] if column else [] for column in columns), first=first)
            else:
                places.append(place)
                whole.append(torch.zeros_like(self._parameters[place]) if gradient is None else gradient)
        if len(places) < len(found):
            self._move(whole, *([column[place] for place in places if column] for column in columns), first=first)
        else:
            self._move(whole, *columns, first=first)

    def _move(
        self,
        gradients: list[Tensor],
        parameters: list[Tensor],
        start: list[Tensor],
        velocities: list[Tensor],
        *,
        first: bool,
    ) -> None:
        """Update θ ← θ - η·v with v ← momentum·v + g + weight_decay·θ + prox·(θ - θ_start)."""
        chosen = self._settings
        if chosen.weight_decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=chosen.weight_decay))
        if chosen.prox:
            away = torch._foreach_sub(parameters, start)
            gradients = list(torch._foreach_add(gradients, away, alpha=chosen.prox))
        if chosen.momentum:
            if first:
                torch._foreach_copy_(velocities, gradients)
            else:
                torch._foreach_mul_(velocities, chosen.momentum)
                torch._foreach_add_(velocities, gradients)
            gradients = velocities
        torch._foreach_add_(parameters, gradients, alpha=-chosen.lr)

    def _not_finite(self, work: LocalRound, index: int) -> NonFiniteLoss:
        return NonFiniteLoss(
            f"the loss became NaN or infinite at {_where(work, index)}",
            hint="the round was not committed; look at its samples and forget the faulty one with "
            '`--basis model-informed` (in Python basis="model-informed"), because the draw revealed it; '
            "or lower the learning rate in a new run",
        )


def _require_one_number(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise InvalidInput(
            f"the loss function returns {found}, not one number",
            hint="return a tensor with the mean over the batch (reduction='mean')",
        )


def _where(work: LocalRound, index: int) -> str:
    return f"client {work.client}, round {work.round}, step {index + 1}"


def _require_same_tensors(outcome: Weights, work: LocalRound) -> None:
    """Refuse a module that changed a buffer's type or shape: its results would depend on earlier calls."""
    for name, array in outcome.items():
        if (array.shape, array.dtype) != (work.model[name].shape, work.model[name].dtype):
            raise InvalidInput(
                f"training client {work.client} changed the type or the shape of the model's tensor {name!r}",
                hint="let `forward` change buffers in place",
            )


def _is_finite(parameter: Tensor) -> bool:
    return math.isfinite(parameter.sum().item()) or bool(parameter.isfinite().all())


def _handed_over(model: Weights, velocities: Sequence[Tensor]) -> Weights:
    moving = {f"velocity/{place}": velocity.numpy() for place, velocity in enumerate(velocities)}
    return {**{f"model/{name}": weights for name, weights in model.items()}, **moving}


def _taken_over(halfway: Weights) -> tuple[Weights, list[Tensor]]:
    model = {key.removeprefix("model/"): weights for key, weights in halfway.items() if key.startswith("model/")}
    moving = [torch.from_numpy(values.copy()) for key, values in halfway.items() if key.startswith("velocity/")]
    return model, moving
