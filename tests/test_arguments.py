"""Arguments of a wrong kind are refused in words, with a remedy, before anything is written or trained."""

from __future__ import annotations

import array
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from fedforget import LocalOptimizer, Plan, Policy, ReceiptCheck, Request, Run, ServerOptimizer, read_receipt
from fedforget.data.federated import FederatedData
from fedforget.errors import FedForgetError, InvalidInput, LearnerDiffers, PlanRefused

PLAN = Plan(2, 3, 2, 3)
X = np.ones(4, np.float32)
DATA = {client: {sample: (X * sample, sample % 3) for sample in range(4)} for client in range(3)}
TEST_X = np.ones((2, 4), np.float32)


class Endless:
    """Has a length and any item: numpy would go through it for ever."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return X, 1


class EndlessDataset(Endless, Dataset):
    pass


class WithBuffer(nn.Linear):
    def __init__(self, buffer: torch.Tensor) -> None:
        super().__init__(4, 3)
        self.register_buffer("extra", buffer, persistent=False)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def opened(path: Any, **changes: Any) -> Run:
    return Run(path, **{"plan": PLAN, "model": linear(), "data": DATA, "seed": 1, **changes})


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(InvalidInput) as caught:
        action()
    assert caught.value.hint
    assert len(str(caught.value)) < 400
    return caught.value.message


# ------------------------------------------------------------------------------------------------------ making a run

BAD_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "buffer on meta": ({"model": WithBuffer(torch.ones(3, device="meta"))}, "the tensor 'extra' of the model is on 'm"),
    "sparse buffer": ({"model": WithBuffer(torch.ones(3).to_sparse())}, "the tensor 'extra' of the model is sparse"),
    "buffer without shape": (
        {"model": WithBuffer(nn.parameter.UninitializedBuffer())},
        "the tensor 'extra' of the model has no shape yet",
    ),
    "test targets are texts": ({"test": (TEST_X, ["a", "b"])}, "the targets of the test set cannot"),
    "test targets are an array of texts": ({"test": (TEST_X, np.array(["a", "b"]))}, "their type is <U1"),
    "test targets are days": ({"test": (TEST_X, np.array(["2027-01-31"] * 2, "M8[D]"))}, "their type is datetime64"),
    "test features of the other byte order": ({"test": (TEST_X.astype(">f4"), [0, 1])}, "their type is >f4"),
    "test features that PyTorch has not": ({"test": (TEST_X.astype(np.longdouble), [0, 1])}, "their type is float"),
    "test is datasets": ({"test": (EndlessDataset(), EndlessDataset())}, "a EndlessDataset is neither a number nor"),
    "test holds what is endless": ({"test": ([Endless(), Endless()], [0, 1])}, "a Endless is neither a number nor"),
    "features are text": ({"data": {"a": {"b": ("x", 1)}}}, "the features of sample b of client a cannot be made"),
    "targets are text": ({"data": {"a": {"b": (X, "x")}}}, "the targets of sample b of client a cannot be made"),
    "features are endless": ({"data": {"a": {"b": (Endless(), 1)}}}, "a Endless is neither a number nor an array"),
    "targets are endless": ({"data": {"a": {"b": (X, [[Endless()]])}}}, "a Endless is neither a number nor an array"),
    "features are a mapping": ({"data": {"a": {"b": ({"x": 1}, 1)}}}, "a dict is neither a number nor an array"),
    "workers are text": ({"federation": "pool", "workers": "2"}, "workers must be a whole number, not '2'"),
    "workers are a fraction": ({"federation": "pool", "workers": 1.5}, "workers must be a whole number, not 1.5"),
    "workers are true": ({"federation": "pool", "workers": True}, "workers must be a whole number, not True"),
    "patience is text": ({"patience": "x"}, "patience must be a number, not 'x'"),
    "patience is none": ({"patience": None}, "patience must be a number, not None"),
    "patience is huge": ({"patience": 10**400}, "patience must be a number, not 1000"),
    "names are a number": ({"names": 3}, "3 cannot be the names of a model and its data"),
    "names are one": ({"names": ({},)}, "cannot be the names of a model and its data"),
    "names hold an object": ({"names": ({"name": object()}, {})}, "cannot be the names of a model and its data"),
    "names hold no number": ({"names": ({"name": float("nan")}, {})}, "cannot be the names of a model and its data"),
    "names have numbers as keys": ({"names": ({1: "a"}, {})}, "cannot be the names of a model and its data"),
    "loss is a long text": ({"loss": "m" * 10**6}, "(1000000 characters)' is not a loss function"),
}


@pytest.mark.parametrize(("changes", "words"), BAD_RUNS.values(), ids=BAD_RUNS)
def test_a_run_is_not_made_with_a_bad_argument(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in refusal(lambda: opened(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


class FileNamedInBytes:
    def __fspath__(self) -> bytes:
        return b"run"


@pytest.mark.parametrize(
    "path",
    [5, None, b"run", "a\0b", Path("a\0b"), "a\ud800", FileNamedInBytes()],
    ids=["number", "none", "bytes", "NUL", "path with NUL", "half a character", "named in bytes"],
)
def test_impossible_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert "cannot be the path of a run" in refusal(lambda: opened(path))
    assert "cannot be the path of a receipt" in refusal(lambda: read_receipt(path, "key.pem"))
    assert "cannot be the path of a public key" in refusal(lambda: read_receipt("receipt.json", path))
    assert list(tmp_path.iterdir()) == []


def test_a_bad_test_set_is_refused_when_a_run_is_opened(tmp_path: Path) -> None:
    opened(tmp_path / "run")
    assert "the targets of the test set" in refusal(lambda: opened(tmp_path / "run", plan=None, test=(TEST_X, "ab")))


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless += [endless, endless]
    assert "a list is neither" in refusal(lambda: FederatedData({0: {0: (endless, 1)}}).sample(0, 0))


@pytest.mark.parametrize(
    "numbers",
    [
        [1, 2],
        (1.0, 2),
        range(1, 3),
        [np.float32(1), torch.tensor(2)],
        array.array("d", [1, 2]),
        memoryview(b"\1\2"),
        torch.tensor([1.0, 2.0], requires_grad=True),
        np.array([1, 2], np.longlong),
        np.array([1, 2], np.uint16),
        np.array([1, 2], np.complex64),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_come_in_many_shapes(numbers: Any) -> None:
    x, y = FederatedData({0: {0: (numbers, True)}}).sample(0, 0)
    assert (x.tolist(), y.tolist()) == ([1, 2], True)


def test_numbers_of_numpy_and_fractions_are_numbers(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", federation="pool", workers=np.int64(1), patience=Fraction(60))
    assert run.train(np.int64(1), eval_every=np.int8(1)).rounds_done == 1  # type: ignore[arg-type]
    opened(tmp_path / "run", patience=np.float32(60))


# ------------------------------------------------------------------------------------------------------------ methods


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two of three rounds."""
    made = opened(tmp_path_factory.mktemp("arguments") / "run")
    made.train(2)
    return made


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = opened(tmp_path_factory.mktemp("arguments") / "done")
    made.train()
    return made


