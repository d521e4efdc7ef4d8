"""Gradients of the convolutions at the start of a network, without autograd.

A stage is a convolution, a ReLU and an optional max-pooling. This module runs the operations that autograd would run on
a chain of stages, so the results are bitwise equal (tested). Some run on another memory layout. PyTorch pools several
times faster with channels last, and a maximum has no rounding. The weight gradient of a layer with one input channel is
three times as fast with channels last. Each process tries once per shape whether its bits are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedforget.training.dense import DenseTail, Gradient, is_plain

_convolve = torch.ops.aten.convolution.default
_convolve_back = torch.ops.aten.convolution_backward.default
_pool = torch.ops.aten.max_pool2d_with_indices.default
_pool_back = torch.ops.aten.max_pool2d_with_indices_backward.default
_relu_slope = torch.ops.aten.threshold_backward.default
_LAST = torch.channels_last
_IMAGES = 4  # dimensions of a batch of images
_Pair = tuple[int, int]
# stride, padding, dilation, transposed, output padding, groups
_Geometry = tuple[_Pair, _Pair, _Pair, bool, _Pair, int]


@dataclass(frozen=True, slots=True)
class _Pass:
    """What the backward pass of a stage needs of its forward pass."""

    inputs: Tensor
    hidden: Tensor  # after the ReLU; with channels last if it is pooled
    pooled: Tensor | None
    places: Tensor | None  # of the maxima


@dataclass(frozen=True, slots=True)
class _Stage:
    weight: Tensor
    bias: Tensor
    geometry: _Geometry
    pool: _Pair | None

    def forward(self, x: Tensor) -> tuple[Tensor, _Pass]:
        """Return the stage's output."""
        hidden = _convolve(x, self.weight, self.bias, *self.geometry).relu_()
        if self.pool is None:
            return hidden, _Pass(x, hidden, None, None)
        hidden = hidden.contiguous(memory_format=_LAST)
        pooled, places = _pool(hidden, self.pool, self.pool)
        return pooled.contiguous(), _Pass(x, hidden, pooled, places)

    def backward(self, slope: Tensor, done: _Pass, *, first: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slope at the inputs, which is undefined for the first stage, and the two gradients."""
        if done.pooled is None:
            slope = _relu_slope(slope, done.hidden, 0)
        else:
            # A maximum is positive exactly if its place is, so the ReLU's slope is taken where there is less of it.
            slope = _relu_slope(slope.contiguous(memory_format=_LAST), done.pooled, 0)
            slope = _pool_back(slope, done.hidden, self.pool, self.pool, (0, 0), (1, 1), False, done.places)
        inputs = done.inputs
        if first and _is_faster_with_channels_last(inputs, self.weight, self.geometry):
            slope, inputs = slope.contiguous(memory_format=_LAST), _single_channel_last(inputs)
        else:
            slope = slope.contiguous()
        return _gradients(slope, inputs, self.weight, self.geometry, wanted=(not first, True, True))


class ConvolutionalFront:
    """The stages before the dense tail of a module. It shares the module's weights."""

    def __init__(self, stages: Sequence[_Stage], tail: DenseTail) -> None:
        self._stages, self._tail = stages, tail
        self._dtype = stages[0].weight.dtype

    def fits(self, x: Tensor, y: Tensor) -> bool:
        """Return whether this is a mini-batch of images in the usual layout, with class indices."""
        usual = x.dim() == _IMAGES and x.stride() == (prod(x.shape[1:]), prod(x.shape[2:]), x.shape[3], 1)
        return usual and x.dtype == self._dtype and len(x) > 0 and self._tail.fits(x, y)

    def loss_and_gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Gradient | None]]:
        """Return the mean cross-entropy, and its gradients in the order of the module's parameters.

        Call under ``torch.no_grad``.
        """
        passes: list[_Pass] = []
        for stage in self._stages:
            x, done = stage.forward(x)
            passes.append(done)
        loss, dense, slope = self._tail.loss_gradients_and_slope(x, y)
        gradients: list[Gradient | None] = []
        for place in reversed(range(len(passes))):
            slope, weight, bias = self._stages[place].backward(slope, passes[place], first=not place)
            gradients += bias, weight
        return loss, [*reversed(gradients), *dense]


