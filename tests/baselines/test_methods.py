"""The methods that are compared: exact where they say so, and with the same inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedforget import LocalOptimizer, Plan, Request, Run
from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.ports import State, TrainReply
from fedforget.algorithm.seeds import SeedSource
from fedforget.baselines.catalogue import METHODS
from fedforget.baselines.fats import Fats
from fedforget.baselines.fedavg import FedAvg, WeightedAverage, draw_clients_without_replacement
from fedforget.baselines.frs import Frs
from fedforget.baselines.method import Cost, Method, Problem
from fedforget.baselines.simulation import Simulation
from fedforget.data.federated import FederatedData
from fedforget.errors import InvalidInput, StorageFailed
from fedforget.session.workforce import Workforce

PLAN = Plan(2, 3, 2, 6, LocalOptimizer(lr=0.2))


def data(clients: int = 8) -> FederatedData:
    rng = np.random.default_rng(3)
    return FederatedData(
        {
            client: {sample: (rng.normal(size=4).astype(np.float32), sample % 3) for sample in range(5 + client % 3)}
            for client in range(clients)
        },
        test=(rng.normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3),
    )


def problem(seed: int = 7, **changes: object) -> Problem:
    torch.manual_seed(0)
    return Problem.of(replace(PLAN, **changes), nn.Linear(4, 3), data(), seed)  # type: ignore[arg-type]


def used(method: Fats) -> tuple[Request, Request]:
    """A sample and a client with a late first use."""
    firsts = {(c, s): step for c, steps in method.first_steps().items() for s, step in steps.items()}
    rounds = method.first_rounds()
    return Request(*max(firsts, key=lambda key: (firsts[key], key))), Request(max(rounds, key=lambda c: (rounds[c], c)))


@pytest.mark.parametrize("place", [0, 1])
def test_fats_after_unlearning_has_the_bytes_of_training_without_the_data(place: int) -> None:
    method = Fats(problem())
    method.learn(6)
    before, request = method.model_digest, used(method)[place]
    cost = method.unlearn([request])
    scratch = Fats(problem(), [request])
    scratch.learn(6)
    assert method.model_digest == scratch.model_digest != before
    assert 0 < cost.steps < 12


def test_fats_that_removes_nothing_has_other_bytes() -> None:
    """The wrong variant: without the rewind the digests differ."""

    class Lazy(Fats):
        def remove(self, requests: Sequence[Request]) -> Cost:
            return Cost()

    method = Lazy(problem())
    method.learn(6)
    request = used(method)[1]
    method.unlearn([request])
    scratch = Fats(problem(), [request])
    scratch.learn(6)
    assert method.model_digest != scratch.model_digest


def test_fats_is_what_a_run_directory_learns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = Run(tmp_path / "run", PLAN, model=nn.Linear(4, 3), data=data(), seed=7)
    run.train()
    method = Fats(problem())
    method.learn(6)
    assert method.model_digest == run.status().model_digest
    request = used(method)[0]
    run.forget(request, basis="exogenous")
    method.unlearn([request])
    assert method.model_digest == run.status().model_digest


@pytest.mark.parametrize("kind", [Fats, Frs])
def test_a_fork_goes_on_as_the_original_would(kind: type[Method]) -> None:
    one = kind(problem())
    one.learn(4)
    two, default = one.fork(), Method.fork(one)
    requests = [Request(3)]
    for method in (one, two, default):
        method.unlearn(requests)
        method.learn(6)
    assert one.model_digest == two.model_digest == default.model_digest


def test_a_fork_leaves_the_original_alone() -> None:
    method = Fats(problem())
    method.learn(6)
    before = method.model_digest
    method.fork().unlearn([used(method)[1]])
    assert method.model_digest == before


def test_frs_starts_again_without_the_data() -> None:
    method = Frs(problem())
    learned = method.learn(4)
    cost = method.unlearn([Request(0), Request(1, 2)])
    assert cost.rounds == learned.rounds == 4
    assert cost.steps == 8
    assert method.rounds_done == 4
    members = method.problem.data.members(method.gone)
    assert 0 not in members
    assert 2 not in members[1]


def test_frs_never_touches_what_it_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Frs(problem(clients_per_round=8))
    method.learn(2)
    read: list[tuple[object, object]] = []
    original = FederatedData.sample

    def noting(self: FederatedData, client: Id, sample: Id) -> object:
        read.append((client, sample))
        return original(self, client, sample)

    monkeypatch.setattr(FederatedData, "sample", noting)
    method.unlearn([Request(0), Request(1, 2)])
    assert read
    assert not [key for key in read if key[0] == 0 or key == (1, 2)]


def test_all_methods_start_from_the_same_weights() -> None:
    shared = problem()
    starts = [METHODS[name](shared).state.model for name in METHODS]
    for start in starts:
        assert all(np.array_equal(start[name], shared.initial[name]) for name in shared.initial)


def test_fedavg_cannot_unlearn() -> None:
    with pytest.raises(InvalidInput, match="cannot unlearn"):
        FedAvg(problem()).unlearn([Request(0)])


def test_clients_are_drawn_without_replacement_and_uniformly() -> None:
    """Chi-square over 10 pairs of 5 clients, 4,000 draws; the threshold has a false-alarm rate below 1e-6."""
    roster, priorities = IdSet(range(5)), PrfPriorities(bytes(range(32)))
    drawn = [tuple(sorted(draw_clients_without_replacement(priorities, roster, r, 2))) for r in range(1, 4001)]
    assert all(len(set(pair)) == 2 for pair in drawn)
    counts = Counter(drawn)
    assert len(counts) == 10
    assert sum((count - 400) ** 2 / 400 for count in counts.values()) < 46.0  # 9 degrees of freedom
    assert draw_clients_without_replacement(priorities, roster, 1, 9) == [0, 1, 2, 3, 4]


def test_taking_the_slots_with_replacement_would_repeat_clients() -> None:
    """The wrong variant is FATS's own draw."""
    method = Fats(problem(clients_per_round=8))
    with Simulation(method.problem, SeedSource(7)).server() as server:
        assert any(len(set(server.slots(round_))) < 8 for round_ in range(1, 7))


