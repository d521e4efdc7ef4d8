"""The dense tail of a module has the bits of autograd, and is used only where a module ends in dense layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fedforget.training import dense
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.dense import Gradient, Products, dense_tail
from fedforget.training.models import cnn


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    with fixed_arithmetic():
        yield


def chain(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += nn.Linear(inputs, outputs), nn.ReLU()
    return nn.Sequential(*layers[:-1])


def by_autograd(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    loss = nn.functional.cross_entropy(module(x), y)
    return loss, torch.autograd.grad(loss, list(module.parameters()))


def by_dense_tail(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    tail = dense_tail(module)
    assert tail is not None
    x = tail.front(x)
    assert tail.fits(x, y)
    with torch.no_grad():
        loss, gradients = tail.loss_and_gradients(x, y)
    return loss, [whole(gradient) for gradient in gradients]


def whole(gradient: Gradient | None) -> Tensor:
    assert gradient is not None
    if isinstance(gradient, Products):
        return torch.cat([block.clone() for _, block in gradient.blocks()])
    return gradient


def bits(tensors: Any) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def assert_same(module: nn.Module, x: Tensor, y: Tensor) -> None:
    loss, gradients = by_dense_tail(module, x, y)
    expected, expected_gradients = by_autograd(module, x, y)
    assert bits([loss, *gradients]) == bits([expected, *expected_gradients])
    assert [each.shape for each in gradients] == [each.shape for each in expected_gradients]


@given(
    widths=st.lists(st.integers(1, 70), min_size=2, max_size=5),
    batch=st.integers(1, 40),
    double=st.booleans(),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
@settings(max_examples=150, deadline=None)
def test_dense_tail_equals_autograd_bit_for_bit(
    widths: list[int], batch: int, double: bool, seed: int, scale: float
) -> None:
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
def test_nested_and_flattened_dense_networks_equal_autograd(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    module = make()
    flattens = isinstance(module, nn.Sequential) and isinstance(module[0], nn.Flatten)
    x = torch.randn(4, 3, 4) if flattens else torch.randn(4, 12)
    assert_same(module, x, torch.tensor([0, 1, 2, 1]))


def with_shared_layers() -> nn.Module:
    relu, pool = nn.ReLU(), nn.MaxPool1d(2)
    return nn.Sequential(
        nn.Conv1d(1, 4, 3, padding=1), relu, pool, nn.Conv1d(4, 3, 3, padding=1), relu, pool,
        nn.Flatten(), nn.Linear(6, 5), relu, nn.Linear(5, 4), relu, nn.Linear(4, 3),
    )  # fmt: skip


def channels_last() -> nn.Module:
    module = cnn(8, 1, 16, 3)
    for weights in module.parameters():
        if weights.dim() == 4:
            weights.data = weights.data.contiguous(memory_format=torch.channels_last)
    return module


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (4,)),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), (4,)),
        (lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)), (4,)),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), chain(6, 5, 3)), (4,)),
        (lambda: nn.Sequential(nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, 3)), (4,)),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Flatten(1, 2), nn.Linear(6, 3)), (6,)),
        (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), chain(12, 7, 3)), (2, 6)),
        (lambda: cnn(8, 1, 16, 3), (1, 8, 8)),
        (lambda: cnn(12, 3, 9, 3).double(), (3, 12, 12)),
        (channels_last, (1, 8, 8)),
        (with_shared_layers, (1, 8)),
    ],
)
def test_layers_before_the_dense_tail_use_autograd(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    module = make()
    tail = dense_tail(module)
    assert tail is not None
    assert tail.front
    dtype = next(module.parameters()).dtype
    has_batch_norm = any(isinstance(part, nn.BatchNorm1d) for part in module.modules())
    for batch in (2,) if has_batch_norm else (1, 2, 6):
        assert_same(module, torch.randn(batch, *shape, dtype=dtype), torch.randint(0, 3, (batch,)))


@given(
    widths=st.tuples(st.integers(1, 3000), st.integers(1, 300), st.integers(2, 600)),
    batch=st.integers(1, 70),
    block=st.sampled_from([1, 500, 2**12, 2**14]),
    double=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_gradients_in_blocks_equal_whole_gradients(
    widths: tuple[int, int, int], batch: int, block: int, double: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    dtype = torch.float64 if double else torch.float32
    with mock.patch.multiple(dense, _LARGE=1, _BLOCK=block):
        module = chain(*widths).to(dtype)
        assert_same(module, torch.randn(batch, widths[0], dtype=dtype), torch.randint(0, widths[-1], (batch,)))


def test_gradient_of_a_large_layer_is_computed_in_blocks() -> None:
    module = cnn(28, 1, 2048, 10)
    tail = dense_tail(module)
    assert tail is not None
    with torch.no_grad():
        _, gradients = tail.loss_and_gradients(tail.front(torch.randn(10, 1, 28, 28)), torch.arange(10))
    large = [gradient for gradient in gradients if isinstance(gradient, Products)]
    if not dense._comes_in_blocks(10, 2048, 3136, torch.float32, dense._BLOCK):
        pytest.skip("this processor sums blocks in another order")
    assert len(large) == 1
    sizes = [block.numel() for _, block in large[0].blocks()]
    assert sum(sizes) == 3136 * 2048
    assert max(sizes) < 2 * dense._BLOCK


def test_gradient_is_computed_whole_if_blocks_have_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_LARGE", 1)
    monkeypatch.setattr(dense, "_EVEN", 1)  # blocks of any alignment
    dense._comes_in_blocks.cache_clear()
    torch.manual_seed(4)
    for block in (1, 7, 50, 333):
        monkeypatch.setattr(dense, "_BLOCK", block)
        for width in (5, 30, 64):
            assert_same(chain(width, 40, 3), torch.randn(10, width), torch.randint(0, 3, (10,)))
    dense._comes_in_blocks.cache_clear()


def test_check_of_blocks_does_not_use_the_callers_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    dense._comes_in_blocks.cache_clear()
    dense._comes_in_blocks(10, 100, 20, torch.float32, 500)
    assert torch.equal(torch.rand(1), expected)


def test_frozen_layers_before_the_dense_tail_have_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), chain(6, 5, 3))
    module[0].requires_grad_(False)
    tail = dense_tail(module)
    assert tail is not None
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 1])
    with torch.no_grad():
        _, gradients = tail.loss_and_gradients(tail.front(x), y)
    learning = [weight for weight in module.parameters() if weight.requires_grad]
    assert bits(gradients) == bits(torch.autograd.grad(nn.functional.cross_entropy(module(x), y), learning))


def test_ignored_label_is_ignored_as_by_autograd() -> None:
    torch.manual_seed(2)
    assert_same(chain(4, 5, 3), torch.randn(4, 4), torch.tensor([0, -100, 2, 1]))


def test_dense_tail_uses_the_present_weights_of_the_module() -> None:
    module = chain(4, 5, 3)
    tail = dense_tail(module)
    assert tail is not None
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 1])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5)
        loss, _ = tail.loss_and_gradients(x, y)
    assert torch.equal(loss, nn.functional.cross_entropy(module(x), y))


class UsesUnregisteredLayer(nn.Module):
    """Uses a layer that is not registered as its submodule."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self._hidden = [layer]

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self._hidden[0](x)
        return result


