"""The content of a sample is compared when it is read for training: each drawn sample once, and no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedforget import FedForgetError, Plan, Run
from fedforget.data.client_data import ClientData
from fedforget.errors import DataChanged
from fedforget.store import run_directory

PLAN = Plan(2, 2, 2, 6)


def data_of() -> dict[int, dict[int, tuple[Any, int]]]:
    rows = np.random.default_rng(0).standard_normal((4, 8, 3)).astype(np.float32)
    return {client: {sample: (rows[client, sample], sample % 2) for sample in range(8)} for client in range(4)}


def opened(path: Path, data: Any, plan: Plan | None = None, **more: Any) -> Run:
    torch.manual_seed(0)
    return Run(path, plan, model=nn.Linear(3, 2), data=data, **more)


def first_steps(run: Run) -> dict[tuple[int, int], int | None]:
    with run_directory.reading(run.path) as found:
        return {
            (int(client), int(sample)): found.clients.first_steps(client).get(sample)
            for client in found.server.roster
            for sample in found.clients.samples(client)
        }


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[Any, Any]]:
    counts: Counter[tuple[Any, Any]] = Counter()
    real = ClientData.content

    def content(self: ClientData, identifier: Any) -> bytes:
        counts[self._client, identifier] += 1
        return real(self, identifier)

    monkeypatch.setattr(ClientData, "content", content)
    return counts


def test_training_compares_each_drawn_sample_once(tmp_path: Path, hashed: Counter[tuple[Any, Any]]) -> None:
    run = opened(tmp_path / "run", data_of(), PLAN, seed=1)
    assert hashed == dict.fromkeys(first_steps(run), 1)  # creation digests each sample once
    hashed.clear()
    run.train()
    assert hashed == {sample: 1 for sample, step in first_steps(run).items() if step is not None}


def test_request_that_changes_no_draw_reads_no_sample(tmp_path: Path, hashed: Counter[tuple[Any, Any]]) -> None:
    run = opened(tmp_path / "run", data_of(), PLAN, seed=1)
    run.train()
    client, sample = next(each for each, step in first_steps(run).items() if step is None)
    hashed.clear()
    assert run.forget(client=client, sample=sample)[0].recomputed_steps == 0
    assert not hashed


@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_changed_sample_stops_the_round_that_draws_it(tmp_path: Path, federation: str) -> None:
    straight = opened(tmp_path / "straight", data_of(), PLAN, seed=1)
    digest = straight.train().model_digest
    (client, sample), step = next((each, at) for each, at in first_steps(straight).items() if at and at > 4)
    data = data_of()
    data[client][sample] = (data[client][sample][0] + 1, data[client][sample][1])
    opened(tmp_path / "run", data_of(), PLAN, seed=1)
    run = opened(tmp_path / "run", data, federation=federation)
    with pytest.raises(DataChanged, match=f"sample {sample} of client {client}"):
        run.train()
    assert run.status().rounds_done == (step - 1) // PLAN.local_steps  # the rounds before are trained and kept
    assert opened(tmp_path / "run", data_of()).train().model_digest == digest


def test_request_is_finished_with_the_right_data(tmp_path: Path) -> None:
    """Changed data may show after the removal. The removal stays, and the recomputation waits for the data."""
    plan = Plan(2, 1, 1, 12)
    straight = opened(tmp_path / "straight", data_of(), plan, seed=1)
    straight.train()
    steps = {each: step for each, step in first_steps(straight).items() if step is not None}
    erased = min(steps, key=lambda each: steps[each])
    changed = max(steps, key=lambda each: steps[each])
    data = data_of()
    data[changed[0]][changed[1]] = (data[changed[0]][changed[1]][0] + 1, 0)
    run = opened(straight.path, data)
    with pytest.raises(FedForgetError) as refused:
        run.forget(client=erased[0], sample=erased[1])
    assert refused.value.code == "data-changed"
    assert (erased[1] in run.samples(erased[0])) == (not run.status().pending)
    right = opened(straight.path, data_of())
    right.forget(client=erased[0], sample=erased[1])
    assert right.verify().ok
    assert erased[1] not in right.samples(erased[0])
