"""Every check passes on the code and fails on its mutant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from fedforget.algorithm.forget import Request
from fedforget.evidence.case import Case
from fedforget.evidence.worlds import PAIR, STANDARD
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
    """A wrong variant, the check that catches it, and the check's result with the variant; on the code it is 0."""

    number: int
    install: Install
    check: Check
    finds: Fraction | int
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.number}-{self.install.__name__}{self.suffix}"


def by_law(number: int, install: Install, world: Case, finds: str, suffix: str = "") -> Mutant:
    return Mutant(number, install, partial(checks.law, world), Fraction(finds), suffix)


def by_path(number: int, install: Install, world: Case, finds: str) -> Mutant:
    return Mutant(number, install, partial(checks.paths, world), Fraction(finds), "-path")


def on_disk(number: int, install: Install, *stream: Request, server: str = "average") -> Mutant:
    return Mutant(number, install, partial(checks.run_on_disk, *stream, server=server), 1, "-disk")


MUTANTS = (
    by_law(1, variants.slots_redrawn, case(PAIR, sample(0, 0)), "1/8"),
    by_law(1, variants.slots_redrawn, case(LARGE_AND_TWO_SMALL, sample(0, 0), b=2, R=2), "16/81", "-three-clients"),
    by_path(1, variants.slots_redrawn, case(THREE_SINGLES, client(2)), "1/6"),
    by_law(2, variants.restart_from_round_1, case(PAIR, sample(0, 0), b=2), "1/4"),
    by_law(2, variants.restart_from_round_1, case(PAIR, sample(0, 0), R=2), "7/64", "-two-rounds"),
    by_path(2, variants.restart_from_round_1, case(THREE_SINGLES, client(2), R=2), "5/12"),
    by_law(3, variants.rescaled_slots, case(THREE_SINGLES, client(2)), "1/6"),
    by_law(3, variants.rescaled_batches, case(THREE_SAMPLES, sample(0, 2)), "1/6"),
    by_law(4, variants.rewind_one_round_short, case(PAIR, sample(0, 0)), "1/4"),
    by_law(4, variants.rewind_one_round_short, case(PAIR, sample(0, 0), R=2), "7/16", "-two-rounds"),
    on_disk(4, variants.rewind_one_round_short, Request(1)),
    by_law(5, variants.slots_recomputed_after_erasure, case(TWO_SINGLES, client(1), K=2), "3/4"),
    by_law(5, variants.batch_size_recomputed_after_erasure, case(FOUR_SAMPLES, sample(0, 0), b=2), "1/2"),
    Mutant(6, variants.multiplicity_ignored, partial(checks.law_of_average, 2, 3), Fraction(3, 4)),
    by_law(7, variants.server_records_round_1_only, case(TWO_SINGLES, client(0), R=2), "1/4"),
    by_law(7, variants.client_records_round_1_only, case(TWO_SAMPLES, sample(0, 0), R=2), "1/4"),
    by_law(7, variants.server_first_uses_not_rewound, case(THREE_SINGLES, client(2), client(1), R=2), "1/18"),
    by_law(7, variants.client_first_uses_not_rewound, case(THREE_SAMPLES, sample(0, 2), sample(0, 1), R=2), "1/18"),
    by_path(7, variants.server_first_uses_not_rewound, case(THREE_SINGLES, client(2), client(1), R=2), "13/36"),
    by_path(7, variants.client_first_uses_not_rewound, case(THREE_SAMPLES, sample(0, 2), sample(0, 1), R=2), "13/36"),
    on_disk(7, variants.server_store_records_round_1_only, Request(1)),
    on_disk(7, variants.client_store_records_round_1_only, Request(1, 0)),
    on_disk(7, variants.server_store_first_uses_not_rewound, Request(2), Request(0)),
    Mutant(
        7,
        variants.client_store_first_uses_not_rewound,
        partial(checks.interrupted_on_disk, Request(0, 1), seed=7),
        1,
        "-disk",
    ),
    Mutant(
        8,
        variants.slots_redrawn_after_failure,
        partial(checks.law_of_average, 2, 1, fails_once=0),
        Fraction(1, 4),
    ),
    Mutant(8, variants.failed_clients_dropped, partial(checks.law_of_average, 2, 2, fails_once=0), Fraction(1, 2)),
    Mutant(9, variants.sum_in_order_of_arrival, checks.orders_of_replies, 1),
    Mutant(10, variants.optimizer_not_rewound, checks.numeric_paths, 10),
    on_disk(10, variants.optimizer_on_disk_not_rewound, Request(1), server="fedadam"),
    Mutant(11, variants.changed_content_ignored, partial(checks.content_changed, lambda x, y: (x + 1, y)), 1),
    Mutant(11, variants.changed_label_ignored, partial(checks.content_changed, lambda x, y: (x, 1 - y)), 1),
    Mutant(11, variants.changed_content_beside_erasure_ignored, checks.content_changed_beside_erasure, 3),
    by_law(12, variants.truncated_priorities, case(TWO_SAMPLES), "1/2"),
    Mutant(12, variants.truncated_priorities, checks.unrelated_draws_that_change, 21, "-path"),
    Mutant(13, variants.client_seeds_not_renewed, checks.unchanged_client_seeds, 3),
    Mutant(14, variants.request_of_emptied_client_stays_pending, checks.pending_requests_of_emptied_client, 1),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mutant.check() == 0
    mutant.install(monkeypatch)
    assert mutant.check() == mutant.finds


def test_mutants_have_all_numbers_and_unique_names() -> None:
    assert {mutant.number for mutant in MUTANTS} == set(range(1, 15))
    assert len(set(map(str, MUTANTS))) == len(MUTANTS)


def test_restart_from_round_1_is_exact_in_law_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two variants have the wrong law for samples only; for clients just the path is lost."""
    world = case(THREE_SINGLES, client(2), R=2)
    variants.restart_from_round_1(monkeypatch)
    assert checks.law(world) == 0
    assert checks.paths(world) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "install",
    [
        variants.slots_redrawn,
        variants.restart_from_round_1,
        variants.rescaled_slots,
        variants.rescaled_batches,
        variants.rewind_one_round_short,
        variants.slots_recomputed_after_erasure,
        variants.batch_size_recomputed_after_erasure,
        variants.server_records_round_1_only,
        variants.client_records_round_1_only,
        variants.server_first_uses_not_rewound,
        variants.client_first_uses_not_rewound,
        variants.truncated_priorities,
    ],
    ids=lambda install: install.__name__,
)
def test_standard_worlds_catch_the_mutant(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one world of ``fedforget prove`` is no longer exact."""
    install(monkeypatch)
    assert any(checks.law(world) > 0 for world in STANDARD)
