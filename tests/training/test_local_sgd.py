"""Local SGD: bit for bit that of torch.optim.SGD, and a function of the local round alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedforget import LocalOptimizer, Plan, Run
from fedforget.algorithm.client import Client
from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.ports import LocalRound, TrainTask
from fedforget.data.federated import FederatedData
from fedforget.errors import InvalidInput, NonFiniteLoss, PlanRefused, TrainingFailed
from fedforget.training import dense
from fedforget.training.arithmetic import fixed_arithmetic
from fedforget.training.evaluation import TestSet
from fedforget.training.local_sgd import TorchLearner
from fedforget.training.models import build_model
from fedforget.training.streams import start_stream
from fedforget.training.weights import Weights, load_weights, parameter_names, weights_of
from tests.helpers import numbered_seed

FEATURES, CLASSES = 4, 3
BATCHES = ((0, 1, 2), (1, 3, 4), (0, 2, 5), (3, 4, 5))
STREAMS = tuple(numbered_seed(number)[:16] for number in range(len(BATCHES)))


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    with fixed_arithmetic():
        yield


def samples(seed: int = 0) -> dict[int, tuple[np.ndarray, int]]:
    generator = np.random.default_rng(seed)
    return {i: (generator.normal(size=FEATURES).astype(np.float32), i % CLASSES) for i in range(6)}


SGD = LocalOptimizer(0.1)
DATA = FederatedData({3: samples(3), "a": samples(4)})


def seeded(make: Callable[[], nn.Module], seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def three_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, 50), nn.ReLU(), nn.Linear(50, CLASSES))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))


@pytest.fixture(params=[False, True], ids=["small", "large"])
def _large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With "large", every dense layer counts as large, so that its gradient is computed in blocks."""
    if request.param:
        monkeypatch.setattr(dense, "_LARGE", 1)
        monkeypatch.setattr(dense, "_BLOCK", 100)


def work(
    model: nn.Module | dict[str, Any],
    client: Any = 3,
    round_: int = 1,
    batches: Any = BATCHES,
    streams: Any = STREAMS,
) -> LocalRound:
    weights = weights_of(model) if isinstance(model, nn.Module) else model
    present = tuple(sorted({sample for batch in batches for sample in batch}))
    rows = np.array([[present.index(sample) for sample in batch] for batch in batches], np.intp)
    return LocalRound(round_, client, weights, present, rows, tuple(streams)[: len(batches)])


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def tensors(client: Any, batch: Any) -> tuple[Tensor, Tensor]:
    pairs = [DATA[client].sample(each) for each in batch]
    return torch.from_numpy(np.stack([x for x, _ in pairs])), torch.from_numpy(np.stack([y for _, y in pairs]))


# ----------------------------------------------------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("make", [two_layers, three_layers, with_batch_norm])
@pytest.mark.usefixtures("_large")
def test_local_round_equals_torch_sgd_bit_for_bit(
    make: Callable[[], nn.Module], momentum: float, weight_decay: float
) -> None:
    learner = TorchLearner(seeded(make), DATA, LocalOptimizer(0.1, momentum, weight_decay))
    reference = seeded(make)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for batch in BATCHES:
        x, y = tensors(3, batch)
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(x), y).backward()
        optimiser.step()
    assert same(learner.train(work(seeded(make))).model, weights_of(reference))


