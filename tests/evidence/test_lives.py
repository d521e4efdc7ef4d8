"""Lives of requests through the production processor, by enumeration; wrong processors are caught."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from fedforget.algorithm import join
from fedforget.algorithm.forget import Request, apply
from fedforget.evidence.case import Case, prove
from fedforget.evidence.lives import Add, Arrive, Cancel, Defer, Forget, Learn, RunPending, world_after
from fedforget.evidence.worlds import STANDARD
from fedforget.requests.lifecycle import Stage
from fedforget.requests.processor import Processor

LIVES = [case for case in STANDARD if case.life]


@pytest.mark.parametrize("case", LIVES, ids=lambda case: case.name)
def test_life_of_requests_ends_in_the_textbook_law_and_changes_as_rarely_as_possible(case: Case) -> None:
    found = prove(case)
    assert found.total_variation == 0
    assert found.processor
    if found.least_change is not None:
        assert found.change_probability == found.least_change
    assert found.exact
    assert found.optimal is not False


QUICK = [case for case in STANDARD if not case.life and case.K * case.E * case.R <= 3]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_erasure_changes_state_with_the_least_possible_probability(case: Case) -> None:
    found = prove(case)
    assert found.least_change in (None, found.change_probability)


def arrivals_are_dropped(patch: pytest.MonkeyPatch) -> None:
    def drop(self: Processor) -> None:
        self.intake.clear([place for place, _ in self.intake.accept_inbox()])

    patch.setattr(Processor, "_let_arrivals_join", drop)


def newcomers_change_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(join, "first_change", lambda *_: None)


def rewinds_one_round_too_little(patch: pytest.MonkeyPatch) -> None:
    from fedforget.algorithm import forget  # noqa: PLC0415

    real = forget.apply

    def apply(server: Any, decision: Any) -> None:
        from dataclasses import replace  # noqa: PLC0415

        real(server, replace(decision, rewind_to=min(decision.rewind_to + 1, decision.goal)))

    patch.setattr(forget, "apply", apply)


def recovery_leaves_the_data_in(patch: pytest.MonkeyPatch) -> None:
    def apply_begun(self: Processor) -> None:
        for intent in self._at_stage(Stage.ACCEPTED):
            self.batches.removed(intent, self.server.memory.rounds_done)

    patch.setattr(Processor, "apply_begun", apply_begun)


def recovery_applies_a_removal_twice(patch: pytest.MonkeyPatch) -> None:
    """Harmless for the law, but it rewinds rounds that were computed: state changes no more often."""
    real = Processor.finish

    def finish(self: Processor) -> None:
        for intent in self._at_stage(Stage.REMOVED):
            apply(self.server, intent.decision)
        real(self)

    patch.setattr(Processor, "finish", finish)


def begun_batches_go_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Processor, "_apply_begun_before", lambda self, _: self.apply_begun())


AFTER_INTENT = "a client; a crash after the intent, and another process finishes"


def test_recovery_that_applies_a_removal_twice_keeps_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    recovery_applies_a_removal_twice(monkeypatch)
    assert all(prove(case).exact for case in LIVES if "crash between" in case.name)


@pytest.mark.parametrize(
    ("wrong", "name", "distance"),
    [
        (recovery_leaves_the_data_in, AFTER_INTENT, None),
        (arrivals_are_dropped, "a sample arrives while another is recomputed", "7/8"),
        (newcomers_change_nothing, "a sample joins", None),
        (rewinds_one_round_too_little, "two batches in a row", None),
        (begun_batches_go_first, "a client that fell silent is erased while its sample's removal waits for it", None),
    ],
)
def test_wrong_processor_is_caught(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[pytest.MonkeyPatch], None], name: str, distance: str | None
) -> None:
    (case,) = [case for case in LIVES if case.name == f"processor: {name}"]
    assert prove(case).exact
    wrong(monkeypatch)
    found = prove(case)
    assert not found.exact
    assert found.total_variation > 0
    if distance is not None:
        assert 0 < found.total_variation <= Fraction(distance)


def test_world_after_is_set_arithmetic() -> None:
    world = {0: (0, 1, 2), 1: (0,)}
    life = (
        Learn(2), Defer((Request(0, 0), Request(1))), Cancel(Request(1)), Arrive((Request(0, 1),)), RunPending(),
        Add(1, (5,)), Forget((Request(1, 0),)),
    )  # fmt: skip
    assert world_after(world, life) == {0: (2,), 1: (5,)}
