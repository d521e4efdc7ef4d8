"""Adding is exact: the run becomes, byte for byte, a run that had the newcomers from the beginning."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget import Plan, Request
from fedforget.algorithm import join
from fedforget.errors import InvalidInput, UnknownTarget
from fedforget.store import run_directory
from tests.helpers import function_files
from tests.requests.world import DATA, PLAN, opened

TARGETS = st.sampled_from([Request(c) for c in DATA] + [Request(c, s) for c in DATA for s in DATA[c]])


ADDITIONS = given(
    left_out=st.lists(TARGETS, min_size=1, max_size=4, unique=True),
    rounds=st.integers(0, PLAN.rounds),
    slots=st.integers(1, 4),
    batch=st.integers(1, 6),
)


@ADDITIONS
@settings(max_examples=6, deadline=None)
def test_add_gives_the_run_that_had_the_targets_from_the_beginning(
    tmp_path_factory: pytest.TempPathFactory, left_out: list[Request], rounds: int, slots: int, batch: int
) -> None:
    require_equal(tmp_path_factory, left_out, rounds, slots, batch)


@pytest.mark.slow
@ADDITIONS
@settings(max_examples=60, deadline=None)
def test_many_adds_give_the_run_that_had_the_targets_from_the_beginning(
    tmp_path_factory: pytest.TempPathFactory, left_out: list[Request], rounds: int, slots: int, batch: int
) -> None:
    require_equal(tmp_path_factory, left_out, rounds, slots, batch)


def require_equal(
    tmp_path_factory: pytest.TempPathFactory, left_out: list[Request], rounds: int, slots: int, batch: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("add")
    plan = Plan(slots, batch, 2, PLAN.rounds, PLAN.local)
    if {r.client for r in left_out if r.sample is None} == set(DATA):
        return
    whole = opened(tmp_path / "whole", plan)
    whole.train(rounds)
    late = opened(tmp_path / "late", plan, without=left_out)
    late.train(rounds)
    late.add(left_out, seed=1)
    assert function_files(whole.path) == function_files(late.path)
    whole.train()
    late.train()
    assert function_files(whole.path) == function_files(late.path)
    assert late.verify().ok


def test_add_of_an_erased_target_is_refused_unless_returning(tmp_path: Path) -> None:
    run, untouched = opened(tmp_path / "run"), opened(tmp_path / "untouched")
    run.train()
    untouched.train()
    first = run.forget([Request(3), Request(1, 2)])
    for target in (Request(3), Request(3, 0), Request(1, 2), Request(1)):
        with pytest.raises(InvalidInput, match="was erased"):
            run.add(target)
    run.add([Request(3), Request(1)], returning=True, seed=1)
    assert function_files(run.path) == function_files(untouched.path)
    assert run.verify().ok
    again = run.forget([Request(3), Request(1, 2)])
    assert {receipt.id for receipt in again}.isdisjoint({receipt.id for receipt in first})
    assert [r.id for r in run.forget([Request(3), Request(1, 2)])] == [r.id for r in again]
    assert run.verify().ok


def test_add_of_a_present_target_changes_nothing(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    run.train()
    before = run.state_digest()
    run.add([Request(2), Request(1, 0)])
    assert run.state_digest() == before
    assert "added" not in {event["kind"] for event in events(run.path)}


def events(path: Path) -> list[dict[str, object]]:
    with run_directory.reading(path) as run:
        return run.record.events()


def test_client_added_without_the_runs_seed_gets_a_random_seed(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", without=[Request(4)])
    run.train(3)
    run.add(Request(4))
    run.train()
    assert run.verify().ok
    other = opened(tmp_path / "other", without=[Request(4)])
    other.train(3)
    other.add(Request(4))
    other.train()
    assert other.state_digest() != run.state_digest()


@pytest.mark.parametrize("target", [Request(9), Request(1, 99), Request("x", "y")])
def test_add_of_an_unknown_target_or_with_another_seed_is_refused(tmp_path: Path, target: Request) -> None:
    run = opened(tmp_path / "run")
    run.train(2)
    before = run.state_digest()
    with pytest.raises(UnknownTarget, match="the data have no"):
        run.add([Request(1), target])
    with pytest.raises(InvalidInput, match="not the seed"):
        run.add(Request(1), seed=2)
    assert run.state_digest() == before


def test_mutant_of_add_that_rewinds_nothing_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant never looks for the first draw that the newcomer changes."""
    monkeypatch.setattr(join, "first_change", lambda server, joining: None)
    whole, late = opened(tmp_path / "whole"), opened(tmp_path / "late", without=[Request(4)])
    for run in (whole, late):
        run.train()
    late.add(Request(4), seed=1)
    assert function_files(whole.path) != function_files(late.path)
    assert not late.verify().ok
