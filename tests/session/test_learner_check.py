"""A run refuses another module, loss or environment before it changes anything."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import fedforget.training.environment
from fedforget import LocalOptimizer, Plan, Request, Run
from fedforget.algorithm.draws import PrfPriorities, draw_clients_with_replacement
from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.seeds import SeedSource
from fedforget.errors import (
    CommitsLost,
    EnvironmentDiffers,
    FedForgetError,
    InvalidInput,
    LearnerDiffers,
    RunDamaged,
    TrainingFailed,
)
from fedforget.federation.local import LocalFederation
from fedforget.store import run_directory
from fedforget.store.server_store import ServerStore
from fedforget.training.arithmetic import fingerprint as _fingerprint
from fedforget.training.identity import parts_of
from fedforget.training.local_sgd import TorchLearner
from tests.cli.commandline import everything_of
from tests.helpers import function_files, take_off_seals

PLAN = Plan(2, 3, 3, 6, LocalOptimizer(0.2, 0.5))
SEED = 5


def samples(count: int, seed: int) -> dict[int, tuple[np.ndarray, int]]:
    rng = np.random.default_rng(seed)
    return {i: (rng.normal(size=4).astype(np.float32), i % 3) for i in range(count)}


DATA = {client: samples(7, client) for client in range(5)}


def net(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3))


def smoothed(output: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, wanted, label_smoothing=0.1)


def same_as_default(output: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, wanted)


class HalfGradient(torch.autograd.Function):
    """The identity with half of its gradient, which a forward pass cannot detect."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / 2


class Relu(nn.Module):
    """ReLU under another name."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


class ReluWithHalfGradient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return HalfGradient.apply(torch.relu(x))


OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "loss": lambda: {"model": net(), "loss": smoothed},
    "activation": lambda: {"model": net(nn.Tanh)},
    "gradient only": lambda: {"model": net(ReluWithHalfGradient)},
    "layer settings": lambda: {"model": net(lambda: nn.LeakyReLU(0.2))},
}


def make(path: Path, plan: Plan = PLAN, **more: Any) -> Run:
    chosen: dict[str, Any] = {"model": net(), "data": DATA, "seed": SEED} | more
    return Run(path, plan, **chosen)


def late_client(run: Run) -> Request:
    """The client whose first use is the latest."""
    with run_directory.reading(run.path) as opened:
        first = opened.server.first_rounds()
    return Request(max(first, key=lambda client: (first[client], client)))


@pytest.fixture(params=[PLAN, Plan(2, 3, 1, 6), Plan(2, 3, 3, 6, keep=3), Plan(2, 3, 3, 6, keep="ends")], ids=str)
def plan(request: pytest.FixtureRequest) -> Plan:
    found: Plan = request.param
    return found


# ------------------------------------------------------------------------------------------------------------ behaviour


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_forget_with_another_learner_raises_learner_differs_and_changes_nothing(
    scratch_path: Path, other: str, federation: str
) -> None:
    run = make(scratch_path / "run")
    run.train()
    request, before = late_client(run), everything_of(run.path)
    wrong = Run(run.path, data=DATA, federation=federation, **OTHERS[other]())
    with pytest.raises(LearnerDiffers, match="the module or the loss computes something else") as caught:
        wrong.forget(request, basis="exogenous")
    assert caught.value.code == "learner-differs"
    assert function_files(run.path) == {name: before[name] for name in function_files(run.path)}
    assert run.status().requests == 0
    assert not run.status().pending
    (receipt,) = run.forget(request, basis="exogenous")
    assert receipt.state == "purged"
    never = make(scratch_path / "never", without=[request])
    never.train()
    assert function_files(run.path) == function_files(never.path)


def test_forget_with_another_learner_is_refused_under_every_keep_setting(scratch_path: Path, plan: Plan) -> None:
    run = make(scratch_path / "run", plan)
    run.train()
    request, before = late_client(run), function_files(run.path)
    for other in OTHERS.values():
        with pytest.raises(LearnerDiffers):
            Run(run.path, data=DATA, **other()).forget(request)
    assert function_files(run.path) == before
    run.forget(request)
    assert run.verify().ok


@pytest.mark.parametrize("other", OTHERS)
def test_resumed_training_with_another_learner_is_refused(scratch_path: Path, other: str) -> None:
    run = make(scratch_path / "run")
    run.train(3)
    before = function_files(run.path)
    with pytest.raises(LearnerDiffers):
        Run(run.path, data=DATA, **OTHERS[other]()).train()
    assert function_files(run.path) == before
    assert run.train().rounds_done == PLAN.rounds


def test_run_pending_and_add_with_another_learner_are_refused(scratch_path: Path) -> None:
    run = make(scratch_path / "run", without=[Request(4)])
    run.train()
    wrong = Run(run.path, data=DATA, model=net(), loss=smoothed)
    before = function_files(run.path)
    with pytest.raises(LearnerDiffers):
        wrong.add([Request(4)], seed=SEED)
    run.forget(late_client(run), defer=True)
    with pytest.raises(LearnerDiffers):
        wrong.run_pending()
    assert function_files(run.path) == before
    assert [receipt.state for receipt in run.run_pending()] == ["purged"]


def test_interrupted_batch_is_not_finished_by_another_learner(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(scratch_path / "run")
    run.train()
    request = late_client(run)
    with monkeypatch.context() as patch:
        patch.setattr("fedforget.algorithm.forget.apply", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.forget(request)
    assert run.status().pending
    before = function_files(run.path)
    for finish in (lambda wrong: wrong.train(), lambda wrong: wrong.forget(request)):
        with pytest.raises(LearnerDiffers):
            finish(Run(run.path, data=DATA, model=net(), loss=smoothed))
        assert function_files(run.path) == before
    run.train()
    never = make(scratch_path / "never", without=[request])
    never.train()
    assert function_files(run.path) == function_files(never.path)


@contextlib.contextmanager
def interrupted_before_learning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The block is interrupted when the data are removed, before a round is computed."""
    with monkeypatch.context() as patch:
        patch.setattr("fedforget.algorithm.forget.learn", _interrupt)
        patch.setattr("fedforget.requests.processor.learn", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            yield


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_request_that_rewinds_to_round_0_checks_the_learner_at_another_client(scratch_path: Path) -> None:
    run = make(scratch_path / "run")
    run.train()
    with run_directory.reading(run.path) as opened:
        first = next(client for client, round_ in opened.server.first_rounds().items() if round_ == 1)
    with pytest.raises(LearnerDiffers):
        Run(run.path, data=DATA, model=net(nn.Tanh)).forget(client=first)
    run.forget(client=first)
    assert run.verify().ok


def test_renamed_learner_that_computes_the_same_is_recorded_and_accepted(scratch_path: Path) -> None:
    run = make(scratch_path / "run")
    run.train()
    request = late_client(run)
    renamed = Run(run.path, data=DATA, model=net(Relu), loss=same_as_default)
    renamed.forget(request)
    with run_directory.reading(run.path) as opened:
        (event,) = [event for event in opened.record.events() if event["kind"] == "learner renamed"]
        assert opened.record.learner["loss"] == f"{__name__}.same_as_default"
    assert "cross_entropy" in " ".join(event["differences"])
    assert run.verify().ok
    never = make(scratch_path / "never", without=[request])
    never.train()
    assert function_files(run.path) == function_files(never.path), "the record names the learner, the function does not"


def test_changed_learner_is_checked_by_every_client_of_the_round(scratch_path: Path) -> None:
    """Class weights may differ for one class only, which the mini-batches of a single client may lack."""
    run = make(scratch_path / "run", loss=nn.CrossEntropyLoss())
    run.train()
    request = late_client(run)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 5.0]))
    assert parts_of(net(), weighted)["loss"] != parts_of(net(), nn.CrossEntropyLoss())["loss"]
    checked = list[Any]()
    real = LocalFederation.repeats

    def repeats(self: LocalFederation, task: Any, *rest: Any, **how: Any) -> bool | None:
        checked.append(task.client)
        return real(self, task, *rest, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFederation, "repeats", repeats)
        Run(run.path, model=net(Relu), data=DATA, loss=nn.CrossEntropyLoss()).forget(request)
    assert len(checked) == len(set(checked)) == 2, "both clients of the round, since the module has another name"
    with pytest.raises(LearnerDiffers, match="CrossEntropyLoss"):
        Run(run.path, model=net(), data=DATA, loss=weighted).forget(late_client(run))


