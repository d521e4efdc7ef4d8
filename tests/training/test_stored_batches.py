"""Training on samples by reference: the same bytes as on copies, in this process and in workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedforget import LocalOptimizer, Plan, Run
from fedforget.data.federated import FederatedData
from fedforget.data.ownership import Partition, federated
from fedforget.data.places import read_below
from fedforget.data.registry import DATASETS
from fedforget.data.stored import StoredData
from fedforget.training.evaluation import TestSet
from fedforget.training.local_sgd import TorchLearner
from fedforget.training.models import build_model
from fedforget.training.sample_cache import StoredBatches
from fedforget.training.weights import weights_of
from tests.data import made_up
from tests.helpers import numbered_seed

SEED = numbered_seed(1)
PLAN = Plan(clients_per_round=2, batch_size=4, local_steps=3, rounds=3, local=LocalOptimizer(lr=0.1))


def stored(base: Path, name: str, clients: int | None) -> StoredData:
    dataset = DATASETS[name]
    source = read_below(dataset, base)
    assert source is not None
    partition = Partition.of(dataset, None, clients, None, SEED)
    return federated(dataset, source, partition.kind, partition.owners(dataset, source))


@pytest.fixture
def mnist(tmp_path: Path) -> StoredData:
    made_up.write_idx(tmp_path / "mnist", made_up.images((28, 28), 10), zipped=False)
    return stored(tmp_path, "mnist", 5)


def copied(data: StoredData) -> FederatedData:
    """The same samples as arrays of their own."""
    return FederatedData(
        {client: {each: data.sample(client, each) for each in data[client].ids} for client in data.roster}
    )


def models_of(run: Run) -> list[bytes]:
    return [path.read_bytes() for path in sorted((run.path / "models").iterdir())]


@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_samples_by_reference_train_to_the_bytes_of_copies(tmp_path: Path, mnist: StoredData, federation: str) -> None:
    settings = {"name": "cnn", "side": 28, "channels": 1, "hidden": 16, "classes": 10}
    runs = [
        Run(tmp_path / name, PLAN, model=build_model(settings, SEED), data=data, seed=5, federation=federation)
        for name, data in (("stored", mnist), ("copied", copied(mnist)))
    ]
    for run in runs:
        run.train()
    assert models_of(runs[0]) == models_of(runs[1])


def test_no_copy_of_stored_samples_is_kept(mnist: StoredData) -> None:
    learner = TorchLearner(build_model(DATASETS["mnist"].models[1], SEED), mnist, PLAN.local)
    assert isinstance(learner._cache, StoredBatches)
    learner.share({}, None)  # type: ignore[arg-type]
    assert isinstance(learner._cache, StoredBatches)


def test_lstm_trains_on_windows_exactly(tmp_path: Path) -> None:
    """Windows are never laid out; forgetting one gives the run without it, byte for byte."""
    made_up.write_roles(
        tmp_path / "shakespeare" / "roles.json", made_up.roles({"LEAR": 1100, "FOOL": 1000, "GHOST": 1200})
    )
    data = stored(tmp_path, "shakespeare", None)
    settings = {"name": "lstm", "letters": 80, "embedding": 4, "hidden": 8}
    run = Run(tmp_path / "run", PLAN, model=build_model(settings, SEED), data=data, seed=5)
    run.train()
    used = next(sample for sample in run.samples("LEAR") if _first_step(run, sample))
    run.forget(client="LEAR", sample=used, basis="exogenous")
    assert run.verify().ok
    without = StoredData(
        data["LEAR"]._rows,  # type: ignore[attr-defined]
        {
            client: np.array([each for each in data[client].ids if (client, each) != ("LEAR", used)])
            for client in data.roster
        },
        data["LEAR"]._places_of,  # type: ignore[attr-defined]
        (data._test_rows, data._test_places),
        data.test_owners,
    )
    fresh = Run(tmp_path / "fresh", PLAN, model=build_model(settings, SEED), data=without, seed=5)
    fresh.train()
    assert run.state_digest() == fresh.state_digest()


def _first_step(run: Run, sample: object) -> bool:
    from fedforget.store import run_directory  # noqa: PLC0415

    with run_directory.reading(run.path) as opened:
        return sample in opened.clients.first_steps("LEAR")


def test_accuracy_is_counted_for_each_client() -> None:
    module = build_model({"name": "mlp", "inputs": 2, "hidden": 2, "classes": 2}, SEED)
    x, y = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32), np.array([0, 1, 0, 1, 0, 1, 0])
    whole = TestSet(module, (x, y)).count_correct(weights_of(module))
    owners = ("a", "b", "a", "c", "c", "c", "b")
    counts = TestSet(module, (x, y), owners).counts(weights_of(module))
    assert {owner: count for owner, (_, count) in counts.items()} == {"a": 2, "b": 2, "c": 3}
    assert sum(correct for correct, _ in counts.values()) == whole[0]
    assert TestSet(module, (x, y)).counts(weights_of(module)) == {None: whole}
    for owner in "abc":
        own = [place for place, each in enumerate(owners) if each == owner]
        assert TestSet(module, (x[own], y[own])).count_correct(weights_of(module)) == counts[owner]