@st.composite
def chains(draw: st.DrawFn) -> nn.Module:  # noqa: C901 (one branch per kind of layer)
    """A random chain of layers, possibly nested, with some layers shared and some frozen."""
    again: list[nn.Module] = [nn.ReLU(), nn.Tanh(), nn.Dropout(0.3)]
    width, parts = FEATURES, list[nn.Module]()
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(
            st.sampled_from(["linear", "linear", "same", "again", "again", "norm", "batch norm", "bare", "flat"])
        )
        if kind in {"linear", "bare"}:
            wider = draw(st.integers(1, 40))
            parts.append(nn.Linear(width, wider, bias=kind == "linear"))
            width = wider
            if draw(st.booleans()):
                parts.append(nn.ReLU(inplace=True))
        elif kind == "same" and (square := [each for each in parts if isinstance(each, nn.Linear)]):
            layer = draw(st.sampled_from(square))
            parts += [nn.Linear(width, layer.in_features), nn.ReLU(), layer]
            width = layer.out_features
        elif kind == "again":
            parts.append(draw(st.sampled_from(again)))
        elif kind == "norm":
            parts.append(nn.LayerNorm(width))
        elif kind == "batch norm":
            parts.append(nn.BatchNorm1d(width))
        elif kind == "flat":
            parts.append(nn.Flatten())
    parts.append(nn.Linear(width, CLASSES))
    for part in parts:
        if draw(st.integers(0, 9)) == 0:
            part.requires_grad_(False)
    cut = draw(st.integers(0, len(parts)))
    chain = nn.Sequential(nn.Sequential(*parts[:cut]), *parts[cut:]) if draw(st.booleans()) else nn.Sequential(*parts)
    next(iter(parts[-1].parameters())).requires_grad_(True)
    return chain


