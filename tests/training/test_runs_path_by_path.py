"""Forgetting equals training without the data, byte for byte, with real models and the files of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedforget import LocalOptimizer, Plan, Request, Run, ServerOptimizer
from fedforget.algorithm.plan import Keep
from fedforget.errors import InvalidInput
from fedforget.session import learner_check
from fedforget.training import local_sgd
from fedforget.training.local_sgd import TorchLearner
from tests.helpers import (
    KEEPS,
    Erasure,
    World,
    arrivals,
    function_files,
    reference_block,
    scratch,
    targets,
    without,
    worlds,
)

FEATURES, CLASSES = 4, 3


def plain() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, CLASSES))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


def everything() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, CLASSES)
    ).double()


def fresh(make: Callable[[], nn.Module]) -> nn.Module:
    """Make the module with the same initial weights every time."""
    torch.manual_seed(7)
    return make()


def content(client: Any, sample: Any) -> tuple[np.ndarray, int]:
    """The x and y of a sample, different for every client and sample."""
    blocks = reference_block(client) + reference_block(sample)
    generator = np.random.default_rng(list(blocks))
    return generator.normal(size=FEATURES).astype(np.float32), int(generator.integers(CLASSES))


def data_of(world: World) -> dict[Any, Any]:
    return {client: {sample: content(client, sample) for sample in samples} for client, samples in world.items()}


CASES: dict[str, tuple[Callable[[], nn.Module], LocalOptimizer, ServerOptimizer]] = {
    "plain": (plain, LocalOptimizer(), ServerOptimizer()),
    "momentum, decay, prox": (plain, LocalOptimizer(0.2, 0.9, 0.01, 0.1), ServerOptimizer()),
    "dropout": (dropout, LocalOptimizer(0.2, 0.5), ServerOptimizer()),
    "batch norm": (batch_norm, LocalOptimizer(0.1), ServerOptimizer()),
    "fedadam": (plain, LocalOptimizer(0.3), ServerOptimizer("fedadam", lr=0.1)),
    "everything": (everything, LocalOptimizer(0.1, 0.9, 0.001, 0.05), ServerOptimizer("fedadam", lr=0.05)),
}
NEEDS_TWO = {"batch norm", "everything"}


def run_at(path: Path, erasure: Erasure, case: str, *, leave_out: list[Request] | None = None) -> Run:
    make, local, server = CASES[case]
    plan = replace(erasure.plan, local=local, server=server)
    return Run(path, plan, model=fresh(make), data=data_of(erasure.world), seed=erasure.seed, without=leave_out or [])


def check(erasure: Erasure, case: str) -> None:
    """Compare the run that forgot with a run without the data, after the last request and at the end."""
    with scratch() as directory:
        forgets = run_at(directory / "forgets", erasure, case)
        last = 0
        for last, batch in erasure.arrivals:
            if not forgets.status().withdrawn:
                forgets.train(last)
            forgets.forget(batch)
        if not without(erasure.world, erasure.requests):
            check_withdrawn(forgets, erasure, case)
            return
        never = run_at(directory / "never", erasure, case, leave_out=erasure.requests)
        for rounds in (last, erasure.plan.rounds):
            for run in (forgets, never):
                run.train(rounds)
            assert forgets.state_digest() == never.state_digest()
            assert function_files(forgets.path) == function_files(never.path)


def check_withdrawn(run: Run, erasure: Erasure, case: str) -> None:
    """Every client has been erased, so only the initial model stays."""
    assert run.status().withdrawn
    with scratch() as directory:
        new = run_at(directory / "new", erasure, case)
        models = [{k: v for k, v in function_files(each.path).items() if k.startswith("models")} for each in (run, new)]
    assert models[0] == models[1]


@st.composite
def trainings(draw: st.DrawFn, case: str) -> Erasure:
    least = 2 if case in NEEDS_TWO else 1
    world = draw(worlds(clients=4, samples=5, least=least))
    K, b, E, R = (draw(st.integers(*bounds)) for bounds in ((1, 3), (least, 3), (1, 2), (3, 5)))
    plan = Plan(K, b, E, R, keep=draw(KEEPS))
    requests = draw(targets(world, leave=2 if least == 2 else 0))
    return Erasure(world, plan, draw(st.integers(0, 999)), draw(arrivals(requests, plan.rounds)))


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_forgetting_equals_training_without_the_data(case: str, data: st.DataObject) -> None:
    check(data.draw(trainings(case)), case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_forgetting_equals_training_without_the_data_in_many_examples(case: str, data: st.DataObject) -> None:
    check(data.draw(trainings(case)), case)


# ----------------------------------------------------------------------------------------------------- chosen examples

WORLD: World = {0: (0, 1, 2, "x"), "ward-7": ("a", "b", 5), 7: (0, 1), "03": (3, 4, 5, 6)}
STREAM = (
    (2, (Request("ward-7", "b"), Request(0, 2))),
    (4, (Request(7),)),
    (5, (Request("03", 3), Request(0, "x"))),
)


@pytest.mark.parametrize("keep", ["every", 2, "ends"])
@pytest.mark.parametrize("case", CASES)
def test_stream_of_requests_equals_training_without_the_data(case: str, keep: Keep) -> None:
    check(Erasure(WORLD, Plan(2, 2, 2, 6, keep=keep), 11, STREAM), case)


def test_client_emptied_sample_by_sample_equals_training_without_it() -> None:
    stream = tuple((4, (Request(0, sample),)) for sample in WORLD[0])
    check(Erasure(WORLD, Plan(3, 2, 2, 6), 5, stream), "dropout")


def test_all_clients_erased_one_by_one_leave_the_initial_model() -> None:
    check(Erasure(WORLD, Plan(2, 2, 2, 4), 5, tuple((3, (Request(client),)) for client in WORLD)), "plain")


def test_data_may_be_deleted_from_the_source_before_forget(scratch_path: Path) -> None:
    """Forgetting does not read the erased samples, so it gives the same bytes with and without them."""
    plan, gone = Plan(2, 2, 2, 5, LocalOptimizer(0.1, 0.9)), [Request("ward-7", "b"), Request(7)]
    left = data_of(without(WORLD, gone))
    run = Run(scratch_path / "forgets", plan, model=fresh(dropout), data=data_of(WORLD), seed=3)
    run.train(4)
    Run(scratch_path / "forgets", model=fresh(dropout), data=left).forget(gone)
    Run(scratch_path / "forgets", model=fresh(dropout), data=left).train()
    Run(scratch_path / "never", plan, model=fresh(dropout), data=left, seed=3).train()
    assert function_files(scratch_path / "forgets") == function_files(scratch_path / "never")


@pytest.mark.parametrize("kind", [np.float64, np.int64], ids=["float64", "int64"])
def test_erased_sample_of_another_dtype_leaves_no_trace(scratch_path: Path, kind: Any) -> None:
    """One y of another dtype could change the dtype of its whole mini-batch, which must not outlive the sample.

    Refusing samples of different dtypes also passes.
    """

    def smooth(output: Tensor, wanted: Tensor) -> Tensor:
        return torch.log(1 + ((output[:, 0] - wanted) / 3) ** 2).mean()

    data: dict[Any, Any] = {
        client: {sample: (x, np.float32(0.1 + y)) for sample, (x, y) in samples.items()}
        for client, samples in data_of(WORLD).items()
    }
    clean = {**data, 0: {sample: pair for sample, pair in data[0].items() if sample != 2}}
    data[0][2] = (data[0][2][0], kind(1))

    def trained(name: str, given_data: Any, *gone: Request) -> dict[str, bytes]:
        run = Run(scratch_path / name, Plan(4, 3, 2, 4), model=fresh(plain), data=given_data, seed=2, loss=smooth)
        run.train(1)
        run.forget(gone)
        run.train()
        return function_files(run.path)

    try:
        forgets = trained("forgets", data, Request(0, 2))
    except InvalidInput:
        return
    assert forgets == trained("never", clean)


class DatasetWithDeletions(Dataset):
    """A dataset that fails when a deleted sample is read."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.gone: set[int] = set()

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index in self.gone:
            raise FileNotFoundError(f"sample {index} was deleted")
        return content(self.client, index)


