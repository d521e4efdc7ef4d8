"""Gradients of small dense networks, without a tape.

A step of a small network is mostly autograd's book-keeping. Where a module is nothing but linear layers with ReLU
between them, under cross-entropy, its gradients are a few matrix products: those that autograd would run, in the same
order, so that every bit is the same (tested), in half the time. Any other module goes through autograd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

_nll = torch.ops.aten.nll_loss_forward.default
_nll_slope = torch.ops.aten.nll_loss_backward.default
_log_softmax_slope = torch.ops.aten._log_softmax_backward_data.default
_relu_slope = torch.ops.aten.threshold_backward.default
_MEAN, _IGNORED = 1, -100  # cross_entropy's defaults: reduction and ignored class
_ROWS = 2  # dimensions of a batch of vectors


class DenseNetwork:
    """The weights of a module that ``dense_network`` knows; they are the module's own, not copies."""

    def __init__(self, layers: Sequence[nn.Linear], *, flatten: bool) -> None:
        self._layers = [(layer.weight.detach(), layer.weight.detach().t(), layer.bias.detach()) for layer in layers]
        self._flatten = flatten
        self._one = torch.ones((), dtype=layers[0].weight.dtype)

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """Whether these are a batch of vectors and of class numbers; else cross-entropy means something else."""
        vectors = x.dim() >= _ROWS if self._flatten else x.dim() == _ROWS
        return vectors and x.dtype == self._one.dtype and y.dim() == 1 and y.dtype == torch.int64

    def loss_and_gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The mean cross-entropy, and its gradients in the order of the module's parameters.

        To be called without gradients.
        """
        inputs = [x.flatten(1) if self._flatten else x]
        *hidden, (_, turned, bias) = self._layers
        for _, its_turned, its_bias in hidden:
            inputs.append(torch.relu(torch.addmm(its_bias, inputs[-1], its_turned)))
        scores = torch.log_softmax(torch.addmm(bias, inputs[-1], turned), 1)
        loss, total = _nll(scores, y, None, _MEAN, _IGNORED)
        slope = _nll_slope(self._one, scores, y, None, _MEAN, _IGNORED, total)
        slope = _log_softmax_slope(slope, scores, 1, scores.dtype)
        gradients: list[Tensor] = []
        for place in range(len(hidden), -1, -1):
            gradients += slope.sum(0), slope.t().mm(inputs[place])
            if place:
                slope = _relu_slope(slope.mm(self._layers[place][0]), inputs[place], 0)
        gradients.reverse()
        return loss, gradients


def dense_network(module: nn.Module) -> DenseNetwork | None:
    """The module as a dense network, if it is one and nothing hangs on to it: flatten?, (linear, ReLU)*, linear."""
    parts = list(_parts(module))
    flatten = bool(parts) and type(parts[0]) is nn.Flatten and (parts[0].start_dim, parts[0].end_dim) == (1, -1)
    layers = parts[1:] if flatten else parts
    linear = [part for part in layers[::2] if type(part) is nn.Linear]
    between = [part for part in layers[1::2] if type(part) is nn.ReLU]
    alternates = len(layers) % 2 == 1 and len(linear) + len(between) == len(layers)
    if not alternates or any(map(_is_special, (module, *module.modules()))):
        return None
    if any(each.bias is None for each in linear) or len({id(part) for part in linear}) < len(linear):
        return None
    parameters = list(module.parameters())
    if len(parameters) != 2 * len(linear) or not all(map(_is_plain, parameters)):
        return None
    if len({parameter.dtype for parameter in parameters}) > 1:
        return None
    if any(before.out_features != after.in_features for before, after in pairwise(linear)):
        return None
    return DenseNetwork(linear, flatten=flatten)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """A chain of modules, with chains within it laid out; a module is a chain of one."""
    if type(module) is nn.Sequential:
        for child in module.children():
            yield from _parts(child)
    else:
        yield module


def _is_special(module: nn.Module) -> bool:
    """Whether calling it does more than its class says: hooks, or a method put on the object."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks) or bool({"forward", "__call__"} & vars(module).keys())


def _is_plain(parameter: nn.Parameter) -> bool:
    return (
        type(parameter) is nn.Parameter
        and parameter.requires_grad
        and parameter.dtype in (torch.float32, torch.float64)
        and parameter.device.type == "cpu"
        and not parameter._backward_hooks
    )