@given(chain=chains(), momentum=st.sampled_from([0.0, 0.9]), large=st.booleans())
@hypothesis_settings(max_examples=200, deadline=None)
def test_any_chain_of_layers_trains_as_with_torch_sgd(chain: nn.Module, momentum: float, large: bool) -> None:
    start, reference = work(chain), copy.deepcopy(chain)
    with mock.patch.multiple(dense, _LARGE=1 if large else 2**18, _BLOCK=100):
        found = TorchLearner(chain, DATA, LocalOptimizer(0.1, momentum)).train(start).model
    learning = [parameter for parameter in reference.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(learning, lr=0.1, momentum=momentum)
    for batch, stream in zip(BATCHES, STREAMS, strict=True):
        optimiser.zero_grad()
        start_stream(stream)
        x, y = tensors(3, batch)
        nn.functional.cross_entropy(reference(x), y).backward()
        optimiser.step()
    assert same(found, weights_of(reference))


@pytest.mark.usefixtures("_large")
def test_fedprox_has_the_gradient_of_the_proximal_term() -> None:
    """The gradient of loss + μ/2·‖θ − θ_start‖², by autograd."""
    mu, start = 0.7, seeded(two_layers)
    reference = seeded(two_layers)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.5)
    anchors = [parameter.detach().clone() for parameter in start.parameters()]
    for batch in BATCHES:
        x, y = tensors(3, batch)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(reference(x), y)
        for parameter, anchor in zip(reference.parameters(), anchors, strict=True):
            loss = loss + mu / 2 * ((parameter - anchor) ** 2).sum()
        loss.backward()
        optimiser.step()
    proximal = TorchLearner(seeded(two_layers), DATA, LocalOptimizer(0.1, 0.5, prox=mu)).train(work(start)).model
    plain = TorchLearner(seeded(two_layers), DATA, LocalOptimizer(0.1, 0.5)).train(work(start)).model
    for name, expected in weights_of(reference).items():
        assert np.allclose(proximal[name], expected, rtol=1e-5, atol=1e-7)
        assert not np.allclose(plain[name], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("settings", [LocalOptimizer(0.1), LocalOptimizer(0.1, 0.9, 0.01, prox=0.3)])
@pytest.mark.parametrize("make", [two_layers, three_layers, with_dropout, with_batch_norm])
@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("cuts", [(1,), (2,), (3,), (1, 2, 3)])
def test_round_trained_in_parts_equals_the_whole_round(
    make: Callable[[], nn.Module], settings: LocalOptimizer, cuts: tuple[int, ...]
) -> None:
    """Another learner trains each part, with a module that has trained another client before."""
    whole = work(seeded(make))
    expected = TorchLearner(seeded(make), DATA, settings).train(whole).model
    found: Weights | None = None
    for start, stop in pairwise((0, *cuts, len(BATCHES))):
        learner = TorchLearner(seeded(make, seed=start), DATA, settings)
        learner.train(work(seeded(make, seed=5), "a"))
        found = learner.train_part(whole, start, stop, halfway=found).model
        like = learner.halfway_like(whole.model) if stop < len(BATCHES) else expected
        assert like is not None
        assert {name: (each.shape, each.dtype) for name, each in found.items()} == {
            name: (each.shape, each.dtype) for name, each in like.items()
        }
    assert found is not None
    assert same(found, expected)


@pytest.mark.parametrize("make", [two_layers, with_batch_norm])
def test_result_is_written_into_the_callers_arrays(make: Callable[[], nn.Module]) -> None:
    learner, start = TorchLearner(seeded(make), DATA, LocalOptimizer(0.1, 0.9)), work(seeded(make))
    for stop in (len(BATCHES), 2):
        expected = learner.train_part(start, 0, stop).model
        room = {name: np.empty_like(array) for name, array in expected.items()}
        assert learner.train_part(start, 0, stop, into=room).model is room
        assert same(room, expected)


class ReplacesBuffer(nn.Module):
    """Replaces its buffer by another tensor in every training step."""

    seen: Tensor

    def __init__(self, another: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self._another = nn.Linear(FEATURES, CLASSES), another
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self._another(self.seen)
        result: Tensor = self.layer(x) * (1 + self.seen.sum().float())
        return result


@pytest.mark.parametrize("federation", ["inline", "pool"])
@pytest.mark.parametrize("another", [lambda seen: seen.double() + 0.1, lambda seen: torch.cat([seen, seen + 1])])
def test_buffer_that_changes_type_or_shape_is_refused(
    tmp_path: Path, federation: str, another: Callable[[Tensor], Tensor]
) -> None:
    """Doubles would be rounded when loaded into a new module, so the state would depend on the process's history."""
    run = Run(
        tmp_path / "run", Plan(3, 2, 4, 2), model=ReplacesBuffer(another), data=DATA, seed=1, federation=federation
    )
    with pytest.raises(InvalidInput, match="changed the type or the shape of the model's tensor 'seen'"):
        run.train()
    assert run.status().rounds_done == 0


def test_buffer_that_changes_value_is_accepted(tmp_path: Path) -> None:
    runs = [
        Run(
            tmp_path / how,
            Plan(3, 2, 4, 2),
            model=ReplacesBuffer(lambda seen: seen + 0.1),
            data=DATA,
            seed=1,
            federation=how,
        )
        for how in ("inline", "pool")
    ]
    for run in runs:
        run.train()
        assert run.verify().ok


@pytest.mark.parametrize("lazy", [lambda: nn.LazyLinear(CLASSES), lambda: nn.Sequential(nn.LazyBatchNorm1d())])
def test_lazy_model_is_refused(lazy: Callable[[], nn.Module], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no shape yet"):
        Run(tmp_path / "run", Plan(1, 2, 2, 2), model=lazy(), data=DATA)
    assert not (tmp_path / "run").exists()


def test_result_is_not_overwritten_by_the_next_round() -> None:
    learner, start = TorchLearner(seeded(two_layers), DATA, LocalOptimizer(0.1, 0.9)), work(seeded(two_layers))
    for stop in (len(BATCHES), 2):
        found = learner.train_part(start, 0, stop).model
        before = {name: array.copy() for name, array in found.items()}
        learner.train(work(seeded(two_layers, seed=8), "a"))
        assert same(found, before)


def test_probability_targets_train_with_plain_autograd() -> None:
    """The dense tail handles class labels only; autograd handles class probabilities."""
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(6, FEATURES)).astype(np.float32), generator.random((6, CLASSES)).astype(np.float32)
    learner = TorchLearner(seeded(two_layers), FederatedData({3: dict(enumerate(zip(x, y, strict=True)))}), SGD)
    reference = seeded(two_layers)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1)
    for batch in BATCHES:
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(torch.from_numpy(x[[*batch]])), torch.from_numpy(y[[*batch]])).backward()
        optimiser.step()
    assert same(learner.train(work(seeded(two_layers))).model, weights_of(reference))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_weights_raise_non_finite_loss(value: float) -> None:
    """The loss of the last step belongs to the weights before it, so the final weights are checked as well."""
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES))
    start = work(module)
    start.model["0.weight"][0, 0], start.model["1.weight"][:, 0] = value, 0.0
    learner = TorchLearner(module, DATA, SGD)
    with pytest.raises(NonFiniteLoss, match="step 4"):
        learner.train_part(start, 4, 4, halfway=None)


