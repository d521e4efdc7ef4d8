"""What a run knows its learner by, models by name, exported models, and the arithmetic around local steps."""

from __future__ import annotations

import functools
import hashlib
import io
import operator
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn

from fedforget.errors import InvalidInput, PlanRefused
from fedforget.store.environments import TrainedRounds
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.dense import dense_tail
from fedforget.training.environment import is_mixed, numeric_differences
from fedforget.training.evaluation import TestSet
from fedforget.training.export import exported
from fedforget.training.identity import differences, parts_of, require_loss, require_module, structure_of
from fedforget.training.models import build_model, structure_of_settings
from fedforget.training.weights import Weights, weights_of
from fedforget.training.witness import LocalModelChecksum

MLP = {"name": "mlp", "inputs": 4, "hidden": 5, "classes": 3}
CNN = {"name": "cnn", "side": 8, "channels": 1, "hidden": 6, "classes": 3}


# ------------------------------------------------------------------------------------------------------------- identity


class Scaled(nn.Module):
    """A loss with a setting, a tensor and a private attribute."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.scale = 0.5
        self._hidden = 3
        self.register_buffer("weight", torch.arange(size, dtype=torch.float32))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output * self.scale).sum() + target.sum() * 0


def test_loss_is_described_by_its_name_and_settings() -> None:
    module = nn.Linear(2, 2)
    here = f"{__name__}.Scaled"
    assert parts_of(module, None)["loss"] == "torch.nn.functional.cross_entropy"
    assert parts_of(module, Scaled())["loss"] == f"{here}(scale=0.5, weight=[0.0, 1.0])"
    assert parts_of(module, Scaled(1000))["loss"] != f"{here}(scale=0.5)"
    assert parts_of(module, Scaled(1001))["loss"] == f"{here}(scale=0.5)", "too many values to name"
    half = functools.partial(nn.functional.cross_entropy, label_smoothing=0.5)
    assert parts_of(module, half)["loss"] == "torch.nn.functional.cross_entropy with label_smoothing=0.5"


def test_parts_of_a_module_are_named_with_their_settings() -> None:
    parts = parts_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), None)
    assert parts["0"] == "torch.nn.modules.linear.Linear(in_features=2, out_features=3, bias=True)"
    assert parts["1"] == "torch.nn.modules.activation.ReLU()"
    assert set(parts) == {"model", "0", "1", "loss"}


def test_structure_tells_what_learns_its_type_and_its_shape() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    module[0].bias.requires_grad_(False)
    found = structure_of(module)
    assert found["0.weight"] == "parameter float32 3x2"
    assert found["0.bias"] == "frozen float32 3"
    assert found["1.running_mean"] == "buffer float32 3"
    assert found["1.num_batches_tracked"] == "buffer int64 scalar"


def test_first_three_differences_are_named_and_the_others_counted() -> None:
    then = dict.fromkeys("abcde", "1")
    assert differences(then, then) == []
    assert differences(then, {**then, "a": "2"}) == ["'a' was 1 and is 2"]
    three = [f"{name!r} was 1 and is 2" for name in "abc"]
    assert differences(then, {**then, "a": "2", "b": "2", "c": "2"}) == three
    assert differences(then, {**then, "a": "2", "b": "2", "c": "2", "d": "2"}) == [*three, "and 1 more"]
    assert differences(then, dict.fromkeys(then, "2")) == [*three, "and 2 more"]
    assert differences({"a": "1"}, {"b": "1"}) == ["'a' was 1 and is not there", "'b' was not there and is 1"]


def test_module_that_cannot_be_trained_here_is_refused() -> None:
    assert isinstance(require_module(nn.Linear(2, 2)), nn.Linear)
    with pytest.raises(InvalidInput, match="the class Linear"):
        require_module(nn.Linear)
    with pytest.raises(InvalidInput, match="a int"):
        require_module(5)
    with pytest.raises(InvalidInput, match="no parameter of the model learns"):
        require_module(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(InvalidInput, match="on 'meta'"):
        require_module(nn.Linear(2, 2, device="meta"))
    with torch.inference_mode():
        made = nn.Linear(2, 2)
    with pytest.raises(InvalidInput, match="inference_mode"):
        require_module(made)


def test_loss_must_be_a_function() -> None:
    require_loss(None)
    require_loss(nn.functional.mse_loss)
    with pytest.raises(InvalidInput, match="the class MSELoss"):
        require_loss(nn.MSELoss)
    with pytest.raises(InvalidInput, match="not a loss function"):
        require_loss("mse")


# --------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("settings", [MLP, CNN])
def test_model_by_name_has_the_structure_that_its_settings_say(settings: dict[str, object]) -> None:
    made = build_model(settings, b"seed" * 8)
    assert structure_of(made) == structure_of_settings(settings)
    again, other = build_model(settings, b"seed" * 8), build_model(settings, b"deed" * 8)
    for name, weight in weights_of(made).items():
        assert np.array_equal(weight, weights_of(again)[name])
    assert any(not np.array_equal(weight, weights_of(other)[name]) for name, weight in weights_of(made).items())
    inputs = torch.zeros(2, 4) if settings is MLP else torch.zeros(2, 1, 8, 8)
    assert made(inputs).shape == (2, 3)


def test_building_a_model_leaves_the_callers_random_state_alone() -> None:
    before = torch.get_rng_state()
    build_model(MLP, b"seed" * 8)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "gpt"}, "unknown model 'gpt'"),
        ({"name": "mlp", "inputs": 4}, "lacks its hidden, classes"),
        ({**MLP, "hidden": 0}, "cannot have these sizes"),
        ({**MLP, "hidden": 2**16 + 1}, "cannot have these sizes"),
        ({**MLP, "hidden": "5"}, "cannot have these sizes"),
    ],
)
def test_model_that_cannot_be_built_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(PlanRefused, match=message):
        structure_of_settings(settings)


def test_layer_may_have_as_many_units_as_the_largest_and_as_few_as_one() -> None:
    assert structure_of_settings({**MLP, "hidden": 2**16})["0.bias"] == "parameter float32 65536"
    assert structure_of_settings({**MLP, "hidden": 1})["0.bias"] == "parameter float32 1"


@pytest.mark.parametrize("as_safetensors", [True, False])
def test_exported_model_has_the_names_and_values_of_the_weights(as_safetensors: bool) -> None:
    weights = weights_of(nn.Linear(2, 3))
    data = exported(weights, as_safetensors)
    found = load(data) if as_safetensors else torch.load(io.BytesIO(data), weights_only=True)
    assert {name: tensor.numpy().tobytes() for name, tensor in found.items()} == {
        name: array.tobytes() for name, array in weights.items()
    }


def test_every_test_sample_is_measured_once() -> None:
    module = nn.Linear(1, 2, bias=False)
    x = np.where(np.arange(1101) % 3 == 0, -1, 1).astype(np.float32)[:, None]
    y = np.ones(1101, np.int64)
    weights: Weights = {"weight": np.array([[-1.0], [1.0]], np.float32)}
    assert TestSet(module, (x, y)).count_correct(weights) == (int((x > 0).sum()), 1101)
    with pytest.raises(InvalidInput, match="cannot be measured"):
        TestSet(module, (np.zeros((2, 9), np.float32), y[:2])).count_correct(weights)


# ----------------------------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("flush", [True, False])
def test_arithmetic_is_fixed_inside_and_as_before_outside(flush: bool) -> None:
    tiny = torch.tensor([2.0**-1074], dtype=torch.float64)
    threads = torch.get_num_threads()
    if not torch.set_flush_denormal(flush):
        pytest.skip("this processor cannot flush denormals")
    try:
        with fixed_arithmetic(torch.float64):
            assert (tiny * 1.0).item() != 0
            assert torch.get_num_threads() == 1
            assert torch.get_default_dtype() == torch.float64
        assert ((tiny * 1.0).item() == 0) is flush
        assert torch.get_num_threads() == threads
        assert torch.get_default_dtype() == torch.float32
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(("shape", "fits"), [((4,), False), ((2, 4), True), ((2, 2, 2), True)])
def test_flattened_tail_takes_batches_of_any_shape(shape: tuple[int, ...], fits: bool) -> None:
    tail = dense_tail(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    assert tail is not None
    assert tail.fits(torch.zeros(shape), torch.tensor([0, 1])) is fits


def test_environments_differ_in_what_may_change_bits_only() -> None:
    then = {"torch": "2.6", "numpy": "2.0", "processor": "a", "python": "3.11"}
    assert numeric_differences(then, {**then, "python": "3.12"}) == []
    assert numeric_differences(then, {**then, "torch": "2.7", "vectors": "AVX2"}) == [
        "torch: 2.6 then, 2.7 now",
        "the vector instructions: none then, AVX2 now",
    ]
    rounds = [TrainedRounds(1, 2, then), TrainedRounds(3, 4, {**then, "python": "3.12"})]
    assert not is_mixed(rounds)
    assert is_mixed([*rounds, TrainedRounds(5, 5, {**then, "numpy": "2.1"})])
    assert not is_mixed([])


@pytest.mark.parametrize("inputs", [255, 256, 257, 258, 300, 301, 2048, 2051])
def test_checksum_has_small_tensors_whole_and_weighted_sums_of_large_ones(inputs: int) -> None:
    module = nn.Sequential(nn.Linear(inputs, 1), nn.BatchNorm1d(1))
    found = LocalModelChecksum(module, list(module.parameters())).after(0.5)
    factors = [each | 1 for each in struct.unpack("<1024Q", hashlib.shake_128(b"checksum").digest(8192))]
    sums, whole = [], b""
    for tensor in (*module.parameters(), *module.buffers()):
        data = tensor.detach().numpy().tobytes()
        edge = len(data) // 8 * 8 if len(data) > 1024 else 0
        words = struct.unpack(f"<{edge // 8}Q", data[:edge])
        rows = range(0, len(words) + 1, 1024) if edge else ()
        sums += [sum(map(operator.mul, words[row : row + 1024], factors)) % 2**64 for row in rows]
        whole += data[edge:]
    assert found == struct.pack(f"<d{len(sums)}Q", 0.5, *sums) + whole
    assert len(sums) == (inputs > 256) + (inputs >= 2048)


@pytest.mark.parametrize("words", [40, 600, 5000])
def test_checksum_changes_with_the_order_of_rows_and_of_words(words: int) -> None:
    """An embedding whose rows stand in another order."""
    module = nn.Embedding(words, 8)
    checksum = LocalModelChecksum(module, list(module.parameters()))
    weight, found = module.weight.detach(), {checksum.after(0.5)}
    for first, second in [(0, 1), (0, words - 1), (words // 2, words - 2)]:
        weight[[first, second]] = weight[[second, first]]
        found.add(checksum.after(0.5))
    weight.copy_(weight.flip(0))
    found.add(checksum.after(0.5))
    weight.copy_(weight.flip(1))
    found.add(checksum.after(0.5))
    assert len(found) == 6


@pytest.mark.parametrize("place", [0, 1, 8191, 8192, 20000, 39998, 39999])
@pytest.mark.parametrize("bit", [0, 31])
def test_checksum_changes_with_any_single_bit(place: int, bit: int) -> None:
    module = nn.Embedding(5000, 8)
    checksum = LocalModelChecksum(module, list(module.parameters()))
    before = checksum.after(0.5)
    module.weight.detach().view(torch.int32).view(-1)[place] ^= -(2**31) if bit == 31 else 1 << bit
    assert checksum.after(0.5) != before


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_first_step_has_the_loss_and_the_lengths_of_the_changes(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40)).to(dtype)
    checksum = LocalModelChecksum(module, list(module.parameters()))
    before = weights_of(module)
    for name, change in {"0.weight": 0.5, "1.bias": 1.0, "1.running_mean": 2.0, "1.num_batches_tracked": 7}.items():
        module.state_dict()[name] += change
    expected = (0.25, (1200 * 0.25 + 40) ** 0.5, 160**0.5)
    assert checksum.first_step(0.25, before) == pytest.approx(expected, rel=1e-2 if dtype is torch.float16 else 1e-6)


def test_first_step_does_not_depend_on_the_layout_of_the_tensors() -> None:
    module = nn.Linear(37, 53)
    before = weights_of(module)
    with torch.no_grad():
        module.weight += torch.linspace(-1, 1, module.weight.numel()).view_as(module.weight)
    first = LocalModelChecksum(module, list(module.parameters())).first_step(0.5, before)
    module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())
    again = LocalModelChecksum(module, list(module.parameters()))
    turned = {name: np.asfortranarray(array) for name, array in before.items()}
    assert again.first_step(0.5, turned) == again.first_step(0.5, before) == first