def files_of(run: Run) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


GOOD = ReceiptCheck(signature_ok=True)
NOT_CALLED = "on_round must be a function of a round's number, not 5"
NOT_CHECKED = "is not a receipt whose signature was checked"
BAD_CALLS: dict[str, tuple[Callable[[Run], Any], str]] = {
    "train until text": (lambda run: run.train(until="x"), "until must be a whole number, not 'x'"),  # type: ignore[arg-type]
    "train until 1.5": (lambda run: run.train(until=1.5), "until must be a whole number, not 1.5"),  # type: ignore[arg-type]
    "train until 2.5": (lambda run: run.train(until=2.5), "until must be a whole number, not 2.5"),  # type: ignore[arg-type]
    "train until a tensor": (
        lambda run: run.train(until=torch.tensor(2.5)),  # type: ignore[arg-type]
        "until must be a whole number, not tensor(2.5",
    ),
    "train eval_every": (lambda run: run.train(eval_every="a"), "eval_every must be a whole number, not 'a'"),  # type: ignore[arg-type]
    "forget eval_every": (
        lambda run: run.forget(client=0, eval_every=1.5),  # type: ignore[arg-type]
        "eval_every must be a whole number, not 1.5",
    ),
    "train on_round": (lambda run: run.train(on_round=5), NOT_CALLED),  # type: ignore[arg-type]
    "forget on_round": (lambda run: run.forget(client=0, on_round=5), NOT_CALLED),  # type: ignore[arg-type]
    "defer on_round": (lambda run: run.forget(client=0, defer=True, on_round=5), NOT_CALLED),  # type: ignore[arg-type]
    "run_pending on_round": (lambda run: run.run_pending(on_round=5), NOT_CALLED),  # type: ignore[arg-type]
    "add on_round": (lambda run: run.add(Request(0), on_round=5), NOT_CALLED),  # type: ignore[arg-type]
    "verify on_round": (lambda run: run.verify(on_round=5), NOT_CALLED),  # type: ignore[arg-type]
    "rebuild on_round": (lambda run: run.rebuild(on_round=5), NOT_CALLED),  # type: ignore[arg-type]
    "check_receipt on_round": (lambda run: run.check_receipt(GOOD, on_round=5), NOT_CALLED),  # type: ignore[arg-type]
    "export none": (lambda run: run.export(None), "None cannot be the path of a model"),  # type: ignore[arg-type]
    "export nul": (lambda run: run.export("a\0b"), "cannot be the path of a model"),
    "preview text": (lambda run: run.preview(["c2"]), "'c2' is not a request"),  # type: ignore[list-item]
    "preview number": (lambda run: run.preview(5), "5 is not a request"),  # type: ignore[arg-type]
    "check_receipt mapping": (lambda run: run.check_receipt({}), f"a dict {NOT_CHECKED}"),  # type: ignore[arg-type]
    "check_receipt none": (lambda run: run.check_receipt(None), f"a NoneType {NOT_CHECKED}"),  # type: ignore[arg-type]
    "check_receipt unchecked": (lambda run: run.check_receipt(ReceiptCheck()), f"a ReceiptCheck {NOT_CHECKED}"),
    "sample_rounds text": (
        lambda run: run.check_receipt(GOOD, sample_rounds="1"),  # type: ignore[arg-type]
        "sample_rounds must be a whole number, not '1'",
    ),
    "sample_rounds negative": (lambda run: run.check_receipt(GOOD, sample_rounds=-1), "-1 rounds cannot be replayed"),
    "idempotency_key": (
        lambda run: run.forget(client=0, defer=True, idempotency_key=5),  # type: ignore[arg-type]
        "the idempotency key must be text",
    ),
}


