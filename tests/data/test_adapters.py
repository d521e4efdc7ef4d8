"""One's own data as a federation: arrays, torch Datasets, Hugging Face datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fedforget import Plan, Run
from fedforget.data.adapters import Clients, from_arrays, from_hugging_face, from_torch
from fedforget.errors import InvalidInput

X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = np.arange(24) % 2
OWNERS = [f"ward-{row % 3}" for row in range(24)]
IDS = [f"patient-{row}" for row in range(24)]
PLAN = Plan(clients_per_round=2, batch_size=3, local_steps=2, rounds=2)


def digest(path: Path, data: Clients) -> str:
    torch.manual_seed(0)
    run = Run(path, PLAN, model=torch.nn.Linear(4, 2), data=data, seed=3)
    run.train()
    run.forget(client="ward-1", sample="patient-4", basis="exogenous")
    assert run.verify().ok
    return run.state_digest()


def test_the_same_samples_give_the_same_run_whatever_holds_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"who": OWNERS, "id": IDS, "x": X.tolist(), "y": Y.tolist()})
    arrays = from_arrays(X, Y, clients=OWNERS, ids=IDS)
    tensors = from_torch(TensorDataset(torch.tensor(X), torch.tensor(Y)), clients=OWNERS, ids=IDS)
    found = from_hugging_face(
        table, client="who", features="x", target="y", sample_id="id", convert=lambda row: np.asarray(row, np.float32)
    )
    digests = {digest(tmp_path / str(place), data) for place, data in enumerate((arrays, tensors))}
    assert len(digests) == 1
    plain = {name: dict(samples) for name, samples in arrays.items()}
    assert {name: set(samples) for name, samples in found.items()} == {name: set(own) for name, own in plain.items()}
    assert np.array_equal(found["ward-1"]["patient-4"][0], X[4])


def test_rows_without_ids_are_numbered_by_place() -> None:
    assert {name: list(samples) for name, samples in from_arrays(X[:4], Y[:4], clients=[0, 1, 0, 1]).items()} == {
        0: [0, 2],
        1: [1, 3],
    }


def test_samples_are_read_only_when_they_are_used() -> None:
    read: list[int] = []

    class Watched:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, place: int) -> tuple[float, int]:
            read.append(place)
            return 0.0, 0

    data = from_torch(Watched(), clients=["a", "b", "a"])
    assert read == []
    assert data["a"][2] == (0.0, 0)
    assert read == [2]


def test_inputs_of_unequal_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match="24 rows"):
        from_arrays(X, Y[:3], clients=OWNERS)
    with pytest.raises(InvalidInput, match="ids"):
        from_arrays(X, Y, clients=OWNERS, ids=IDS[:3])
    with pytest.raises(InvalidInput, match="twice"):
        from_arrays(X, Y, clients=["a"] * 24, ids=[1] * 24)
    with pytest.raises(InvalidInput, match="24 samples"):
        from_torch(TensorDataset(torch.tensor(X), torch.tensor(Y)), clients=OWNERS[:3])


def test_a_column_that_is_not_there_is_named() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": [1.0], "y": [0]})
    with pytest.raises(InvalidInput, match="no column who"):
        from_hugging_face(table, client="who", features="x", target="y")
