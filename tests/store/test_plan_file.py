"""``plan.toml``: what is written is what is read; another format and any other text is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedforget.algorithm.plan import LocalOptimizer, Plan, ServerOptimizer
from fedforget.errors import InvalidInput, NoSuchRun, RunDamaged, RunTooNew, RunTooOld
from fedforget.store.environments import TrainedRounds
from fedforget.store.plan_file import NAME, OWN, PlanFile, require_plan

PLAN = Plan(
    3, 2, 4, 10, LocalOptimizer(0.5, 0.25, 0.125, 1.0), ServerOptimizer("fedadam", 0.5, 0.8, 0.95, 1e-4), keep=2
)
FILE = PlanFile(
    PLAN,
    {"name": "mlp", "hidden": 32},
    {"name": "digits", "alpha": 0.5, "partition_seed": 7},
    b"\7" * 32,
    {"0.weight": "parameter float32 4x2", 'a "b"\\é\x7f': "buffer int64 scalar"},
)


def damaged(tmp_path: Path, data: bytes) -> str:
    with pytest.raises(RunDamaged) as refused:
        PlanFile.parsed(tmp_path, data)
    return refused.value.message


@pytest.mark.parametrize("plan", [PLAN, Plan(1, 1, 1, 1), replace(PLAN, keep="ends")])
def test_plan_is_read_as_it_was_written(plan: Plan) -> None:
    file = replace(FILE, plan=plan)
    assert PlanFile.decode(file.encode()) == file
    assert PlanFile.decode(file.encode()).digest == file.digest


def test_plan_file_is_text_with_one_setting_a_line() -> None:
    lines = FILE.encode().decode().splitlines()
    assert lines[0].startswith("# The plan of this FedForget run")
    assert lines[1] == "format = 3"
    assert {"[plan]", "[local_optimizer]", "[server_optimizer]", "[tensors]", "clients_per_round = 3"} <= set(lines)
    assert '"0.weight" = "parameter float32 4x2"' in lines
    assert "hidden = 32" in lines


@pytest.mark.parametrize(
    ("model", "dataset", "built_in"), [("mlp", "digits", True), (OWN, "digits", False), ("mlp", OWN, False)]
)
def test_plan_is_built_in_unless_the_model_or_the_data_are_the_callers(
    model: str, dataset: str, built_in: bool
) -> None:
    assert replace(FILE, model={"name": model}, dataset={"name": dataset}).is_built_in is built_in


def test_differences_name_every_setting_and_no_seed() -> None:
    other = replace(
        FILE,
        plan=replace(PLAN, rounds=11, local=replace(PLAN.local, lr=0.75), server=replace(PLAN.server, tau=0.5)),
        model={"name": "mlp", "hidden": 64},
        dataset={"name": "digits", "alpha": 0.25, "partition_seed": 8},
        server_commitment=b"\1" * 32,
    )
    assert FILE.differences(FILE) == []
    assert FILE.differences(other) == [
        "dataset alpha is 0.5, not 0.25",
        "local lr is 0.5, not 0.75",
        "model hidden is 32, not 64",
        "rounds is 10, not 11",
        "server tau is 0.0001, not 0.5",
    ]
    assert replace(FILE, model={"name": "mlp"}).differences(FILE) == ["model hidden is None, not 32"]
    assert FILE.differences(replace(FILE, model={"name": "mlp"})) == ["model hidden is 32, not None"]


def test_plan_of_another_format_is_refused_with_its_remedy(tmp_path: Path) -> None:
    data = FILE.encode()
    with pytest.raises(RunTooNew, match="it has format 4, this version of FedForget knows 3") as too_new:
        PlanFile.parsed(tmp_path, data.replace(b"format = 3", b"format = 4"))
    assert too_new.value.hint == "upgrade fedforget"
    with pytest.raises(RunTooOld):
        PlanFile.parsed(tmp_path, data.replace(b"format = 3", b"format = 2"))
    assert "lacks 'format'" in damaged(tmp_path, data.replace(b"format = 3\n", b""))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"hidden = 32", b"hidden = [32]", "is not a line of a plan"),
        (b"[model]", b"[[model]]", "is not a line of a plan"),
        (b"hidden = 32", b"hidden = true\nhidden = 1", "damaged"),
        (b"rounds = 10", b"rounds = 0", "damaged"),
        (b"rounds = 10", b'rounds = "x"', "damaged"),
        (b"rounds = 10", b"", "damaged"),
        (b"rounds = 10", b"rounds = 10\nmore = 1", "damaged"),
        (b"[commitment]", b"[other]", "lacks 'commitment'"),
        (b'server = "07', b'server = "0x', "damaged"),
        (b"\n[model]", b"\n[modes]", "lacks 'model'"),
    ],
)
def test_any_other_text_is_refused(tmp_path: Path, old: bytes, new: bytes, expected: str) -> None:
    data = FILE.encode()
    assert old in data
    assert expected in damaged(tmp_path, data.replace(old, new, 1))


def test_model_with_too_many_tensors_is_refused() -> None:
    one = replace(FILE, tensors={"a": ""}).encode()
    longest = replace(FILE, tensors={"a": "x" * (2**22 - len(one))})
    assert len(longest.encode()) == 2**22
    with pytest.raises(InvalidInput, match="has 1 tensors, too many"):
        replace(FILE, tensors={"a": "x" * (2**22 - len(one) + 1)}).encode()


def test_missing_plan_is_no_run_or_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match="holds no run"):
        require_plan(tmp_path)
    with pytest.raises(NoSuchRun, match="holds no run"):
        PlanFile.read(tmp_path)
    (tmp_path / "server.db").touch()
    with pytest.raises(RunDamaged, match=r"plan\.toml is missing"):
        require_plan(tmp_path)
    (tmp_path / NAME).write_bytes(FILE.encode())
    require_plan(tmp_path)
    assert PlanFile.read(tmp_path) == FILE


@pytest.mark.parametrize(
    ("first", "last", "text"), [(3, 3, "round 3"), (3, 4, "rounds 3 to 4"), (1, 9, "rounds 1 to 9")]
)
def test_trained_rounds_are_named_in_words(first: int, last: int, text: str) -> None:
    assert str(TrainedRounds(first, last, {})) == text
