"""Dense networks without a tape: autograd's bits, and only where a module is nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fedforget.training.dense import dense_network
from fedforget.training.streams import one_thread


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    with one_thread():
        yield


def chain(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += nn.Linear(inputs, outputs), nn.ReLU()
    return nn.Sequential(*layers[:-1])


def by_autograd(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    loss = nn.functional.cross_entropy(module(x), y)
    return loss, torch.autograd.grad(loss, list(module.parameters()))


def without_a_tape(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    network = dense_network(module)
    assert network is not None
    assert network.fits(x, y)
    with torch.no_grad():
        return network.loss_and_gradients(x, y)


def bits(tensors: Any) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def assert_same(module: nn.Module, x: Tensor, y: Tensor) -> None:
    loss, gradients = without_a_tape(module, x, y)
    expected, by_tape = by_autograd(module, x, y)
    assert bits([loss, *gradients]) == bits([expected, *by_tape])
    assert [each.shape for each in gradients] == [each.shape for each in by_tape]


@given(
    widths=st.lists(st.integers(1, 70), min_size=2, max_size=5),
    batch=st.integers(1, 40),
    double=st.booleans(),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
@settings(max_examples=150, deadline=None)
def test_every_bit_is_that_of_autograd(widths: list[int], batch: int, double: bool, seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    dtype = torch.float64 if double else torch.float32
    module = chain(*widths).to(dtype)
    assert_same(module, scale * torch.randn(batch, widths[0], dtype=dtype), torch.randint(0, widths[-1], (batch,)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(12, 3),
        lambda: nn.Sequential(nn.Flatten(), chain(12, 7, 3)),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(12, 5), nn.ReLU(inplace=True)), nn.Linear(5, 3)),
    ],
)
def test_ways_to_write_a_dense_network(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    module = make()
    flattens = isinstance(module, nn.Sequential) and isinstance(module[0], nn.Flatten)
    x = torch.randn(4, 3, 4) if flattens else torch.randn(4, 12)
    assert_same(module, x, torch.tensor([0, 1, 2, 1]))


def test_a_label_that_is_left_out_is_left_out_here_too() -> None:
    torch.manual_seed(2)
    assert_same(chain(4, 5, 3), torch.randn(4, 4), torch.tensor([0, -100, 2, 1]))


def test_the_weights_are_the_module_s_own() -> None:
    module = chain(4, 5, 3)
    network = dense_network(module)
    assert network is not None
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 1])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5)
        loss, _ = network.loss_and_gradients(x, y)
    assert torch.equal(loss, nn.functional.cross_entropy(module(x), y))


class Doubles(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Halves(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


def hooked(register: str) -> nn.Module:
    module = chain(4, 5, 3)
    getattr(module[0], register)(lambda *_: None)
    return module


def patched() -> nn.Module:
    module = chain(4, 5, 3)
    module[2].forward = lambda x: x[:, :3]
    return module


def with_watched_parameter() -> nn.Module:
    module = chain(4, 5, 3)
    next(module.parameters()).register_hook(lambda gradient: 2 * gradient)
    return module


def frozen() -> nn.Module:
    module = chain(4, 5, 3)
    module[0].bias.requires_grad_(False)
    return module


def twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


def with_buffer() -> nn.Module:
    module = chain(4, 5, 3)
    module.register_buffer("seen", torch.zeros(1))
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), Doubles(5, 3)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3).double()),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)),
        nn.Sequential,
        lambda: Halves(nn.Linear(4, 3)),
        lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
        lambda: chain(4, 5, 3).to(torch.bfloat16),
        lambda: hooked("register_forward_hook"),
        lambda: hooked("register_forward_pre_hook"),
        lambda: hooked("register_full_backward_hook"),
        lambda: hooked("register_full_backward_pre_hook"),
        patched,
        with_watched_parameter,
        frozen,
        twice,
        tied,
    ],
)
def test_anything_else_is_left_to_autograd(make: Callable[[], nn.Module]) -> None:
    assert dense_network(make()) is None


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.randn(4), torch.tensor(1)),
        (torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)),
        (torch.randn(2, 4), torch.rand(2, 3)),  # probabilities instead of classes
        (torch.randn(2, 4), torch.tensor([0, 1], dtype=torch.uint8)),
        (torch.randn(2, 4, dtype=torch.float64), torch.tensor([0, 1])),
    ],
)
def test_batches_that_mean_something_else_do_not_fit(x: Tensor, y: Tensor) -> None:
    network = dense_network(chain(4, 5, 3))
    assert network is not None
    assert not network.fits(x, y)
