"""Gradients of the dense layers at the end of a network, without autograd.

A step of a small network mostly runs autograd's book-keeping. A step of a large dense layer mostly writes and reads its
gradient. If a module is a chain that ends in linear layers with ReLU between them, and the loss is cross-entropy, these
gradients are a few matrix products. This module runs the products that autograd would run, in the same order, so the
results are bitwise equal (tested). It computes the gradient of a large layer block by block during the step, so the
blocks stay in the processor's cache. ``convolutions`` does the
same for convolutions before them. Other layers before, and all other modules, use autograd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

_nll = torch.ops.aten.nll_loss_forward.default
_nll_slope = torch.ops.aten.nll_loss_backward.default
_log_softmax_slope = torch._log_softmax_backward_data
_relu_slope = torch.ops.aten.threshold_backward.default
_MEAN, _IGNORED = 1, -100  # cross_entropy's defaults: reduction and ignored class
_ROWS = 2  # dimensions of a batch of vectors
_PAIR = 2  # a linear layer and its ReLU
_BLOCK = 2**17  # weights per block
_EVEN = 16  # blocks start at multiples of 16 rows and have at least 16: others are often summed in a different order
_LARGE = 2**18  # weights; a larger gradient is computed in blocks


@dataclass(frozen=True, slots=True)
class Products:
    """The gradient of a large layer's weights as two factors: the sum over a mini-batch of slope times input."""

    slope: Tensor
    inputs: Tensor
    at_once: int  # weights

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row blocks in a reused buffer."""
        turned, rows, width = self.slope.t(), self.slope.shape[1], self.inputs.shape[1]
        size = -(-self.at_once // (width * _EVEN)) * _EVEN
        edges = [0, *range(size, rows - _EVEN + 1, size), rows]
        room = self.inputs.new_empty(min(size + _EVEN - 1, rows), width)
        for start, stop in pairwise(edges):
            yield slice(start, stop), torch.mm(turned[start:stop], self.inputs, out=room[: stop - start])


@cache
def _comes_in_blocks(batch: int, rows: int, width: int, dtype: torch.dtype, at_once: int) -> bool:
    """Return whether blockwise products equal the whole product on this processor, which selects its loops by shape."""
    slope = torch.arange(1, batch * rows + 1, dtype=dtype).sin_().view(batch, rows)  # values with full mantissas
    inputs = torch.arange(2, batch * width + 2, dtype=dtype).sin_().view(batch, width)
    whole = slope.t().mm(inputs)
    return all(torch.equal(whole[here], block) for here, block in Products(slope, inputs, at_once).blocks())


Gradient = Tensor | Products


def _large_gradient(slope: Tensor, inputs: Tensor) -> Gradient:
    (batch, rows), width = slope.shape, inputs.shape[1]
    if _comes_in_blocks(batch, rows, width, slope.dtype, _BLOCK):
        return Products(slope, inputs, _BLOCK)
    return slope.t().mm(inputs)


class DenseTail:
    """The dense layers at the end of a module, and the layers before. It shares the module's weights."""

    def __init__(self, chain: Sequence[nn.Module], first: int, *, flatten: bool) -> None:
        layers = [part for part in chain[first:] if isinstance(part, nn.Linear)]
        front = chain[: first - flatten]
        self.front, self.after = nn.Sequential(*front), nn.Sequential(*chain[len(front) :])
        self.has_front = bool(front)
        self._learning = [weight for part in front for weight in part.parameters() if weight.requires_grad]
        self._layers = [(layer.weight.detach(), layer.weight.detach().t(), layer.bias.detach()) for layer in layers]
        self._large = [layer.weight.numel() >= _LARGE for layer in layers]
        self.flattens = flatten
        self._one = torch.ones((), dtype=layers[0].weight.dtype)

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """Return whether this is a mini-batch of vectors with class indices: cross-entropy has other forms too."""
        vectors = x.dim() >= _ROWS if self.flattens else x.dim() == _ROWS
        return vectors and x.dtype == self._one.dtype and y.dim() == 1 and y.dtype == torch.int64

    def loss_and_gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Gradient | None]]:
        """Return the mean cross-entropy, and its gradients in the order of the module's trainable parameters.

        ``x`` is the output of ``front``, with its autograd graph. Call under ``torch.no_grad``.
        """
        if not x.requires_grad:
            loss, gradients, _ = self._backward(x, y)
            return loss, [*(None for _ in self._learning), *gradients]
        loss, gradients, slope = self.loss_gradients_and_slope(x.detach(), y)
        return loss, [*torch.autograd.grad(x, self._learning, slope, allow_unused=True), *gradients]

    def loss_gradients_and_slope(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Gradient | None], Tensor]:
        """Return the mean cross-entropy, the gradients of the tail's parameters, and the slope at its input."""
        loss, gradients, slope = self._backward(x, y)
        first = x.flatten(1) if self.flattens else x
        return loss, gradients, _passed_back(slope, self._layers[0][0], first).view_as(x)

    def _backward(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Gradient | None], Tensor]:
        """Return the loss, the gradients, and the slope at the first layer's output."""
        inputs = [x.flatten(1) if self.flattens else x]
        *hidden, (_, turned, bias) = self._layers
        for _, its_turned, its_bias in hidden:
            inputs.append(torch.relu(torch.addmm(its_bias, inputs[-1], its_turned)))
        scores = torch.log_softmax(torch.addmm(bias, inputs[-1], turned), 1)
        loss, total = _nll(scores, y, None, _MEAN, _IGNORED)
        slope = _nll_slope(self._one, scores, y, None, _MEAN, _IGNORED, total)
        slope = _log_softmax_slope(slope, scores, 1, scores.dtype)
        gradients: list[Gradient | None] = []
        for place in range(len(hidden), -1, -1):
            its_input = inputs[place]
            gradients.append(slope.sum(0))
            gradients.append(_large_gradient(slope, its_input) if self._large[place] else slope.t().mm(its_input))
            if place:
                slope = _relu_slope(_passed_back(slope, self._layers[place][0], its_input), its_input, 0)
        gradients.reverse()
        return loss, gradients, slope