def test_large_weights_with_an_overflowing_sum_are_accepted() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES))
    start = work(module)
    start.model["0.weight"][:] = np.finfo(np.float32).max
    assert same(
        TorchLearner(module, DATA, SGD).train(replace(start, rows=start.rows[:0], streams=())).model, start.model
    )


def test_error_in_the_second_part_names_the_step_within_the_round() -> None:
    data = FederatedData({3: {**samples(3), 5: (np.full(FEATURES, np.nan, np.float32), 0)}})  # first in step 3
    module = seeded(two_layers)
    learner, start = TorchLearner(module, data, LocalOptimizer()), work(module)
    with pytest.raises(NonFiniteLoss, match="step 3") as whole:
        learner.train(start)
    with pytest.raises(NonFiniteLoss) as cut:
        learner.train_part(start, 1, 4, halfway=learner.train_part(start, 0, 1).model)
    assert str(cut.value) == str(whole.value)


def test_module_with_non_persistent_buffers_is_not_split() -> None:
    module = nn.Linear(FEATURES, CLASSES)
    module.register_buffer("seen", torch.zeros(1), persistent=False)
    assert TorchLearner(module, DATA, LocalOptimizer()).halfway_like(weights_of(module)) is None


def test_two_steps_match_the_formula() -> None:
    """v ← βv + 2(w·x − y)x + λw + μ(w − w_start), w ← w − ηv; the second step tests the velocity."""

    def squares(output: Tensor, wanted: Tensor) -> Tensor:
        return ((output[:, 0] - wanted) ** 2).sum()

    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 2.0)
    data = FederatedData({0: {0: (np.array([3.0]), 1.0), 1: (np.array([-1.0]), 2.0)}})
    settings = LocalOptimizer(lr=0.01, momentum=0.5, weight_decay=0.1, prox=0.2)
    result = TorchLearner(module, data, settings, squares).train(work(module, 0, 1, ((0,), (1,)))).model
    w, v = 2.0, 0.0
    for x, y in ((3, 1), (-1, 2)):
        v = 0.5 * v + 2 * (w * x - y) * x + 0.1 * w + 0.2 * (w - 2.0)
        w -= 0.01 * v
    assert result["weight"].item() == pytest.approx(w, rel=1e-6)


def test_frozen_parameters_do_not_change() -> None:
    module = seeded(two_layers)
    next(module.parameters()).requires_grad_(False)
    before = weights_of(module)
    after = TorchLearner(module, DATA, LocalOptimizer(0.1, 0.9, 0.1, 0.1)).train(work(before)).model
    assert after["0.weight"].tobytes() == before["0.weight"].tobytes()
    assert after["2.weight"].tobytes() != before["2.weight"].tobytes()