def test_weights_by_samples_are_available() -> None:
    replies = [TrainReply(0, {"w": np.array([1.0], np.float32)}), TrainReply(1, {"w": np.array([4.0], np.float32)})]
    assert WeightedAverage({0: 1, 1: 2})(State(None), [0, 1], replies).model["w"] == [3.0]

    class Weighted(FedAvg):
        weighted = True

    weighted, plain = Weighted(problem()), FedAvg(problem())
    weighted.learn(2)
    plain.learn(2)
    assert weighted.model_digest != plain.model_digest


def test_cost_counts_the_models_that_were_sent() -> None:
    method = FedAvg(problem())
    cost = method.learn(3)
    assert cost == Cost(3, 6, 2 * 3 * method.problem.model_bytes, 2 * 3 * method.problem.model_bytes)
    fats = Fats(problem(clients_per_round=8))
    assert fats.learn(3).bytes_up < 8 * 3 * fats.problem.model_bytes  # a client drawn twice is sent one model


def test_large_states_go_to_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = Fats(problem())
    in_memory.learn(6)
    monkeypatch.setattr("fedforget.baselines.simulation._IN_MEMORY", 1)
    method = Fats(problem())
    method.learn(6)
    assert isinstance(method.state.model["weight"].base, np.memmap)
    request = used(method)[1]
    in_memory.unlearn([request])
    method.unlearn([request])
    assert method.model_digest == in_memory.model_digest


def test_states_that_do_not_fit_on_the_disk_are_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedforget.baselines.simulation._IN_MEMORY", 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("U", (), {"free": 10})())
    with pytest.raises(StorageFailed, match="GB of states"):
        Fats(problem())


def test_the_pool_gives_the_same_bytes() -> None:
    inline, pooled = Fats(problem()), Fats(replace(problem(), workforce=Workforce("pool", 2)))
    for method in (inline, pooled):
        method.learn(4)
        method.unlearn([Request(2)])
    assert inline.model_digest == pooled.model_digest
