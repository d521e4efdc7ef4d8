"""The convolutional front of a module has the bits of autograd, and is used only for chains that it computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedforget import LocalOptimizer, Plan, Run
from fedforget.data.federated import FederatedData
from fedforget.training import convolutions
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.convolutions import ConvolutionalFront, convolutional_front
from fedforget.training.dense import Gradient, Products, dense_tail
from fedforget.training.local_sgd import TorchLearner
from fedforget.training.models import build_model, cnn, vgg16

CLASSES = 3


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    with fixed_arithmetic():
        yield


def ended(*layers: nn.Module, side: int, channels: int = 1) -> nn.Sequential:
    """Return the layers followed by a dense layer, for square images."""
    width = nn.Sequential(*layers, nn.Flatten())(torch.zeros(1, channels, side, side)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, CLASSES))


def first(module: nn.Module) -> Any:
    return next(module.children())


def front_of(module: nn.Module) -> ConvolutionalFront:
    front = convolutional_front(dense_tail(module))
    assert front is not None
    return front


def whole(gradient: Gradient | None) -> Tensor:
    assert gradient is not None
    if isinstance(gradient, Products):
        return torch.cat([block.clone() for _, block in gradient.blocks()])
    return gradient


def bits(tensors: Any) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def assert_same(module: nn.Module, x: Tensor, y: Tensor) -> None:
    front = front_of(module)
    assert front.fits(x, y)
    with torch.no_grad():
        loss, gradients = front.loss_and_gradients(x, y)
    expected = nn.functional.cross_entropy(module(x), y)
    expected_gradients = torch.autograd.grad(expected, list(module.parameters()))
    found = [whole(gradient) for gradient in gradients]
    assert bits([loss, *found]) == bits([expected, *expected_gradients])
    assert [each.shape for each in found] == [each.shape for each in expected_gradients]


def images(batch: int, channels: int, side: int, *, levels: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random images. With few ``levels`` many windows of a pooling have several maxima."""
    if not levels:
        return torch.randn(batch, channels, side, side, dtype=dtype)
    return torch.randint(0, levels, (batch, channels, side, side)).to(dtype)


def labels(batch: int) -> Tensor:
    return torch.randint(0, CLASSES, (batch,))


def chain_of(channels: int, stages: list[tuple[int, int, Any]]) -> list[nn.Module]:
    """Return the layers of stages: width and kernel of a convolution, and its pooling if it has one."""
    layers: list[nn.Module] = []
    for (before, *_), (width, kernel, pool) in pairwise([(channels,), *stages]):
        layers += nn.Conv2d(before, width, kernel, padding=kernel // 2), nn.ReLU()
        layers += [] if pool is None else [nn.MaxPool2d(pool)]
    return layers


@given(
    stages=st.lists(
        st.tuples(st.integers(1, 20), st.sampled_from([1, 3, 5]), st.sampled_from([None, 2, 3, (1, 2)])),
        min_size=1,
        max_size=3,
    ),
    channels=st.integers(1, 4),
    side=st.sampled_from([27, 28, 30]),
    batch=st.sampled_from([1, 2, 3, 7, 10, 16]),
    levels=st.sampled_from([0, 1, 2, 3]),
    constant=st.booleans(),
    double=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_convolutional_front_equals_autograd_bit_for_bit(
    stages: list[tuple[int, int, Any]],
    channels: int,
    side: int,
    batch: int,
    levels: int,
    constant: bool,
    double: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    dtype = torch.float64 if double else torch.float32
    module = ended(*chain_of(channels, stages), side=side, channels=channels).to(dtype)
    if constant:  # equal inputs then have equal sums, and a window several maxima
        for weights in module[0].parameters():
            nn.init.constant_(weights, 0.25)
    assert_same(module, images(batch, channels, side, levels=levels, dtype=dtype), labels(batch))


@pytest.mark.parametrize(
    ("make", "side", "channels"),
    [
        (lambda: cnn(28, 1, 64, CLASSES), 28, 1),
        (lambda: cnn(32, 3, 64, CLASSES), 32, 3),
        (lambda: vgg16(16, CLASSES), 32, 3),
        (lambda: ended(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(2), side=12), 12, 1),
        (lambda: ended(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.MaxPool2d(2), side=12, channels=4), 12, 4),
        (lambda: ended(nn.Conv2d(1, 3, (5, 3), dilation=(1, 2)), nn.ReLU(), side=12), 12, 1),
    ],
)
@pytest.mark.parametrize("batch", [1, 2, 10])
def test_built_in_networks_and_other_geometries_equal_autograd(
    make: Callable[[], nn.Module], side: int, channels: int, batch: int
) -> None:
    torch.manual_seed(1)
    assert_same(make(), images(batch, channels, side), labels(batch))


def test_images_with_ties_in_every_window_equal_autograd() -> None:
    torch.manual_seed(2)
    module = cnn(28, 1, 64, CLASSES)
    nn.init.constant_(first(module).bias, 0.5)  # black images: every window has four equal maxima above zero
    assert_same(module, torch.zeros(10, 1, 28, 28), labels(10))


def test_gradient_is_computed_in_the_usual_layout_if_channels_last_has_other_bits() -> None:
    torch.manual_seed(3)
    with mock.patch.object(convolutions, "_same_with_channels_last", return_value=False):
        assert_same(cnn(28, 1, 64, CLASSES), images(10, 1, 28), labels(10))


def with_hook() -> nn.Module:
    module = cnn(12, 1, 5, CLASSES)
    first(module).register_forward_hook(lambda *_: None)
    return module


def half_frozen() -> nn.Module:
    module = cnn(12, 1, 5, CLASSES)
    first(module).weight.requires_grad_(False)
    return module


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "overlapping windows": lambda: ended(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(3, 2), side=12),
    "windows with padding": lambda: ended(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2, padding=1), side=12),
    "windows with holes": lambda: ended(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2, dilation=2), side=12),
    "windows beyond the edge": lambda: ended(nn.Conv2d(1, 3, 4), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), side=12),
    "dropout": lambda: ended(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Dropout(0.5), side=12),
    "batch norm": lambda: ended(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), side=12),
    "no ReLU": lambda: ended(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), side=12),
    "nothing after the convolution": lambda: ended(nn.Conv2d(1, 3, 3), side=12),
    "no bias": lambda: ended(nn.Conv2d(1, 3, 3, bias=False), nn.ReLU(), side=12),
    "circular padding": lambda: ended(nn.Conv2d(1, 3, 3, padding_mode="circular", padding=1), nn.ReLU(), side=12),
    "named padding": lambda: ended(nn.Conv2d(1, 3, 3, padding="same"), nn.ReLU(), side=12),
    "another front": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.Tanh(), nn.Linear(4, CLASSES)),
    "no front": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, CLASSES)),
    "a hook": with_hook,
    "a frozen weight": half_frozen,
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS.keys())
def test_other_chains_use_autograd(make: Callable[[], nn.Module]) -> None:
    assert convolutional_front(dense_tail(make())) is None