@pytest.mark.parametrize("which", ["run", "done"])
@pytest.mark.parametrize(("call", "words"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_call_with_a_bad_argument_changes_nothing(
    request: pytest.FixtureRequest, which: str, call: Callable[[Run], Any], words: str
) -> None:
    chosen: Run = request.getfixturevalue(which)
    before = files_of(chosen)
    assert words in refusal(lambda: call(chosen))
    assert files_of(chosen) == before


def test_a_preview_takes_one_request_or_several(run: Run) -> None:
    assert run.preview(Request(0)) == run.preview([Request(0)]) == run.preview([Request(0), Request(0)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: LocalOptimizer(lr=None),  # type: ignore[arg-type]
        lambda: LocalOptimizer(lr="x"),  # type: ignore[arg-type]
        lambda: LocalOptimizer(momentum=[]),  # type: ignore[arg-type]
        lambda: LocalOptimizer(prox=True),
        lambda: ServerOptimizer("fedadam", lr="x"),  # type: ignore[arg-type]
        *(
            lambda sizes=sizes: Plan.from_rho(rho_s=0.5, rho_c=0.5, local_steps=1, rounds=2, sizes=sizes)
            for sizes in (3, "zz", [1.5], [None], [True])
        ),
    ],
)
def test_optimizer_or_sizes_of_a_wrong_kind_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(PlanRefused) as caught:
        make()
    assert caught.value.hint


def test_policy_with_days_instead_of_a_timedelta_is_refused() -> None:
    assert "of_days" in refused_hint(lambda: Policy("batch", 7))  # type: ignore[arg-type]


def refused_hint(action: Callable[[], Any]) -> str:
    with pytest.raises(InvalidInput) as caught:
        action()
    return caught.value.hint


@pytest.mark.parametrize(
    "act",
    [
        lambda run: run.cancel([]),
        lambda run: run.cancel(10**30),
        lambda run: run.signed_receipt({}),
        lambda run: run.samples(10**30),
        lambda run: run.forget(torch.tensor(1)),
        lambda run: run.preview(torch.tensor(1)),
        lambda run: run.add(torch.tensor(1)),
        lambda run: run.train(recompute_all=torch.tensor([1, 2])),
        lambda run: run.train(accept_mixed=1),
    ],
)
def test_wrong_kinds_of_ids_requests_and_flags_are_refused(tmp_path: Path, act: Callable[[Run], Any]) -> None:
    run = opened(tmp_path / "run")
    with pytest.raises(FedForgetError) as caught:
        act(run)
    assert caught.value.hint


def test_test_labels_that_are_no_class_numbers_are_refused() -> None:
    assert "class numbers" in refusal(lambda: FederatedData(DATA, (TEST_X, np.array([0.5, 1.0]))))


@pytest.mark.parametrize("shape", [(2, 1), (2, 1, 1)])
def test_test_labels_of_another_shape_than_the_classes_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    run = opened(tmp_path / "run", test=(TEST_X, np.zeros(shape, np.int64)))
    assert "cannot be measured" in refusal(run.train)


def test_module_that_changed_after_opening_is_refused_before_anything_changes(tmp_path: Path) -> None:
    model = linear()
    run = opened(tmp_path / "run", model=model)
    run.train()
    model.double()
    with pytest.raises(LearnerDiffers):
        run.forget(client=1)
    assert run.status().requests == 0
    model.float()
    run.forget(client=1)