def test_custom_loss_changes_the_model() -> None:
    def other(output: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.multi_margin_loss(output, wanted)

    default, changed = (
        TorchLearner(seeded(two_layers), DATA, LocalOptimizer(), loss).train(work(seeded(two_layers))).model
        for loss in (None, other)
    )
    assert not same(default, changed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_features_are_converted_to_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    module = seeded(two_layers).to(dtype)
    weights = TorchLearner(module, DATA, LocalOptimizer()).train(work(module)).model
    assert {array.dtype for array in weights.values()} == {torch.zeros(1, dtype=dtype).numpy().dtype}


def test_integer_features_are_not_converted() -> None:
    module = nn.Sequential(nn.Embedding(5, FEATURES), nn.Flatten(), nn.Linear(2 * FEATURES, CLASSES))
    data = FederatedData({0: {i: (np.array([i, 4 - i]), i % CLASSES) for i in range(5)}})
    weights = TorchLearner(module, data, LocalOptimizer()).train(work(module, 0, 1, ((0, 1), (2, 4)))).model
    assert all(np.isfinite(array).all() for array in weights.values())


# -------------------------------------------------------------------------------------- independent of earlier rounds


class NonPersistentBuffer(nn.Module):
    """Changes a buffer that is not in its state_dict, in place or by replacing it."""

    seen: Tensor

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.in_place = in_place
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.seen.add_(1)
        else:
            self.seen = self.seen + 1
        output: Tensor = self.layer(x)
        return output * (1 + self.seen)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "two layers": two_layers,
    "dropout": with_dropout,
    "batch norm": with_batch_norm,
    "buffer changed in place": lambda: NonPersistentBuffer(in_place=True),
    "buffer replaced": lambda: NonPersistentBuffer(in_place=False),
}
EVERYTHING = LocalOptimizer(0.1, 0.9, 0.01, 0.1)


@pytest.mark.parametrize("name", MODELS)
def test_local_round_is_independent_of_earlier_rounds(name: str) -> None:
    """No velocity, statistic, stream or buffer of other clients or earlier rounds survives."""
    start = weights_of(seeded(MODELS[name]))
    alone = TorchLearner(seeded(MODELS[name]), DATA, EVERYTHING).train(work(start)).model
    used = TorchLearner(seeded(MODELS[name]), DATA, EVERYTHING)
    used.train(work(start, "a", 1))
    used.train(work(start, 3, 2))
    assert same(used.train(work(start)).model, alone)
    again = TorchLearner(seeded(MODELS[name]), DATA, EVERYTHING)
    for _ in range(3):
        assert same(again.train(work(start)).model, alone)


def test_optimiser_state_is_reset_in_every_round() -> None:
    """Two rounds equal two fresh optimisers, not one optimiser that continues."""
    learner = TorchLearner(seeded(two_layers), DATA, LocalOptimizer(0.1, 0.9))
    first = learner.train(work(seeded(two_layers), batches=BATCHES[:2])).model
    second = learner.train(work(first, round_=2, batches=BATCHES[2:])).model
    in_one_go = TorchLearner(seeded(two_layers), DATA, LocalOptimizer(0.1, 0.9)).train(work(seeded(two_layers))).model
    reference = seeded(two_layers)
    for part in (BATCHES[:2], BATCHES[2:]):
        optimiser = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
        for batch in part:
            x, y = tensors(3, batch)
            optimiser.zero_grad()
            nn.functional.cross_entropy(reference(x), y).backward()
            optimiser.step()
    assert same(second, weights_of(reference))
    assert not same(second, in_one_go)


def test_returned_and_given_weights_are_not_modified_by_later_rounds() -> None:
    learner = TorchLearner(seeded(two_layers), DATA, LocalOptimizer())
    start = weights_of(seeded(two_layers))
    kept = {name: array.copy() for name, array in start.items()}
    first = learner.train(work(start)).model
    copy = {name: array.copy() for name, array in first.items()}
    learner.train(work(start, "a"))
    assert same(first, copy)
    assert same(start, kept)


def test_dropout_does_not_depend_on_the_global_generator() -> None:
    start = weights_of(seeded(with_dropout))
    learner, results = TorchLearner(seeded(with_dropout), DATA, LocalOptimizer()), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        results.append(learner.train(work(start)).model)
    assert same(*results)


@pytest.mark.parametrize("step", range(len(BATCHES)))
def test_dropout_depends_on_the_stream_of_every_step(step: int) -> None:
    start = weights_of(seeded(with_dropout))
    learner = TorchLearner(seeded(with_dropout), DATA, LocalOptimizer())
    other = [*STREAMS[:step], numbered_seed(99)[:16], *STREAMS[step + 1 :]]
    assert not same(learner.train(work(start)).model, learner.train(work(start, streams=other)).model)


def test_repeated_batch_has_another_dropout_mask_in_each_step() -> None:
    """Four steps on the same batch give another model than four steps with one mask."""
    start, batches = weights_of(seeded(with_dropout)), (BATCHES[0],) * 4
    learner = TorchLearner(seeded(with_dropout), DATA, LocalOptimizer())
    varied = learner.train(work(start, batches=batches)).model
    repeated = learner.train(work(start, batches=batches, streams=(STREAMS[0],) * 4)).model
    assert not same(varied, repeated)


def test_every_client_round_and_step_has_its_own_stream() -> None:
    plan, streams = Plan(1, 1, 4, 3), list[bytes]()
    for seed, client in ((1, 3), (1, "a"), (2, 3)):
        party = Client(client, IdSet(range(6)), PrfPriorities(numbered_seed(seed)), plan)
        for round_ in (1, 2, 3):
            streams += party.local_round(TrainTask(round_, client, {}))[0].streams
    assert len(streams) == len(set(streams)) == 36


# ------------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("client", [3, "ward-7"])
def test_non_finite_loss_names_client_round_and_step(client: Any, value: float) -> None:
    bad = samples()
    bad[5] = (np.full(FEATURES, value, np.float32), 0)
    learner = TorchLearner(seeded(two_layers), FederatedData({client: bad}), LocalOptimizer())
    with pytest.raises(NonFiniteLoss, match=rf"client {client}, round 12, step 3\b") as raised:
        learner.train(work(seeded(two_layers), client, 12))
    assert "--basis model-informed" in raised.value.hint, (
        "erasing a client because it failed is a choice informed by the draws"
    )
    assert 'basis="model-informed"' in raised.value.hint


def test_weights_that_overflow_in_the_last_step_raise_non_finite_loss() -> None:
    """The loss of that step is finite, and no later step would notice the overflow."""
    module = seeded(lambda: nn.Linear(FEATURES, CLASSES))
    large = FederatedData({3: {i: (100 * x, y) for i, (x, y) in samples().items()}})
    with pytest.raises(NonFiniteLoss, match="client 3, round 2, step 1"):
        TorchLearner(module, large, LocalOptimizer(3e38)).train(work(module, 3, 2, BATCHES[:1]))


def test_batch_norm_on_a_batch_of_one_is_refused() -> None:
    learner = TorchLearner(seeded(with_batch_norm), DATA, LocalOptimizer())
    with pytest.raises(TrainingFailed, match=r"BatchNorm on a batch of one \(client a, round 4, step 1\)"):
        learner.train(work(seeded(with_batch_norm), "a", 4, ((2,), (0,))))


def test_group_norm_on_a_batch_of_one_is_accepted() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.GroupNorm(2, 4), nn.Linear(4, CLASSES))
    TorchLearner(module, DATA, LocalOptimizer()).train(work(module, "a", 4, ((0,), (2,))))