def test_guard_against_overlapping_windows_is_needed() -> None:
    torch.manual_seed(4)
    with (
        mock.patch.object(convolutions, "_lies_side_by_side", return_value=True),
        pytest.raises((AssertionError, RuntimeError)),
    ):
        assert_same(OTHERS["overlapping windows"](), images(5, 1, 12), labels(5))


def other_layout() -> Tensor:
    return images(10, 2, 12).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (other_layout, lambda: labels(10)),
        (lambda: images(10, 2, 12).transpose(2, 3), lambda: labels(10)),
        (lambda: images(10, 2, 12), lambda: torch.full((10, CLASSES), 1 / CLASSES)),
    ],
    ids=["channels last", "transposed", "probabilities"],
)
def test_other_batches_train_with_plain_autograd(x: Callable[[], Tensor], y: Callable[[], Tensor]) -> None:
    torch.manual_seed(5)
    module, inputs, targets = cnn(12, 2, 5, CLASSES), x(), y()
    assert not front_of(module).fits(inputs, targets)
    learner = TorchLearner(module, None, LocalOptimizer(0.1))  # type: ignore[arg-type]
    with torch.no_grad():
        loss, gradients = learner._loss_and_gradients(inputs, targets, bytes(32))
    expected = nn.functional.cross_entropy(module(inputs), targets)
    found = [whole(gradient) for gradient in gradients]
    assert bits([loss, *found]) == bits([expected, *torch.autograd.grad(expected, list(module.parameters()))])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_of_a_convolutional_network_equal_torch_sgd(momentum: float) -> None:
    torch.manual_seed(6)
    module = cnn(28, 1, 300, CLASSES)  # the first dense layer is computed in blocks
    reference = copy.deepcopy(module)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=momentum)
    learner, velocities = TorchLearner(module, None, LocalOptimizer(0.1, momentum)), list[Tensor]()  # type: ignore[arg-type]
    for _ in range(5):
        x, y = images(10, 1, 28), labels(10)
        with torch.no_grad():
            _, gradients = learner._loss_and_gradients(x, y, bytes(32))
            learner._step(gradients, [], velocities)
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(x), y).backward()
        optimiser.step()
    assert bits(module.parameters()) == bits(reference.parameters())


def test_convolutional_run_in_the_pool_equals_inline(scratch_path: Path) -> None:
    generator = np.random.default_rng(7)
    data = FederatedData(
        {
            client: {row: (generator.normal(size=(1, 12, 12)).astype(np.float32), row % CLASSES) for row in range(6)}
            for client in range(4)
        }
    )
    digests = set()
    for federation in ("inline", "pool"):
        model = build_model({"name": "cnn", "side": 12, "channels": 1, "hidden": 8, "classes": CLASSES}, bytes(32))
        plan = Plan(3, 4, 3, 2, LocalOptimizer(0.1))
        run = Run(scratch_path / federation, plan, model=model, data=data, seed=1, federation=federation)
        run.train()
        digests.add(run.state_digest())
    assert len(digests) == 1
