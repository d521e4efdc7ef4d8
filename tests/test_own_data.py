"""Your own model and data, as the document shows it and in the shapes people have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from fedforget import LocalOptimizer, Plan, Request, Run, ServerOptimizer
from fedforget.algorithm.ports import LocalRound
from fedforget.errors import (
    DataChanged,
    FedForgetError,
    InvalidId,
    InvalidInput,
    LearnerDiffers,
    ModelWithdrawn,
    NonFiniteLoss,
    PlanRefused,
    RunDamaged,
    TrainingFailed,
    UnfinishedRequest,
    UnknownTarget,
)
from fedforget.store import run_directory
from fedforget.training.local_sgd import TorchLearner

DOCUMENT = Path(__file__).parent.parent / "docs" / "own-data.md"
PLAN = Plan(2, 3, 2, 4)


def numbers(count: int, seed: int = 0) -> dict[int, tuple[np.ndarray, int]]:
    rng = np.random.default_rng(seed)
    return {i: (rng.normal(size=4).astype(np.float32), i % 3) for i in range(count)}


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def test_the_ten_lines_of_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(DOCUMENT), "exec"), {})
    weights = torch.load(tmp_path / "model.pt")
    assert weights["weight"].shape == (2, 20)


def test_a_torch_dataset_per_client(tmp_path: Path) -> None:
    torch.manual_seed(1)
    data = {k: TensorDataset(torch.randn(5 + k, 4), torch.arange(5 + k) % 3) for k in range(3)}
    run = Run(tmp_path / "run", PLAN, model=linear(), data=data)
    run.train()
    receipt = run.forget(client=1, sample=5)[0]
    assert receipt.state == "purged"
    assert run.verify().ok
    assert list(run.samples(1)) == [0, 1, 2, 3, 4]


def test_a_dataset_that_makes_its_samples_on_demand(tmp_path: Path) -> None:
    class Squares(Dataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> tuple[list[float], int]:
            return [float(index), float(index**2), 0.0, 1.0], index % 3

    run = Run(tmp_path / "run", PLAN, model=linear(), data={"a": Squares(), "b": Squares()})
    run.train()
    assert run.verify().ok


def test_everyday_ingredients_together(tmp_path: Path) -> None:
    """BatchNorm, dropout, a buffer that no state_dict holds, momentum, decay, FedProx, FedAdam, a test set."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drift: torch.Tensor
            self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 3))
            self.register_buffer("drift", torch.zeros(1), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.drift += 0.1
            return self.body(x) + self.drift

    def net() -> Net:
        torch.manual_seed(3)
        return Net()

    plan = Plan(
        3, 4, 3, 6,
        LocalOptimizer(lr=0.05, momentum=0.9, weight_decay=1e-3, prox=0.1), ServerOptimizer("fedadam", lr=0.05), keep=2,
    )  # fmt: skip
    data = {k: numbers(6, seed=k) for k in range(5)}
    test = (np.stack([x for x, _ in numbers(20, 9).values()]), np.array([y for _, y in numbers(20, 9).values()]))
    gone = [Request(0), Request(2, 3), Request(2, 4)]
    forgets = Run(tmp_path / "forgets", plan, model=net(), data=data, test=test, seed=5)
    forgets.train(4)
    forgets.forget(gone[:1])
    forgets.train()
    forgets.forget(gone[1:])
    never = Run(tmp_path / "never", plan, model=net(), data=data, test=test, seed=5, without=gone)
    never.train()
    assert forgets.state_digest() == never.state_digest()
    assert forgets.status().accuracy == never.status().accuracy
    assert forgets.verify().ok
    used = forgets._engine.model.module
    with pytest.raises(LearnerDiffers, match="non-persistent buffers"):
        Run(tmp_path / "never", model=used, data=data, test=test)


def test_float64_arrays_meet_a_float32_model(tmp_path: Path) -> None:
    data = {k: {i: (np.full(4, 0.1 * i), i % 3) for i in range(4)} for k in range(2)}
    run = Run(tmp_path / "run", PLAN, model=linear(), data=data)
    assert run.train().rounds_done == PLAN.rounds


def test_erasing_everyone_withdraws_the_model(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", PLAN, model=linear(), data={0: numbers(3), 1: numbers(3)})
    run.train()
    receipts = run.forget([Request(0), Request(1)])
    assert [receipt.model_digest for receipt in receipts] == [None, None]
    status = run.status()
    assert status.withdrawn
    assert status.clients == status.samples == status.rounds_done == 0
    for action in (run.train, lambda: run.export(tmp_path / "model.pt")):
        with pytest.raises(ModelWithdrawn):
            action()
    assert run.verify().ok
    assert run.forget(client=1) == [receipts[1]]


def test_changed_content_stops_training_but_can_be_forgotten(tmp_path: Path) -> None:
    data = {0: numbers(4), 1: numbers(4, 1)}
    Run(tmp_path / "run", PLAN, model=linear(), data=data, seed=1).train(2)
    data[1][2] = (data[1][2][0] + 1, data[1][2][1])
    changed = Run(tmp_path / "run", model=linear(), data=data)
    with pytest.raises(DataChanged, match="sample 2 of client 1"):
        changed.train()
    with pytest.raises(DataChanged):
        changed.forget(client=0, sample=1)
    assert changed.status().rounds_done == 2
    assert changed.status().requests == 0
    changed.forget(client=1, sample=2)
    changed.train()
    assert changed.verify().ok


def test_missing_data_is_named(tmp_path: Path) -> None:
    data = {0: numbers(4), 1: numbers(4, 1)}
    Run(tmp_path / "run", PLAN, model=linear(), data=data).train(2)
    with pytest.raises(DataChanged, match="client 1 is missing"):
        Run(tmp_path / "run", model=linear(), data={0: numbers(4)}).train()
    without_a_sample = {0: numbers(4), 1: {i: s for i, s in numbers(4, 1).items() if i != 3}}
    run = Run(tmp_path / "run", model=linear(), data=without_a_sample)
    with pytest.raises(DataChanged, match="sample 3 of client 1 is missing"):
        run.train()
    run.forget(client=1, sample=3)
    assert run.train().rounds_done == PLAN.rounds


def test_repeated_forget_returns_the_same_receipts(tmp_path: Path) -> None:
    """A sample and its client in one batch: each went under its own request."""
    run = Run(tmp_path / "run", PLAN, model=linear(), data={k: numbers(4, seed=k) for k in range(4)}, seed=2)
    run.train()
    batch = [Request(0, 1), Request(0), Request(1, 3)]
    receipts = run.forget(batch)
    assert run.forget(batch) == receipts
    assert run.forget(batch[1]) == [receipts[1]]
    assert run.forget([Request(2), Request(0, 1)])[1].id == receipts[0].id
    with pytest.raises(InvalidInput, match="not a request"):
        run.forget([(0, 1)])  # type: ignore[list-item]


class Uncountable(Dataset):
    def __len__(self) -> int:
        raise ValueError("no file yet")


def test_bad_ingredients_are_refused_with_a_remedy(tmp_path: Path) -> None:
    good = {0: numbers(3)}
    cases: list[tuple[type[FedForgetError], str, Any]] = [
        (PlanRefused, "no clients", {}),
        (PlanRefused, "no clients", {0: {}}),
        (InvalidId, "duplicate", {0: {3: (1.0, 0), "3": (2.0, 0)}}),
        (InvalidId, "duplicate", {3: numbers(2), "3": numbers(2)}),
        (InvalidId, "cannot be the id", {-1: numbers(2)}),
        (InvalidInput, "not a pair", {0: {1: 5}}),
        (InvalidInput, "a set", {0: {1, 2}}),
        (InvalidInput, "the samples of client 0 cannot be counted: ValueError", {0: Uncountable()}),
    ]
    for number, (error, words, data) in enumerate(cases):
        with pytest.raises(error, match=words) as caught:
            Run(tmp_path / f"run{number}", PLAN, model=linear(), data=data)
        assert caught.value.hint
        assert not (tmp_path / f"run{number}" / "plan.toml").exists()
    with pytest.raises(InvalidInput, match="bfloat16"):
        Run(tmp_path / "b", PLAN, model=nn.Linear(4, 3).bfloat16(), data=good)
    with pytest.raises(UnknownTarget):
        Run(tmp_path / "w", PLAN, model=linear(), data=good, without=[Request(9)])


@pytest.mark.parametrize("seed", [7.5, True, b"x"], ids=repr)
def test_impossible_seed_creates_no_run(tmp_path: Path, seed: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be a seed"):
        Run(tmp_path / "run", PLAN, model=linear(), data={0: numbers(3)}, seed=seed)
    assert not (tmp_path / "run").exists()
    run = Run(tmp_path / "run", PLAN, model=linear(), data={0: numbers(3)}, seed=1)
    with pytest.raises(InvalidInput, match="cannot be a seed"):
        run.add(Request(0, 1), seed=seed)


def test_another_plan_for_a_run_of_ones_own_data_names_no_command(tmp_path: Path) -> None:
    """`fedforget train` could not go on with it."""
    data = {0: numbers(3), 1: numbers(3)}
    Run(tmp_path / "run", PLAN, model=linear(), data=data, seed=1)
    with pytest.raises(PlanRefused, match="another plan") as caught:
        Run(tmp_path / "run", Plan(2, 3, 2, 5), model=linear(), data=data)
    assert "model=…, data=…).train()" in caught.value.hint
    with pytest.raises(PlanRefused, match="was trained with") as caught_too:
        Run(tmp_path / "run", PLAN, model=linear(), data=data, without=[Request(1)])
    for hint in (caught.value.hint, caught_too.value.hint):
        assert "fedforget " not in hint
        assert "--" not in hint


def test_training_that_is_done_reads_its_model(tmp_path: Path) -> None:
    """Also where there is nothing to measure it on: a torn model must not be called done."""
    run = Run(tmp_path / "run", PLAN, model=linear(), data={0: numbers(3), 1: numbers(3)})
    digest = run.train().model_digest
    assert run.train().model_digest == digest
    path = tmp_path / "run" / "models" / f"{digest}.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    for until in (None, 2):
        with pytest.raises(RunDamaged, match=path.name) as caught:
            run.train(until)
        assert ".rebuild()` in Python" in caught.value.hint


def test_a_recomputation_that_cannot_finish_absorbs_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose loss becomes NaN while another is forgotten must not block the run for ever."""
    data = {k: numbers(4, seed=k) for k in range(4)}
    run = Run(tmp_path / "run", PLAN, model=linear(), data=data, seed=3)
    run.train()
    with run_directory.reading(run.path) as opened:
        rounds = opened.server.first_rounds()
    first, second = (c for c, _ in sorted(rounds.items(), key=lambda item: item[1])[:2])
    original = TorchLearner.train

    def fails(self: TorchLearner, work: LocalRound) -> Any:
        if work.client == second:
            raise NonFiniteLoss(f"client {second}")
        return original(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(TorchLearner, "train", fails)
        with pytest.raises(NonFiniteLoss):
            run.forget(client=first)
        assert run.status().pending
        with pytest.raises(UnfinishedRequest):
            run.export(tmp_path / "model.pt")
        (receipt,) = run.forget(client=second)
    assert receipt.state == "purged"
    assert [r.state for r in run.forget([Request(first), Request(second)])] == ["purged", "purged"]
    assert not run.status().pending
    gone = [Request(first), Request(second)]
    never = Run(tmp_path / "never", PLAN, model=linear(), data=data, seed=3, without=gone)
    never.train()
    assert run.state_digest() == never.state_digest()
    assert run.verify().ok


def test_a_model_that_fails_names_client_and_round(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", PLAN, model=nn.Linear(5, 3), data={"ward": numbers(4)})
    with pytest.raises(TrainingFailed, match="client ward failed in round 1"):
        run.train()
    assert run.status().rounds_done == 0


def test_samples_of_different_shape_are_refused_with_the_clients_name(tmp_path: Path) -> None:
    data = {3: {0: (np.ones(4, np.float32), 0), 1: (np.ones((2, 4), np.float32), 0)}}
    with pytest.raises(InvalidInput, match="client 3 differ in shape"):
        Run(tmp_path / "run", PLAN, model=linear(), data=data).train()


def test_another_module_than_the_run_began_with_is_refused(tmp_path: Path) -> None:
    Run(tmp_path / "run", PLAN, model=linear(), data={0: numbers(4)}).train(1)
    with pytest.raises(LearnerDiffers, match="'weight' was parameter float32 3x4 and is parameter float32 2x4"):
        Run(tmp_path / "run", model=nn.Linear(4, 2), data={0: numbers(4)})