def convolutional_front(tail: DenseTail | None) -> ConvolutionalFront | None:
    """Return the layers before the tail if they are (convolution, ReLU, pooling?)+; None otherwise."""
    if tail is None or not tail.flattens:
        return None
    layers = deque(tail.front)
    stages: list[_Stage] = []
    while layers:
        conv, relu = layers.popleft(), layers.popleft() if layers else None
        if not isinstance(conv, nn.Conv2d) or not _is_usable(conv) or type(relu) is not nn.ReLU:
            return None
        pool = layers.popleft() if layers and isinstance(layers[0], nn.MaxPool2d) else None
        if pool is not None and not _lies_side_by_side(pool):
            return None
        stages.append(_stage_of(conv, pool))
    return ConvolutionalFront(stages, tail) if stages else None


def _stage_of(conv: nn.Conv2d, pool: nn.Module | None) -> _Stage:
    assert conv.bias is not None  # noqa: S101 (a usable layer has one)
    geometry: Any = (conv.stride, conv.padding, conv.dilation, False, (0, 0), conv.groups)
    size = _pair(pool.kernel_size) if isinstance(pool, nn.MaxPool2d) else None
    return _Stage(conv.weight.detach(), conv.bias.detach(), geometry, size)


def _is_usable(conv: nn.Conv2d) -> bool:
    weights = list(conv.parameters())
    return (
        type(conv) is nn.Conv2d
        and len(weights) == 2  # noqa: PLR2004 (weight and bias)
        and all(map(is_plain, weights))
        and conv.padding_mode == "zeros"
        and isinstance(conv.padding, tuple)
    )


def _lies_side_by_side(pool: nn.Module) -> bool:
    """Return whether the windows of a pooling do not overlap: a place then gets the slope of one window."""
    return (
        type(pool) is nn.MaxPool2d
        and _pair(pool.stride) == _pair(pool.kernel_size)
        and _pair(pool.padding) == (0, 0)
        and _pair(pool.dilation) == (1, 1)
        and not (pool.ceil_mode or pool.return_indices)
    )


def _pair(size: Any) -> _Pair:
    return (size, size) if isinstance(size, int) else tuple(size)


def _gradients(
    slope: Tensor, inputs: Tensor, weight: Tensor, geometry: _Geometry, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = _convolve_back(slope, inputs, weight, [len(weight)], *geometry, wanted)
    return found


def _single_channel_last(images: Tensor) -> Tensor:
    """Return a view of images of one channel with the strides of channels last. Their memory layouts are the same."""
    _, _, height, width = images.shape
    return images.as_strided(images.shape, (height * width, 1, width, 1))


def _is_faster_with_channels_last(inputs: Tensor, weight: Tensor, geometry: _Geometry) -> bool:
    one_channel = inputs.shape[1] == 1
    return one_channel and _same_with_channels_last(tuple(inputs.shape), tuple(weight.shape), geometry, weight.dtype)


@cache
def _same_with_channels_last(
    images: tuple[int, ...], kernel: tuple[int, ...], geometry: _Geometry, dtype: torch.dtype
) -> bool:
    """Return whether both layouts give this gradient the same bits on this processor."""
    weight, inputs = _full_mantissas(kernel, dtype), _full_mantissas(images, dtype)
    slope = _full_mantissas(tuple(_convolve(inputs, weight, None, *geometry).shape), dtype)
    wanted = (False, True, True)
    usual = _gradients(slope, inputs, weight, geometry, wanted)
    last = _gradients(slope.contiguous(memory_format=_LAST), _single_channel_last(inputs), weight, geometry, wanted)
    return all(torch.equal(one, other) for one, other in zip(usual[1:], last[1:], strict=True))


def _full_mantissas(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.arange(1, prod(shape) + 1, dtype=dtype).sin_().view(shape)