def test_samples_of_different_shape_are_refused_with_the_clients_name() -> None:
    module = nn.Linear(FEATURES, CLASSES)
    uneven = FederatedData({"a": {0: (np.zeros(FEATURES), 0), 1: (np.zeros(FEATURES + 1), 0)}})
    with pytest.raises(InvalidInput, match="client a differ in shape"):
        TorchLearner(module, uneven, LocalOptimizer()).train(work(module, "a", 1, ((0, 1),)))


# -------------------------------------------------------------------------------------------------------------- weights


def test_weights_are_copies_of_every_parameter_and_buffer() -> None:
    module = seeded(with_batch_norm)
    weights = weights_of(module)
    assert weights.keys() == module.state_dict().keys()
    assert weights["1.num_batches_tracked"].shape == ()
    weights["0.weight"][:] = 0
    assert np.abs(weights_of(module)["0.weight"]).min() > 0
    other = seeded(with_batch_norm, seed=8)
    load_weights(other, weights_of(module))
    assert same(weights_of(other), weights_of(module))


@pytest.mark.parametrize("other", [lambda: nn.Linear(FEATURES, CLASSES), lambda: nn.Sequential(nn.Linear(FEATURES, 4))])
def test_weights_of_another_architecture_are_refused(other: Callable[[], nn.Module]) -> None:
    with pytest.raises(InvalidInput, match="not the one"):
        load_weights(seeded(two_layers), weights_of(other()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_unsupported_dtype_is_refused_by_name(dtype: torch.dtype) -> None:
    with pytest.raises(InvalidInput, match=r"'weight'.*" + str(dtype).replace(".", r"\.")):
        weights_of(nn.Linear(2, 2).to(dtype=dtype))


def test_model_without_parameters_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no parameters"):
        weights_of(nn.ReLU())


def test_parameter_names_exclude_buffers() -> None:
    names = parameter_names(with_batch_norm())
    assert names == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}


def test_parameter_names_include_both_names_of_tied_weights() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    assert parameter_names(nn.Sequential(first, second)) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_count_correct_returns_correct_and_total() -> None:
    module = nn.Linear(2, 2, bias=False)
    weights: Weights = {"weight": np.eye(2, dtype=np.float32)}
    test = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]]), np.array([0, 1, 1])
    assert TestSet(module, test).count_correct(weights) == (2, 3)


