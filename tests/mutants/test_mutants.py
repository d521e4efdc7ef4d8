"""A check proves nothing unless a wrong variant fails it: each one here passes on the code, and fails on its mutant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from fedforget.algorithm.forget import Request
from fedforget.evidence.worlds import PAIR, STANDARD, Case
from tests.mutants import checks, variants

Check = Callable[[], Fraction | int]
Install = Callable[[pytest.MonkeyPatch], None]

TWO_SINGLES = {0: (0,), 1: (0,)}
THREE_SINGLES = {0: (0,), 1: (0,), 2: (0,)}
LARGE_AND_TWO_SMALL = {0: (0, 1, 2), 1: (0,), 2: (0,)}
TWO_SAMPLES = {0: (0, 1)}
THREE_SAMPLES = {0: (0, 1, 2)}
FOUR_SAMPLES = {0: (0, 1, 2, 3)}


def case(world: Any, *requests: Any, K: int = 1, b: int = 1, E: int = 1, R: int = 1) -> Case:
    return Case("", world, requests, K, b, E, R)


def sample(client: int, identifier: int) -> tuple[str, int, int]:
    return "sample", client, identifier


def client(identifier: int) -> tuple[str, int]:
    return "client", identifier


@dataclass(frozen=True)
class Mutant:
    """A wrong variant, a check that catches it, and what the check finds wrong; 0 is what it finds on the code."""

    number: int
    install: Install
    check: Check
    finds: Fraction | int
    also: str = ""

    def __str__(self) -> str:
        return f"{self.number}-{self.install.__name__}{self.also}"


def by_law(number: int, install: Install, world: Case, finds: str, also: str = "") -> Mutant:
    return Mutant(number, install, partial(checks.law, world), Fraction(finds), also)


def by_path(number: int, install: Install, world: Case, finds: str) -> Mutant:
    return Mutant(number, install, partial(checks.paths, world), Fraction(finds), "-path")


def on_disk(number: int, install: Install, *stream: Request, server: str = "average") -> Mutant:
    return Mutant(number, install, partial(checks.run_on_disk, *stream, server=server), 1, "-disk")


MUTANTS = (
    by_law(1, variants.slots_drawn_again, case(PAIR, sample(0, 0)), "1/8"),
    by_law(1, variants.slots_drawn_again, case(LARGE_AND_TWO_SMALL, sample(0, 0), b=2, R=2), "16/81", "-three-clients"),
    by_path(1, variants.slots_drawn_again, case(THREE_SINGLES, client(2)), "1/6"),
    by_law(2, variants.restart_from_the_beginning, case(PAIR, sample(0, 0), b=2), "1/4"),
    by_law(2, variants.restart_from_the_beginning, case(PAIR, sample(0, 0), R=2), "7/64", "-two-rounds"),
    by_path(2, variants.restart_from_the_beginning, case(THREE_SINGLES, client(2), R=2), "5/12"),
    by_law(3, variants.stretched_slots, case(THREE_SINGLES, client(2)), "1/6"),
    by_law(3, variants.stretched_batches, case(THREE_SAMPLES, sample(0, 2)), "1/6"),
    by_law(4, variants.one_round_too_few, case(PAIR, sample(0, 0)), "1/4"),
    by_law(4, variants.one_round_too_few, case(PAIR, sample(0, 0), R=2), "7/16", "-two-rounds"),
    on_disk(4, variants.one_round_too_few, Request(1)),
    by_law(5, variants.slots_per_client, case(TWO_SINGLES, client(1), K=2), "3/4"),
    by_law(5, variants.batch_per_sample, case(FOUR_SAMPLES, sample(0, 0), b=2), "1/2"),
    Mutant(6, variants.multiplicity_dropped, partial(checks.law_of_the_average, 2, 3), Fraction(3, 4)),
    by_law(7, variants.server_notes_round_one_only, case(TWO_SINGLES, client(0), R=2), "1/4"),
    by_law(7, variants.client_notes_round_one_only, case(TWO_SAMPLES, sample(0, 0), R=2), "1/4"),
    by_law(7, variants.server_keeps_first_uses, case(THREE_SINGLES, client(2), client(1), R=2), "1/18"),
    by_law(7, variants.client_keeps_first_uses, case(THREE_SAMPLES, sample(0, 2), sample(0, 1), R=2), "1/18"),
    by_path(7, variants.server_keeps_first_uses, case(THREE_SINGLES, client(2), client(1), R=2), "13/36"),
    by_path(7, variants.client_keeps_first_uses, case(THREE_SAMPLES, sample(0, 2), sample(0, 1), R=2), "13/36"),
    on_disk(7, variants.server_store_notes_round_one_only, Request(1)),
    on_disk(7, variants.client_store_notes_round_one_only, Request(1, 0)),
    on_disk(7, variants.server_store_keeps_first_uses, Request(2), Request(0)),
    Mutant(
        7,
        variants.client_store_keeps_first_uses,
        partial(checks.interrupted_on_disk, Request(0, 1), seed=7),
        1,
        "-disk",
    ),
    Mutant(
        8,
        variants.drawn_again_after_a_failure,
        partial(checks.law_of_the_average, 2, 1, fails_once=0),
        Fraction(1, 4),
    ),
    Mutant(8, variants.whoever_answered, partial(checks.law_of_the_average, 2, 2, fails_once=0), Fraction(1, 2)),
    Mutant(9, variants.order_of_arrival, checks.arrivals, 1),
    Mutant(10, variants.optimizer_not_rewound, checks.numeric_paths, 10),
    on_disk(10, variants.optimizer_on_disk_not_rewound, Request(1), server="fedadam"),
    Mutant(11, variants.content_ignored, partial(checks.content, lambda x, y: (x + 1, y)), 1),
    Mutant(11, variants.label_ignored, partial(checks.content, lambda x, y: (x, 1 - y)), 1),
    Mutant(11, variants.content_of_a_client_that_loses_a_sample_ignored, checks.content_beside_a_loss, 1),
    by_law(12, variants.few_bits, case(TWO_SAMPLES), "1/2"),
    Mutant(12, variants.few_bits, checks.draws_that_move, 21, "-path"),
    Mutant(13, variants.clients_keep_their_seeds, checks.seeds_that_stay, 3),
    Mutant(14, variants.an_emptied_client_covers_no_request, checks.requests_left_waiting, 1),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mutant.check() == 0
    mutant.install(monkeypatch)
    assert mutant.check() == mutant.finds


def test_every_kind_of_mutant_is_there() -> None:
    assert {mutant.number for mutant in MUTANTS} == set(range(1, 15))
    assert len(set(map(str, MUTANTS))) == len(MUTANTS)


def test_drawing_slots_again_is_exact_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two variants are wrong for samples only: for clients the law stays, and only the path is lost."""
    world = case(THREE_SINGLES, client(2), R=2)
    variants.restart_from_the_beginning(monkeypatch)
    assert checks.law(world) == 0
    assert checks.paths(world) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "install",
    [
        variants.slots_drawn_again,
        variants.restart_from_the_beginning,
        variants.stretched_slots,
        variants.stretched_batches,
        variants.one_round_too_few,
        variants.slots_per_client,
        variants.batch_per_sample,
        variants.server_notes_round_one_only,
        variants.client_notes_round_one_only,
        variants.server_keeps_first_uses,
        variants.client_keeps_first_uses,
        variants.few_bits,
    ],
    ids=lambda install: install.__name__,
)
def test_the_standard_worlds_catch_it(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """``fedforget prove`` would notice: at least one of its worlds is no longer exact."""
    install(monkeypatch)
    assert any(checks.law(world) > 0 for world in STANDARD)