def first_drawn(run: Run) -> Any:
    with run_directory.reading(run.path) as opened:
        return next(client for client, round_ in opened.server.first_rounds().items() if round_ == 1)


def test_renamed_learner_is_refused_if_no_witness_can_be_repeated(scratch_path: Path) -> None:
    """The only client of round 1 is forgotten, its data are gone, and no later round has a witness."""
    run = make(scratch_path / "run", Plan(1, 3, 2, 3, keep="ends"))
    run.train()
    first, before = first_drawn(run), function_files(run.path)
    rest = {client: held for client, held in DATA.items() if client != first}
    with pytest.raises(LearnerDiffers, match="no earlier step can be repeated"):
        Run(run.path, model=net(Relu), data=rest).forget(client=first)
    assert function_files(run.path) == before
    assert run.status().requests == 0
    run.forget(client=first)
    assert run.verify().ok


@pytest.mark.parametrize("keep", ["every", "ends"])
@pytest.mark.parametrize("gone", ["a sample of each client", "a client of one"])
def test_learner_is_checked_with_data_that_leave_if_every_client_loses_something(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Any, gone: str
) -> None:
    data = DATA if gone == "a sample of each client" else {0: DATA[0]}
    run = Run(scratch_path / "run", Plan(1, 3, 3, 6, keep=keep), model=net(Changing), data=data, seed=SEED)
    run.train()
    before = function_files(run.path)
    requests = [Request(client, sample) for client in data for sample in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(Changing, "function", torch.tanh)
        with pytest.raises(LearnerDiffers, match="trained round"):
            run.forget(requests, recompute_all=True)
    assert function_files(run.path) == before
    run.forget(requests, recompute_all=True)
    assert run.verify().ok


def test_changed_content_of_a_leaving_sample_does_not_block_its_erasure(scratch_path: Path) -> None:
    """The last resort compares on data that leave, but only where they are what the run began with."""
    run = make(scratch_path / "run", Plan(1, 3, 3, 6), data={0: DATA[0]})
    run.train()
    other = {0: {**DATA[0], 0: (np.ones(4, np.float32), 1)}}
    Run(run.path, model=net(), data=other).forget(Request(0, 0), recompute_all=True)
    assert run.verify().ok


def without_half(data: dict[int, dict[int, Any]]) -> tuple[dict[int, dict[int, Any]], list[Request]]:
    """Data whose clients lost most of their samples, and the requests to erase them."""
    gone = [Request(client, sample) for client in data for sample in range(4)]
    return {client: {key: held[key] for key in held if key > 3} for client, held in data.items()}, gone


def test_learner_that_cannot_be_compared_is_refused_before_anything_is_removed(
    scratch_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every client loses samples that are no longer in the data."""
    run = make(scratch_path / "run", plan, model=net(Changing))
    run.train()
    rest, requests = without_half(DATA)
    before = function_files(run.path)
    with monkeypatch.context() as patch:
        patch.setattr(Changing, "function", torch.tanh)
        ways: tuple[dict[str, Any], ...] = {}, {"new_seed": True}, {"accept_mixed": True}
        for more in ways:
            with pytest.raises(LearnerDiffers, match="no earlier step can be repeated") as caught:
                Run(run.path, model=net(Changing), data=rest).forget(requests, **more)
            assert caught.value.code == "learner-differs"
            assert "recompute_all=True" in caught.value.hint
    assert function_files(run.path) == before
    assert (run.status().requests, run.status().pending) == (0, False)


@pytest.mark.parametrize("way", ["the data once more", "recompute all"])
def test_refused_erasure_of_data_that_are_gone_has_two_ways_out(
    scratch_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = make(scratch_path / "run")
    run.train()
    rest, requests = without_half(DATA)
    left = Run(run.path, model=net(), data=rest)
    with pytest.raises(LearnerDiffers):
        left.forget(requests)
    if way == "recompute all":
        left.forget(requests, recompute_all=True)
        assert "nothing shows that the module and the loss are those that trained" in caplog.text
        with run_directory.reading(run.path) as opened:
            (event,) = [event for event in opened.record.events() if event["kind"] == "learner renamed"]
        assert (event["compared"], event["differences"]) == (False, [])
    else:
        run.forget(requests)
    never = make(scratch_path / "never", data=rest)
    never.train()
    assert function_files(run.path) == function_files(never.path)
    assert left.verify().ok
    left.forget(late_client(left))


def test_recomputation_with_an_uncompared_learner_is_finished_by_that_learner_only(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(scratch_path / "run", model=net(Changing))
    run.train()
    rest, requests = without_half(DATA)
    left = Run(run.path, model=net(Changing), data=rest)
    with interrupted_before_learning(monkeypatch):
        left.forget(requests, recompute_all=True)
    with monkeypatch.context() as patch:
        patch.setattr(Changing, "function", torch.tanh)
        for anew in (False, True):
            with pytest.raises(LearnerDiffers, match="than when the request began"):
                left.train(recompute_all=anew)
    left.train()
    assert left.verify().ok


def test_client_whose_first_steps_hold_no_lost_sample_repeats_its_witness(scratch_path: Path) -> None:
    """One sample of every client is gone: a round whose first steps drew other samples can be repeated."""
    data = {client: samples(60, client) for client in range(2)}
    run = make(scratch_path / "run", Plan(2, 3, 5, 8), data=data, model=net())
    run.train()
    with run_directory.reading(run.path) as opened:
        firsts = {client: opened.clients.first_steps(client) for client in data}
    gone = [Request(client, min(used, key=lambda each: (used[each], each))) for client, used in firsts.items()]
    rest = {client: {key: pair for key, pair in held.items() if Request(client, key) not in gone}
            for client, held in data.items()}  # fmt: skip
    with pytest.raises(LearnerDiffers, match="trained round"):
        Run(run.path, model=net(nn.Tanh), data=rest).forget(gone)
    Run(run.path, model=net(), data=rest).forget(gone)
    never = make(scratch_path / "never", Plan(2, 3, 5, 8), data=rest)
    never.train()
    assert function_files(run.path) == function_files(never.path)


def test_all_clients_are_erased_although_no_learner_can_be_compared(scratch_path: Path) -> None:
    """No round follows, so no learner matters."""
    run = make(scratch_path / "run")
    run.train()
    receipts = Run(run.path, model=net(), data={9: DATA[0]}).forget([Request(client) for client in DATA])
    assert {receipt.state for receipt in receipts} == {"purged"}
    assert run.status().clients == 0


def test_request_on_a_run_whose_batch_was_interrupted_at_round_0_compares_any_pledge(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch touches the client that pledged for the other."""
    data = {client: DATA[client] for client in range(2)}
    run = make(scratch_path / "run", data=data, model=net(Changing))
    run.train()
    for client in data:
        with interrupted_before_learning(monkeypatch):
            run.forget(client=client, sample=0, recompute_all=True)
    with monkeypatch.context() as patch:
        patch.setattr(Changing, "function", torch.tanh)
        with pytest.raises(LearnerDiffers):
            run.train()
    run.train()
    assert run.verify().ok


TEST = (np.random.default_rng(9).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 3)


def test_another_learner_measures_nothing_on_a_finished_run(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(scratch_path / "run", test=TEST, model=net(Changing))
    run.train()
    before, measured = everything_of(run.path), run.status().accuracies
    with monkeypatch.context() as patch:
        patch.setattr(Changing, "function", torch.sin)
        with pytest.raises(LearnerDiffers, match="trained round"):
            run.train(eval_every=1)
    assert everything_of(run.path)["metrics.db"] == before["metrics.db"]
    assert run.status().accuracies == measured
    assert run.train(eval_every=1).accuracies.keys() >= {1, 2, 3, 4, 5, 6}


def test_request_that_recomputes_nothing_is_carried_out_but_not_measured_by_another_learner(
    scratch_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = {**DATA, 5: samples(90, 5)}
    run = make(scratch_path / "run", data=data, test=TEST)
    run.train()
    with run_directory.reading(run.path) as opened:
        used = opened.clients.first_steps(5)
    unused = next(sample for sample in data[5] if sample not in used)
    measured = run.status().accuracies
    wrong = Run(run.path, data=data, model=net(nn.Tanh), test=TEST)
    (receipt,) = wrong.forget(client=5, sample=unused, eval_every=1)
    assert receipt.state == "purged"
    assert "the model is not measured" in caplog.text
    assert run.status().accuracies == measured


def test_measuring_a_finished_run_without_its_data_warns(scratch_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make(scratch_path / "run", test=TEST)
    run.train()
    Run(run.path, data={9: DATA[0]}, model=net(), test=TEST).train(eval_every=1)
    assert "could not be compared" in caplog.text


@pytest.mark.parametrize("clients", [1, 5])
def test_interrupted_batch_that_touches_every_client_is_not_finished_by_another_learner(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    data = {client: DATA[client] for client in range(clients)}
    run = Run(scratch_path / "run", Plan(1, 3, 3, 6), model=net(Changing), data=data, seed=SEED)
    run.train()
    requests = [Request(client, sample) for client in data for sample in range(4)]
    with interrupted_before_learning(monkeypatch):
        run.forget(requests, recompute_all=True)
    with monkeypatch.context() as patch:
        patch.setattr(Changing, "function", torch.tanh)
        with pytest.raises(LearnerDiffers, match="than when the request began"):
            run.train()
    run.train()
    assert run.verify().ok


def test_batch_begun_in_another_environment_that_left_no_witness_needs_recompute_all(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(scratch_path / "run")
    run.train()
    first = first_drawn(run)
    with interrupted_before_learning(monkeypatch):
        run.forget(client=first)
    monkeypatch.setattr("fedforget.session.pledge._environment", lambda: "another")
    with pytest.raises(EnvironmentDiffers, match="begun in another environment"):
        run.train()
    run.train(recompute_all=True)
    assert run.verify().ok


def test_renamed_learner_before_the_first_round_is_recorded_and_accepted(scratch_path: Path) -> None:
    run = make(scratch_path / "run")
    Run(run.path, model=net(nn.Tanh), data=DATA).train()
    with run_directory.reading(run.path) as opened:
        (event,) = [event for event in opened.record.events() if event["kind"] == "learner renamed"]
    assert event["compared"] is False
    assert Run(run.path, model=net(nn.Tanh), data=DATA).verify().ok, "every round was trained by the new learner"


class Changing(nn.Module):
    """An activation whose function a test replaces while its name stays."""

    function: Callable[[Tensor], Tensor] = torch.relu

    def forward(self, x: Tensor) -> Tensor:
        return type(self).function(x)


def test_rewind_to_round_0_repeats_a_later_witness_if_every_client_of_round_1_loses_data(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(scratch_path / "run", Plan(1, 3, 3, 25), model=net(Changing))
    run.train()
    first, before = first_drawn(run), function_files(run.path)
    with monkeypatch.context() as patch:
        patch.setattr(Changing, "function", torch.tanh)
        with pytest.raises(LearnerDiffers, match=r"trained round ([2-9]|10|11|21)\b"):
            run.forget(client=first)
    assert function_files(run.path) == before
    run.forget(client=first)
    assert run.verify().ok


@pytest.mark.parametrize("wrong", ["raises", "infinite"])
@pytest.mark.parametrize("late", [True, False])
def test_failing_learner_is_refused_before_any_data_are_removed(scratch_path: Path, wrong: str, late: bool) -> None:
    def raises(output: Tensor, wanted: Tensor) -> Tensor:
        raise RuntimeError("a mistake")

    def infinite(output: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, wanted) * float("inf")

    run = make(scratch_path / "run")
    run.train()
    request = late_client(run) if late else Request(first_drawn(run), 0)
    before = function_files(run.path)
    losses = {"raises": raises, "infinite": infinite}
    with pytest.raises(TrainingFailed if wrong == "raises" else LearnerDiffers) as caught:
        Run(run.path, model=net(), data=DATA, loss=losses[wrong]).forget(request, recompute_all=not late)
    assert "model-informed" not in caught.value.hint
    assert function_files(run.path) == before
    assert not run.status().pending
    assert run.status().requests == 0
    run.forget(request)
    assert run.verify().ok


def test_interrupted_rewind_to_round_0_is_not_finished_by_another_learner(scratch_path: Path) -> None:
    run = make(scratch_path / "run")
    run.train()
    first = first_drawn(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchLearner, "train", _interrupt_whole_rounds(TorchLearner.train))
        with pytest.raises(KeyboardInterrupt):
            run.forget(client=first)
    assert (run.status().rounds_done, run.status().pending) == (0, True)
    with pytest.raises(LearnerDiffers):
        Run(run.path, model=net(nn.Tanh), data=DATA).train()
    run.train()
    assert run.verify().ok


@pytest.mark.parametrize("level", ["client", "sample", "new seeds", "added"])
@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_interrupted_rewind_to_round_0_is_not_finished_by_a_learner_of_the_same_names(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, federation: str
) -> None:
    """No witness is left after it; the intent has a pledge of the learner that began."""
    run = make(scratch_path / "run", model=net(Changing), without=[Request(4)], federation=federation)
    run.train()
    first = first_drawn(run)

    def ask() -> None:
        if level == "added":
            run.add(Request(4), seed=SEED, recompute_all=True)
        elif level == "new seeds":
            run.forget(new_seed=True)
        else:
            run.forget(Request(first, None if level == "client" else 0), recompute_all=level == "sample")

    with interrupted_before_learning(monkeypatch):
        ask()
    assert (run.status().rounds_done, run.status().pending) == (0, True)
    before = function_files(run.path)
    with monkeypatch.context() as patch:
        patch.setattr(Changing, "function", torch.tanh)
        with pytest.raises(LearnerDiffers, match="than when the request began"):
            run.train()
    assert function_files(run.path) == before
    run.train()
    assert run.verify().ok
    with contextlib.closing(sqlite3.connect(run.path / "record.db")) as record:
        assert record.execute("SELECT count(*) FROM intents").fetchone() == (0,), "the pledge goes with the intent"


def test_rewind_to_round_0_interrupted_between_clients_and_server_is_finished(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients' witnesses are gone by then, and the server still has the rounds: that is no damage."""
    run = make(scratch_path / "run")
    run.train()
    first = first_drawn(run)
    with monkeypatch.context() as patch:
        patch.setattr(ServerStore, "rewind", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.forget(client=first)
    assert run.status().pending
    run.train()
    never = make(scratch_path / "never", without=[Request(first)])
    never.train()
    assert function_files(run.path) == function_files(never.path)


def _interrupt_whole_rounds(real: Any) -> Any:
    """Let two calls through, which repeat a witness and make a pledge, and interrupt the rest."""
    calls = list[Any]()

    def train(self: TorchLearner, work: Any) -> Any:
        calls.append(work.client)
        return real(self, work) if len(calls) <= 2 else _interrupt()

    return train


class ColumnMajor(nn.Module):
    """Two dense layers whose weights are stored by columns."""

    def __init__(self, *, trains_front: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.front = nn.Parameter((torch.randn(5, 4) / 2).t())
        self.back = nn.Parameter((torch.randn(3, 5) / 2).t())
        self._trains_front = trains_front

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(x @ self.front)
        return (hidden if self._trains_front else hidden.detach()) @ self.back


@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_weights_in_column_order_have_witnesses(scratch_path: Path, federation: str) -> None:
    run = make(scratch_path / "run", Plan(2, 3, 1, 12), model=ColumnMajor(), federation=federation)
    run.train(11)
    assert run.verify().ok
    with pytest.raises(LearnerDiffers):
        Run(run.path, model=ColumnMajor(trains_front=False), data=DATA).train()
    other = ColumnMajor()
    with torch.no_grad():
        other.front.mul_(2)  # the run ignores the weights of the module it is given
    Run(run.path, model=other, data=DATA).train()
    run.forget(late_client(run))
    assert run.verify().ok


def test_learner_check_of_a_mixed_run_uses_a_round_of_the_present_environment(
    scratch_path: Path, set_processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_processor("old")
    run = make(scratch_path / "run", replace(PLAN, rounds=20), model=net(Changing))
    run.train(5)
    set_processor("new")
    run.train(15, accept_mixed=True)
    with monkeypatch.context() as patch:
        patch.setattr(Changing, "function", torch.tanh)
        with pytest.raises(LearnerDiffers, match="trained round 11"):
            run.train(accept_mixed=True)
    assert run.train(accept_mixed=True).rounds_done == 20


def test_forget_that_recomputes_nothing_does_not_check_the_learner(scratch_path: Path) -> None:
    data = {**DATA, 5: samples(90, 5)}
    run = make(scratch_path / "run", data=data)
    run.train()
    with run_directory.reading(run.path) as opened:
        used = opened.clients.first_steps(5)
    unused = next(sample for sample in data[5] if sample not in used)
    (receipt,) = Run(run.path, data=data, model=net(), loss=smoothed).forget(client=5, sample=unused)
    assert (receipt.state, receipt.recomputed_steps) == ("purged", 0)
    assert Run(run.path, data=data, model=net()).verify().ok


@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_sample_already_deleted_from_the_data_can_be_forgotten(scratch_path: Path, federation: str) -> None:
    """The client that loses the sample is also the one that repeats its witness."""
    plan = Plan(1, 2, 2, 30)
    data = {0: samples(60, 0)}
    run = make(scratch_path / "run", plan, data=data)
    run.train()
    with run_directory.reading(run.path) as opened:
        used = opened.clients.first_steps(0)
    sample = max(used, key=lambda each: (used[each], each))
    assert used[sample] > plan.local_steps, "first used after round 1"
    left = {0: {key: pair for key, pair in data[0].items() if key != sample}}
    Run(run.path, model=net(), data=left, federation=federation).forget(client=0, sample=sample)
    never = make(scratch_path / "never", plan, data=left)
    never.train()
    assert function_files(run.path) == function_files(never.path)


def test_client_that_fails_to_repeat_its_witness_is_replaced_by_another(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, local_steps=6)
    run = make(scratch_path / "run", plan)
    run.train()
    request, checked = late_client(run), list[Any]()
    real = TorchLearner.train

    def fails_once(self: TorchLearner, work: Any) -> Any:
        if len(work.rows) < plan.local_steps:  # only the repetition of a witness takes so few steps
            checked.append(work.client)
            if len(checked) == 1:
                raise RuntimeError("a transient failure")
        return real(self, work)

    monkeypatch.setattr(TorchLearner, "train", fails_once)
    run.forget(request)
    assert len(checked) == 2
    assert len(set(checked)) == 2
    assert run.verify().ok


def test_learner_check_costs_five_steps_of_one_client(scratch_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(PLAN, local_steps=20)
    run = make(scratch_path / "run", plan)
    run.train()
    request, taken = late_client(run), list[int]()
    real = TorchLearner._step
    with run_directory.reading(run.path) as opened:
        rounds = plan.rounds - opened.server.first_rounds()[request.client] + 1

    def step(self: TorchLearner, *arguments: Any) -> None:
        taken.append(1)
        real(self, *arguments)

    monkeypatch.setattr(TorchLearner, "_step", step)
    run.forget(request)
    assert len(taken) % plan.local_steps == 5, "the other steps are whole local rounds"
    assert len(taken) <= 5 + rounds * plan.clients_per_round * plan.local_steps


# ----------------------------------------------------------------------------------------------------------- witnesses


def witnesses(run: Run) -> dict[tuple[Any, int], bytes]:
    with run_directory.reading(run.path) as opened:
        return {
            (client, round_): witness
            for client in opened.clients.clients()
            for round_, witness in opened.clients.witnesses(client).items()
        }


@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_witnesses_exist_for_the_first_ten_rounds_and_about_every_tenth(
    scratch_path: Path, plan: Plan, federation: str
) -> None:
    plan = replace(plan, rounds=27)
    run = make(scratch_path / "run", plan, federation=federation)
    run.train()
    noted = witnesses(run)
    expected = {3: (1, 4, 7, 10, 13, 25), "ends": (1,), "every": (*range(1, 12), 21)}[plan.keep]
    slots = PrfPriorities(SeedSource(SEED).server().value)
    assert set(noted) == {
        (client, round_)
        for round_ in expected
        for client in draw_clients_with_replacement(slots, IdSet(DATA), round_, plan.clients_per_round)
    }
    assert len(set(noted.values())) == len(noted), "each is keyed by its client and round"
    assert all(len(witness) == 40 for witness in noted.values())
    other = make(scratch_path / "other", plan, seed=SEED + 1)
    other.train()
    assert not set(witnesses(other).values()) & set(noted.values())


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_witnesses_do_not_depend_on_the_number_of_workers(scratch_path: Path, workers: int) -> None:
    """A pool may split a local round before or after the steps that its witness covers."""
    plan = Plan(3, 3, 7, 11, LocalOptimizer(0.2, 0.5))
    inline = make(scratch_path / "inline", plan)
    inline.train()
    pool = make(scratch_path / "pool", plan, federation="pool", workers=workers)
    pool.train()
    assert witnesses(pool) == witnesses(inline)


def test_verify_fails_on_an_altered_witness(scratch_path: Path) -> None:
    run = make(scratch_path / "run")
    run.train()
    _execute(run.path / "uses.db", "UPDATE witnesses SET witness = zeroblob(40) WHERE rowid_or_first", ())
    found = run.verify()
    assert (found.ok, found.witnesses_ok, found.bitwise_equal) == (False, False, True)


def _execute(path: Path, sql: str, values: tuple[Any, ...]) -> None:
    """Run one statement on witnesses, and delete the seals, as after a crash.

    ``rowid_or_first`` stands for the condition that selects one witness of the last round.
    """
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        if "rowid_or_first" in sql:
            client, round_ = database.execute("SELECT client, round FROM witnesses ORDER BY round DESC").fetchone()
            sql, values = sql.replace("rowid_or_first", "client = ? AND round = ?"), (client, round_)
        database.execute(sql, values)
    take_off_seals(path.parent)


def test_missing_witnesses_raise_run_damaged(scratch_path: Path) -> None:
    run = make(scratch_path / "run")
    run.train()
    request = late_client(run)
    _execute(run.path / "uses.db", "DELETE FROM witnesses", ())
    with pytest.raises(RunDamaged, match="witness"):
        run.forget(request)
    assert not run.verify().ok


def test_missing_witness_of_the_last_round_raises_commits_lost(scratch_path: Path, plan: Plan) -> None:
    run = make(scratch_path / "run", plan)
    run.train()
    last = max(round_ for _, round_ in witnesses(run))
    _execute(run.path / "uses.db", "DELETE FROM witnesses WHERE round = ?", (last,))
    with pytest.raises(CommitsLost, match="lacks a witness"):
        run.train()
    with pytest.raises(CommitsLost, match="lacks a witness"):
        run.state_digest()


# ------------------------------------------------------------------------------------------------------------ structure


def frozen() -> nn.Module:
    module = net()
    module[0].requires_grad_(False)
    return module


class WithBuffer(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*net())
        self.register_buffer("seen", torch.zeros(1))


@pytest.mark.parametrize(
    ("module", "difference"),
    [
        (lambda: net().double(), "'0.weight' was parameter float32 5x4 and is parameter float64 5x4"),
        (frozen, "'0.weight' was parameter float32 5x4 and is frozen float32 5x4"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), "is parameter float32 6x4"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), "and is not there"),
        (WithBuffer, "'seen' was not there and is buffer float32 1"),
    ],
)
def test_opening_a_run_with_another_model_structure_is_refused(
    scratch_path: Path, module: Callable[[], nn.Module], difference: str
) -> None:
    run = make(scratch_path / "run")
    run.train(2)
    before = everything_of(run.path)
    with pytest.raises(LearnerDiffers, match="not the one that") as caught:
        Run(run.path, data=DATA, model=module())
    assert difference in caught.value.message
    assert everything_of(run.path) == before


# ---------------------------------------------------------------------------------------------------------------- modes


@contextlib.contextmanager
def switched(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def _set_mkldnn(value: bool) -> None:
    torch.backends.mkldnn.enabled = value  # type: ignore[assignment]


def _rounded(result: Any) -> Any:
    return result.bfloat16().to(result.dtype) if isinstance(result, Tensor) and result.is_floating_point() else result


class RoundingFunctions(TorchFunctionMode):
    """Rounds the result of every function of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _rounded(func(*args, **(kwargs or {})))


class RoundingOperations(TorchDispatchMode):
    """Rounds the products of matrices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return _rounded(result) if "mm" in str(func) else result


def _rounded_inputs(_: nn.Module, given: Any) -> Any:
    return tuple(map(_rounded, given))


@contextlib.contextmanager
def hooks_for_all_modules() -> Iterator[None]:
    """Round what modules get, return and pass back."""
    hooks = nn.modules.module
    handles: list[Any] = [
        hooks.register_module_forward_pre_hook(cast(Any, _rounded_inputs)),
        hooks.register_module_forward_hook(lambda _, given, result: _rounded(result)),
        hooks.register_module_forward_hook(
            lambda _, given, named, result: _rounded(result), with_kwargs=True, always_call=True
        ),
        hooks.register_module_full_backward_hook(lambda _, given, result: _rounded_inputs(_, given)),
        hooks.register_module_full_backward_pre_hook(_rounded_inputs),
        hooks.register_module_parameter_registration_hook(lambda _, name, parameter: None),
    ]
    before = [dict(handle.hooks_dict_ref()) for handle in handles]
    try:
        yield
        assert [dict(handle.hooks_dict_ref()) for handle in handles] == before, "they are put back"
    finally:
        for handle in handles:
            handle.remove()
        cast(Any, hooks)._global_forward_hooks_with_kwargs.clear()  # ``remove`` forgets it


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu"),
    "no mkldnn": lambda: switched(lambda: torch.backends.mkldnn.enabled, _set_mkldnn, False),
    "low precision": lambda: switched(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "default dtype": lambda: switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": lambda: switched(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "no denormals": lambda: switched(lambda: False, torch.set_flush_denormal, True),
    "three threads": lambda: switched(torch.get_num_threads, torch.set_num_threads, 3),
    "default device": lambda: switched(lambda: None, torch.set_default_device, "meta"),
    "device context": lambda: torch.device("meta"),
    "attention backend": lambda: sdpa_kernel(SDPBackend.MATH),
    "function mode": RoundingFunctions,
    "dispatch mode": RoundingOperations,
    "hooks for all modules": hooks_for_all_modules,
    "hooks on saved tensors": lambda: saved_tensors_hooks(lambda saved: saved, _rounded),
}


def conv_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(4, 48), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inside(x).view(len(x), 1, 4, 12).split(4, -1)
        found = nn.functional.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.outside(found.flatten(1))
        return mixed


def attention_net() -> nn.Module:
    torch.manual_seed(2)
    return Attention()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("build", [net, conv_net, attention_net])
def test_torch_mode_of_the_caller_changes_no_bit_and_is_restored(
    scratch_path: Path, mode: str, build: Callable[[], nn.Module]
) -> None:
    default = make(scratch_path / "default", model=build())
    default.train()
    module = build()
    with MODES[mode]():
        grad = torch.is_grad_enabled()
        inside = make(scratch_path / "inside", model=module)
        inside.train(3)
        inside.train()
        assert inside.verify().ok
        assert torch.is_grad_enabled() == grad
    assert function_files(inside.path) == function_files(default.path)
    request = late_client(default)
    default.forget(request)
    with MODES[mode]():
        inside.forget(request)
    assert function_files(inside.path) == function_files(default.path)


@pytest.mark.parametrize("kind", ["hook on the module", "replaced function"])
def test_hook_of_the_module_and_replaced_function_are_part_of_the_learner(
    scratch_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = make(scratch_path / "run", model=attention_net())
    run.train(3)
    module = attention_net()
    if kind == "hook on the module":
        module.register_forward_hook(lambda _, given, result: _rounded(result))
    else:
        real = nn.functional.scaled_dot_product_attention
        monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", lambda *given: _rounded(real(*given)))
    with pytest.raises(LearnerDiffers):
        Run(run.path, model=module, data=DATA).train()


# --------------------------------------------------------------------------------------------------------- environments


@pytest.fixture
def set_processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that pretends that this machine has another processor."""
    here = dict(fedforget.training.environment.environment())

    def set_to(processor: str) -> None:
        monkeypatch.setattr(fedforget.training.environment, "environment", lambda: {**here, "processor": processor})

    return set_to


def test_another_environment_is_refused_with_a_hint_at_both_remedies(
    scratch_path: Path, set_processor: Callable[[str], None]
) -> None:
    set_processor("old")
    run = make(scratch_path / "run")
    run.train(4)
    request, before = late_client(run), function_files(run.path)
    set_processor("new")
    with pytest.raises(EnvironmentDiffers):
        run.train()
    with pytest.raises(EnvironmentDiffers) as caught:
        run.forget(request)
    assert caught.value.code == "environment-differs"
    assert "the processor: old then, new now" in caught.value.message
    assert "compute all 4 rounds (12 steps)" in caught.value.hint
    assert "--accept-mixed" in caught.value.hint
    assert function_files(run.path) == before
    assert run.status().requests == 0


def test_recompute_all_in_a_new_environment_is_exact(scratch_path: Path, set_processor: Callable[[str], None]) -> None:
    set_processor("old")
    run = make(scratch_path / "run")
    run.train(4)
    request = late_client(run)
    set_processor("new")
    (receipt,) = run.forget(request, recompute_all=True)
    assert receipt.recomputed_steps == 4 * PLAN.local_steps
    status = run.status()
    assert [each["processor"] for each in status.environments] == ["new"]
    assert not status.mixed_environments
    never = make(scratch_path / "never", without=[request])
    never.train(4)
    assert function_files(run.path) == function_files(never.path)
    set_processor("newest")
    assert run.train(recompute_all=True).environments[0]["processor"] == "newest"
    assert len(run.status().environments) == 1
    never.train(recompute_all=True)
    assert function_files(run.path) == function_files(never.path)
    with run_directory.reading(run.path) as opened:
        assert "begun anew" in {event["kind"] for event in opened.record.events()}
    assert run.verify().ok


def test_mixed_run_is_reported_by_status_verify_and_full_receipt_but_not_the_public_one(
    scratch_path: Path, set_processor: Callable[[str], None]
) -> None:
    set_processor("old")
    run = make(scratch_path / "run")
    run.train()
    request = late_client(run)
    set_processor("new")
    (receipt,) = run.forget(request, accept_mixed=True)
    status = run.status()
    assert [each["processor"] for each in status.environments] == ["old", "new"]
    assert status.environments[0]["last_round"] + 1 == status.environments[1]["first_round"]
    assert status.environments[1]["last_round"] == PLAN.rounds
    assert status.mixed_environments
    found = run.verify()
    assert found.environments == 2
    assert "different environments" in " ".join(found.problems)
    full, public = (_predicate(run, receipt.id, public=public) for public in (False, True))
    assert full["mixed_environments"] is True
    assert "environment" not in str(public)
    assert (full["guarantee_covers"], receipt.guarantee_covers, found.guarantee_covers) == ("draws", "draws", "draws")
    assert public.keys() == full.keys() - RECOMPUTATION
    assert public["guarantee"] == full["guarantee"]
    with pytest.raises(EnvironmentDiffers):
        run.forget(next(Request(client) for client in DATA if client != request.client))


RECOMPUTATION = {
    "state_mac_before", "first_changed_step", "recomputed_steps", "recomputed_rounds", "guarantee_covers",
    "mixed_environments", "model", "data_root_before", "data_root_mac_before", "presence",
}  # fmt: skip


def test_public_receipts_of_a_mixed_run_and_of_another_have_the_same_guarantee(
    scratch_path: Path, set_processor: Callable[[str], None]
) -> None:
    """A public receipt must not tell that rounds were recomputed elsewhere."""
    public, full = list[dict[str, Any]](), list[dict[str, Any]]()
    for name in ("mixed", "single"):
        set_processor("old")
        run = make(scratch_path / name, seed=None)
        run.train()
        set_processor("new" if name == "mixed" else "old")
        (receipt,) = run.forget(late_client(run), basis="exogenous", accept_mixed=True)
        public.append(_predicate(run, receipt.id, public=True))
        full.append(_predicate(run, receipt.id, public=False))
    assert [each["guarantee"] for each in (*public, *full)] == ["law-and-path"] * 4
    assert public[0].keys() == public[1].keys()
    assert [each["guarantee_covers"] for each in full] == ["draws", "bytes"]


def test_recompute_all_makes_the_guarantee_one_of_bytes_again(
    scratch_path: Path, set_processor: Callable[[str], None]
) -> None:
    set_processor("old")
    run = make(scratch_path / "run")
    run.train()
    set_processor("new")
    (mixed,) = run.forget(late_client(run), accept_mixed=True)
    (exact,) = run.forget(late_client(run), recompute_all=True)
    assert (mixed.guarantee_covers, exact.guarantee_covers) == ("draws", "bytes")
    assert run.verify().guarantee_covers == "bytes"


def _predicate(run: Run, identifier: str, *, public: bool) -> dict[str, Any]:
    envelope = run.signed_receipt(identifier, public=public)
    predicate: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
    return predicate


class Adjustable(nn.Module):
    """A module and a loss that a test changes while their names stay."""

    activation: Callable[[Tensor], Tensor] = torch.relu
    smoothing, scale, trains_front, dropped = 0.0, 1.0, True, 0.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.front, self.back = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        kind = type(self)
        hidden = kind.activation(self.front(x) if kind.trains_front else self.front(x).detach())
        found: Tensor = self.back(nn.functional.dropout(hidden, kind.dropped))
        return found


def adjustable_loss(output: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, wanted, label_smoothing=Adjustable.smoothing) * Adjustable.scale


ADJUSTMENTS: dict[str, tuple[str, Any]] = {
    "loss": ("smoothing", 0.1),
    "activation": ("activation", torch.tanh),
    "frozen layer": ("trains_front", False),
    "learning rate": ("scale", 1.1),
    "diverging loss": ("scale", float("inf")),
}


def make_adjustable(path: Path, plan: Plan = PLAN, **more: Any) -> Run:
    return make(path, plan, model=Adjustable(), loss=adjustable_loss, **more)


@pytest.mark.parametrize("option", [{"recompute_all": True}, {"accept_mixed": True}], ids=str)
@pytest.mark.parametrize("adjustment", ADJUSTMENTS)
@pytest.mark.parametrize("keep", ["every", 3, "ends"])
def test_another_learner_in_another_environment_is_refused_before_anything_changes(
    scratch_path: Path,
    set_processor: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    option: dict[str, Any],
    adjustment: str,
    keep: Any,
) -> None:
    """No witness can be compared bit by bit there, and all names agree: the numbers of the first step are compared."""
    set_processor("old")
    run = make_adjustable(scratch_path / "run", replace(PLAN, keep=keep))
    run.train(5)
    before = function_files(run.path)
    request = next(
        Request(client, sample) for client in DATA for sample in DATA[client] if _used_late(run, client, sample)
    )
    set_processor("new")
    with monkeypatch.context() as patch:
        patch.setattr(Adjustable, *ADJUSTMENTS[adjustment])
        for attempt in (lambda: run.forget(request, **option), lambda: run.train(**option)):
            with pytest.raises(LearnerDiffers, match="computes something else than when client"):
                attempt()
    assert function_files(run.path) == before
    assert (run.status().requests, run.status().pending) == (0, False)
    (receipt,) = run.forget(request, **option)
    assert receipt.state == "purged"
    assert run.train(**option).rounds_done == PLAN.rounds
    assert run.verify().ok


def _used_late(run: Run, client: int, sample: int) -> bool:
    """Return whether a sample was first used after the third round."""
    with run_directory.reading(run.path) as opened:
        return opened.clients.first_steps(client).get(sample, 0) > 3 * PLAN.local_steps


def test_rewind_to_round_0_in_another_environment_checks_the_learner(
    scratch_path: Path, set_processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No round stays, so that no environments are mixed and no option is needed."""
    set_processor("old")
    run = make_adjustable(scratch_path / "run")
    run.train()
    first, before = first_drawn(run), function_files(run.path)
    set_processor("new")
    with monkeypatch.context() as patch:
        patch.setattr(Adjustable, "smoothing", 0.1)
        with pytest.raises(LearnerDiffers):
            run.forget(client=first)
    assert function_files(run.path) == before
    run.forget(client=first)
    assert run.verify().ok


def test_renamed_learner_in_another_environment_is_accepted_if_its_first_steps_agree(
    scratch_path: Path, set_processor: Callable[[str], None]
) -> None:
    set_processor("old")
    run = make(scratch_path / "run")
    run.train(4)
    set_processor("new")
    with pytest.raises(LearnerDiffers, match="trained round 4"):
        Run(run.path, model=net(nn.Tanh), data=DATA).train(accept_mixed=True)
    assert Run(run.path, model=net(Relu), data=DATA).train(accept_mixed=True).rounds_done == PLAN.rounds


def test_learner_whose_random_layers_draw_differently_in_another_environment_is_reported(
    scratch_path: Path,
    set_processor: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Adjustable, "dropped", 0.3)
    monkeypatch.setattr(
        "fedforget.training.arithmetic.fingerprint", lambda: {**_fingerprint(), "random": str(_processor_now())}
    )
    set_processor("old")
    run = make_adjustable(scratch_path / "run")
    run.train(4)
    set_processor("new")
    monkeypatch.setattr(Adjustable, "smoothing", 0.1)
    run.train(accept_mixed=True)
    assert "only the structure of the learner could be compared" in caplog.text


@pytest.mark.parametrize("keep", ["every", "ends"])
def test_other_loss_in_another_environment_is_refused_where_training_amplifies_rounding(
    scratch_path: Path, set_processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, keep: Any
) -> None:
    """A difference in the last bits of the loss ends in another model, and is no other learner."""
    plan = Plan(2, 3, 60, 3, LocalOptimizer(10, 0.97), keep=keep)
    monkeypatch.setattr(Adjustable, "activation", torch.tanh)
    set_processor("old")
    run = make_adjustable(scratch_path / "run", plan)
    run.train(2)
    set_processor("new")
    with monkeypatch.context() as patch:
        patch.setattr(Adjustable, "smoothing", 0.01)
        with pytest.raises(LearnerDiffers):
            run.train(accept_mixed=True)
    monkeypatch.setattr(Adjustable, "scale", 1 + 1e-6)
    again = make_adjustable(scratch_path / "again", plan)
    again.train(2)
    one, other = (load_file(each.export(scratch_path / "model.safetensors"))["back.weight"] for each in (run, again))
    assert np.abs(one - other).max() > 0.01 * np.abs(one).max(), "chaos"
    assert run.train(accept_mixed=True).rounds_done == plan.rounds


def test_missing_witness_of_a_round_of_another_environment_raises_run_damaged(
    scratch_path: Path, set_processor: Callable[[str], None]
) -> None:
    set_processor("old")
    run = make(scratch_path / "run")
    run.train(4)
    _execute(run.path / "uses.db", "DELETE FROM witnesses", ())
    set_processor("new")
    with pytest.raises((RunDamaged, CommitsLost), match="witness"):
        run.train(accept_mixed=True)


def _processor_now() -> str:
    return fedforget.training.environment.environment()["processor"]


def test_random_layers_that_draw_alike_in_another_environment_are_compared(
    scratch_path: Path, set_processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adjustable, "dropped", 0.3)
    set_processor("old")
    run = make_adjustable(scratch_path / "run")
    run.train(4)
    set_processor("new")
    with monkeypatch.context() as patch:
        patch.setattr(Adjustable, "smoothing", 0.1)
        with pytest.raises(LearnerDiffers):
            run.train(accept_mixed=True)
    assert run.train(accept_mixed=True).rounds_done == PLAN.rounds


def test_recompute_all_together_with_accept_mixed_is_refused(scratch_path: Path) -> None:
    run = make(scratch_path / "run")
    with pytest.raises(InvalidInput, match="cannot be recomputed and mixed"):
        run.train(recompute_all=True, accept_mixed=True)


def test_batch_interrupted_in_another_environment_is_finished_with_recompute_all(
    scratch_path: Path, set_processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_processor("old")
    run = make(scratch_path / "run")
    run.train()
    request = late_client(run)
    with monkeypatch.context() as patch:
        patch.setattr("fedforget.algorithm.forget.learn", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.forget(request)
    set_processor("new")
    with pytest.raises(EnvironmentDiffers) as caught:
        run.train()
    assert f"all {PLAN.rounds} rounds" in caught.value.hint, "every round of the run, not only those that are left"
    run.train(recompute_all=True)
    assert [receipt.state for receipt in run.forget(request)] == ["purged"]
    never = make(scratch_path / "never", without=[request])
    never.train()
    assert function_files(run.path) == function_files(never.path)


# -------------------------------------------------------------------------------------------------- invalid arguments


class Extra(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


class Sparse(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*net())
        self.register_buffer("links", torch.eye(3).to_sparse())


def _inference_net() -> nn.Module:
    with torch.inference_mode():
        return net()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": [samples(4, 0)]}, "the data are a list"),
        ({"model": net}, "the model is a function"),
        ({"model": nn.Linear}, "the model is the class Linear"),
        ({"test": TensorDataset(torch.zeros(3, 4), torch.zeros(3))}, "the test set is a TensorDataset"),
        ({"test": (np.zeros((3, 4)), np.zeros(2))}, "the test set has features"),
        ({"loss": "mse"}, "'mse' is not a loss function"),
        ({"model": nn.Linear(4, 3, device="meta")}, "is on 'meta'"),
        ({"model": Extra(4, 3)}, "the model stores a dict as '_extra_state'"),
        ({"model": nn.Linear(4, 3, dtype=torch.bfloat16)}, "is torch.bfloat16"),
        ({"model": _inference_net()}, "torch.inference_mode"),
        ({"model": net().requires_grad_(False)}, "no parameter of the model learns"),
        ({"model": Sparse()}, "the tensor 'links' of the model is sparse"),
        ({"loss": nn.CrossEntropyLoss}, "the loss is the class CrossEntropyLoss"),
        ({"without": [3]}, "3 is not a request"),
    ],
)
def test_impossible_model_loss_or_data_is_refused_by_name(
    scratch_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedForgetError) as caught:
        make(scratch_path / "run", **given)
    assert message in caught.value.message
    assert caught.value.hint
    assert not (scratch_path / "run" / "plan.toml").exists()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(reduction="none"), "returns a tensor of shape (3,)"),
        (lambda _, __: None, "returns a NoneType"),
    ],
)
def test_loss_that_returns_no_scalar_is_refused(scratch_path: Path, loss: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make(scratch_path / "run", loss=loss).train()
    assert message in caught.value.message


def test_float_targets_under_the_default_loss_warn(scratch_path: Path) -> None:
    data = {0: {i: (np.ones(4, np.float32), np.full(3, 1 / 3, np.float32)) for i in range(4)}}
    with pytest.warns(UserWarning, match="class probabilities"):
        make(scratch_path / "run", data=data).train()