def _passed_back(slope: Tensor, weights: Tensor, inputs: Tensor) -> Tensor:
    """Return the slope at a layer's inputs, in the memory layout of the inputs, as autograd does."""
    if inputs.stride() == (1, len(inputs)):
        return weights.t().mm(slope.t()).t()
    return slope.mm(weights)


def dense_tail(module: nn.Module) -> DenseTail | None:
    """Return the longest tail flatten?, (linear, ReLU)*, linear; None if hooks or tied weights rule it out."""
    chain = list(_parts(module))
    if not chain or not _is_usable(chain[-1]):
        return None
    hooked = nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    if hooked or any(map(_is_special, (module, *module.modules()))):
        return None
    first = len(chain) - 1
    while first >= _PAIR and type(chain[first - 1]) is nn.ReLU and _joins(chain[first - _PAIR], chain[first]):
        first -= _PAIR
    expected = [weight for part in chain for weight in part.parameters() if weight.requires_grad]
    learning = [weight for weight in module.parameters() if weight.requires_grad]
    if list(map(id, expected)) != list(map(id, learning)):  # tied weights, or parameters outside the chain
        return None
    return DenseTail(chain, first, flatten=first > 0 and _is_flatten(chain[first - 1]))


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a chain, with nested chains flattened; any other module is a chain of one."""
    if type(module) is nn.Sequential:
        for child in module:  # children() would skip a layer that is used twice
            yield from _parts(child)
    else:
        yield module


def _is_flatten(part: nn.Module) -> bool:
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)


def _is_usable(part: nn.Module) -> bool:
    weights = list(part.parameters())
    return (
        type(part) is nn.Linear
        and len(weights) == 2  # noqa: PLR2004 (weight and bias)
        and all(map(is_plain, weights))
        and len({each.dtype for each in weights}) == 1
    )


def _joins(part: nn.Module, after: nn.Module) -> bool:
    return _is_usable(part) and part.out_features == after.in_features and part.weight.dtype == after.weight.dtype


def _is_special(module: nn.Module) -> bool:
    """Return whether a call may run other code than PyTorch's: a custom class, hooks, or a patched method."""
    if not type(module).__module__.startswith("torch.nn."):
        return True
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks) or bool({"forward", "__call__"} & vars(module).keys())


def is_plain(parameter: nn.Parameter) -> bool:
    return (
        type(parameter) is nn.Parameter
        and parameter.requires_grad
        and parameter.dtype in (torch.float32, torch.float64)
        and parameter.device.type == "cpu"
        and parameter.is_contiguous()
        and not parameter._backward_hooks
    )