def unregistered_second_use() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(UsesUnregisteredLayer(layer), nn.ReLU(), layer)


class DoublesOutput(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class HalvesOutput(nn.Sequential):
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


def with_parameter_hook() -> nn.Module:
    module = chain(4, 5, 3)
    next(module[2].parameters()).register_hook(lambda gradient: 2 * gradient)
    return module


def frozen() -> nn.Module:
    module = chain(4, 5, 3)
    module[0].bias.requires_grad_(False)
    return module


def shared_layer() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied_weights() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


def column_major() -> nn.Module:
    module = chain(4, 5, 3)
    module[2].weight = nn.Parameter(torch.randn(5, 3).t())
    return module


def extra_parameter() -> nn.Module:
    module = chain(4, 5, 3)
    module.register_parameter("temperature", nn.Parameter(torch.ones(1)))
    return module


def with_buffer() -> nn.Module:
    module = chain(4, 5, 3)
    module.register_buffer("seen", torch.zeros(1))
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), DoublesOutput(5, 3)),
        nn.Sequential,
        lambda: HalvesOutput(nn.Linear(4, 3)),
        lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
        lambda: chain(4, 5, 3).to(torch.bfloat16),
        lambda: hooked("register_forward_hook"),
        lambda: hooked("register_forward_pre_hook"),
        lambda: hooked("register_full_backward_hook"),
        lambda: hooked("register_full_backward_pre_hook"),
        patched,
        with_parameter_hook,
        shared_layer,
        tied_weights,
        unregistered_second_use,
        extra_parameter,
        column_major,
    ],
)
def test_other_modules_have_no_dense_tail(make: Callable[[], nn.Module]) -> None:
    assert dense_tail(make()) is None


@pytest.mark.parametrize("what", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
def test_global_module_hook_disables_the_dense_tail(what: str) -> None:
    hook = getattr(nn.modules.module, f"register_module_{what}")(lambda *_: None)
    try:
        assert dense_tail(chain(4, 5, 3)) is None
    finally:
        hook.remove()
    assert dense_tail(chain(4, 5, 3)) is not None


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
def test_mini_batch_of_other_shape_or_dtype_does_not_fit(x: Tensor, y: Tensor) -> None:
    tail = dense_tail(chain(4, 5, 3))
    assert tail is not None
    assert not tail.fits(x, y)