SETTINGS = {"name": "mlp", "inputs": 4, "hidden": 3, "classes": 2}


def test_initial_model_is_a_function_of_its_seed() -> None:
    one, again, other = (weights_of(build_model(SETTINGS, numbered_seed(n))) for n in (1, 1, 2))
    assert same(one, again)
    assert not same(one, other)
    assert one["0.weight"].shape == (3, 4)


def test_unknown_model_name_is_refused() -> None:
    with pytest.raises(PlanRefused, match="unknown model 'resnet'"):
        build_model({"name": "resnet"}, bytes(32))


# --------------------------------------------------------------------------------------------------- the caller's torch


def own_run(path: Path, data: Any = None) -> Run:
    given_data = {k: samples(k) for k in range(3)} if data is None else data
    return Run(path, Plan(2, 2, 2, 3), model=seeded(with_dropout), data=given_data, test=None, seed=1)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_callers_generator_and_thread_count_are_restored(scratch_path: Path, threads: int) -> None:
    run = own_run(scratch_path / "run")
    torch.set_num_threads(threads)
    torch.manual_seed(123)
    expected = torch.rand(4).tolist()
    for action in (lambda: run.train(2), lambda: run.forget(client=1), run.verify, run.train, run.status):
        torch.manual_seed(123)
        action()
        assert torch.get_num_threads() == threads
        assert torch.rand(4).tolist() == expected


def test_callers_generator_and_thread_count_are_restored_after_a_failure(scratch_path: Path) -> None:
    bad = {k: {i: (np.full(FEATURES, np.nan, np.float32), 0) for i in range(3)} for k in range(2)}
    run = own_run(scratch_path / "run", bad)
    torch.set_num_threads(2)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    with pytest.raises(NonFiniteLoss):
        run.train()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 2
    assert run.status().rounds_done == 0


def test_building_a_model_does_not_use_the_callers_generator() -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    build_model(SETTINGS, bytes(32))
    assert torch.equal(torch.get_rng_state(), before)


def test_thread_count_and_callers_generator_do_not_change_a_run(scratch_path: Path) -> None:
    """A run is a function of its seeds."""
    digests = set()
    for number, threads in enumerate((1, 2)):
        torch.set_num_threads(threads)
        run = own_run(scratch_path / str(number))
        torch.manual_seed(number)
        run.train()
        digests.add(run.state_digest())
    assert len(digests) == 1