def test_erased_sample_of_a_dataset_is_not_read_again(scratch_path: Path) -> None:
    """The index in a dataset is the id, so an erased sample stays in the index range."""
    data = {client: DatasetWithDeletions(client) for client in range(3)}
    run = Run(scratch_path / "run", Plan(3, 2, 2, 6), model=fresh(plain), data=data, seed=2)
    run.train(2)
    data[1].gone.add(3)
    run.forget(client=1, sample=3)
    run.train()
    assert run.verify().ok
    with pytest.raises(FileNotFoundError):
        data[1][3]


# ------------------------------------------------------------------------------------------------------- wrong variants


def digests(scratch_path: Path, case: str) -> tuple[str, str]:
    erasure = Erasure(WORLD, Plan(2, 2, 2, 6), 11, STREAM)
    forgets = run_at(scratch_path / "forgets", erasure, case)
    for when, batch in STREAM:
        forgets.train(when)
        forgets.forget(batch)
    never = run_at(scratch_path / "never", erasure, case, leave_out=erasure.requests)
    for run in (forgets, never):
        run.train()
    return forgets.state_digest(), never.state_digest()


def test_runs_with_and_without_a_sample_differ(scratch_path: Path) -> None:
    erasure = Erasure(WORLD, Plan(2, 2, 2, 6), 11, STREAM)
    runs = [
        run_at(scratch_path / "has", erasure, "plain"),
        run_at(scratch_path / "not", erasure, "plain", leave_out=[STREAM[0][1][0]]),
    ]
    assert len({run.train().model_digest for run in runs}) == 2
    assert runs[0].state_digest() != runs[1].state_digest()


def leaky_momentum(patch: pytest.MonkeyPatch) -> None:
    """Velocities survive the round."""
    kept: dict[int, list[Tensor]] = {}
    real = TorchLearner._step

    def step(self: TorchLearner, gradients: Any, start: Any, velocities: list[Tensor]) -> None:
        real(self, gradients, start, kept.setdefault(id(self._module), velocities))

    patch.setattr(TorchLearner, "_step", step)


def global_dropout(patch: pytest.MonkeyPatch) -> None:
    """Dropout draws from the global generator."""
    patch.setattr(local_sgd, "start_stream", lambda _: None)


@pytest.mark.parametrize(("wrong", "case"), [(leaky_momentum, "momentum, decay, prox"), (global_dropout, "dropout")])
def test_mutant_of_training_is_caught(
    wrong: Callable[[pytest.MonkeyPatch], None], case: str, scratch_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = digests(scratch_path / "right", case)
    assert right[0] == right[1]
    wrong(monkeypatch)
    monkeypatch.setattr(learner_check.LearnerCheck, "require", lambda *_: None)  # it would refuse the mutant
    torch.manual_seed(1)
    differs = digests(scratch_path / "wrong", case)
    assert differs[0] != differs[1]
