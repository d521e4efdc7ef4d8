"""First uses and witnesses, and the digest of both: outdated by every change, and nothing is written without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.ports import RemoveOrder
from fedforget.disk.database import Database
from fedforget.errors import RunDamaged
from fedforget.store import uses as uses_module
from fedforget.store.uses import Uses

FIRST: list[tuple[Id, Id, int]] = [(1, 0, 5), (1, "a", 9), ("ward", 3, 2)]
WITNESSES: list[tuple[Id, int, bytes]] = [
    (1, 2, b"w" * 40),
    (1, 3, b"v" * 40),
    ("ward", 1, b"u" * 40),
    (8, 1, b"t" * 40),
]


@pytest.fixture
def uses(tmp_path: Path) -> Iterator[Uses]:
    """Notes as they are when a run was opened again: sealed, and not yet written to."""
    made = Uses(Database(tmp_path / "uses.db", uses_module.SCHEMA, create=True))
    made.note(FIRST, WITNESSES)
    made.store_digest()
    made.database.close_canonical()
    found = Uses(Database(tmp_path / "uses.db", uses_module.SCHEMA))
    found.database.before_first_write = found.database.begin_writing
    yield found
    found.database.close()


def is_stored(uses: Uses) -> bool:
    return bool(uses.database.rows("SELECT 1 FROM content"))


def notes(uses: Uses) -> tuple[list[Any], list[Any]]:
    found = [sorted(uses.database.rows(f"SELECT * FROM {table}"), key=repr) for table in ("first_uses", "witnesses")]
    return found[0], found[1]


# ------------------------------------------------------------------------------------------------------------ the notes


def test_notes_are_found_by_client(uses: Uses) -> None:
    assert uses.first_steps(1) == {0: 5, "a": 9}
    assert uses.first_steps("ward") == {3: 2}
    assert (uses.first_steps(8), uses.witnesses(9)) == ({}, {})
    assert list(uses.witnesses(1).items()) == [(2, b"w" * 40), (3, b"v" * 40)]
    assert (uses.count(), uses.last_witnessed_round(), uses.last_noted_step()) == (3, 3, 9)
    assert [uses.last_noted_step(until) for until in (1, 2, 4, 5, 8)] == [0, 2, 2, 5, 5]


def test_round_without_notes_writes_nothing(uses: Uses) -> None:
    uses.note([], [])
    assert not uses.database.is_writing
    assert is_stored(uses)


@pytest.mark.parametrize(
    ("order", "first", "witnesses"),
    [
        (RemoveOrder(1, (0,)), FIRST[1:], WITNESSES),
        (RemoveOrder(1, (0, "a", "unused")), FIRST[2:], WITNESSES),
        (RemoveOrder(1, None), FIRST[2:], WITNESSES[2:]),
        (RemoveOrder("ward", None), FIRST[:2], [*WITNESSES[:2], WITNESSES[3]]),
        (RemoveOrder(8, None), FIRST, WITNESSES[:3]),
    ],
)
def test_removed_data_leave_no_note(
    uses: Uses, order: RemoveOrder, first: list[object], witnesses: list[object]
) -> None:
    for _ in range(2):
        uses.remove([RemoveOrder("unknown", None), order])
        assert notes(uses) == (sorted(first, key=repr), sorted(witnesses, key=repr))


@pytest.mark.parametrize(
    "orders",
    [
        [],
        [RemoveOrder(1, ("unused",)), RemoveOrder("ward", (0,))],
        [RemoveOrder(8, (0, 1))],
        [RemoveOrder("unknown", None)],
        [RemoveOrder(1, ())],
    ],
)
def test_removing_data_without_notes_writes_nothing(uses: Uses, orders: list[RemoveOrder]) -> None:
    """A witness of the client stays: the draws of its rounds are the same."""
    uses.remove(orders)
    assert not uses.database.is_writing
    assert not uses.database.changed
    assert is_stored(uses)


@pytest.mark.parametrize(
    ("rounds", "step", "first", "witnesses"),
    [
        (2, 9, FIRST, [WITNESSES[0], *WITNESSES[2:]]),
        (3, 8, [FIRST[0], FIRST[2]], WITNESSES),
        (1, 4, FIRST[2:], WITNESSES[2:]),
        (0, 0, [], []),
    ],
)
def test_rewind_drops_notes_of_later_rounds(
    uses: Uses, rounds: int, step: int, first: list[object], witnesses: list[object]
) -> None:
    for _ in range(2):
        uses.rewind(rounds, step)
        assert notes(uses) == (sorted(first, key=repr), sorted(witnesses, key=repr))


@pytest.mark.parametrize(("rounds", "step"), [(3, 9), (3, 10), (4, 9), (100, 1000)])
def test_rewind_to_where_the_notes_end_writes_nothing(uses: Uses, rounds: int, step: int) -> None:
    uses.rewind(rounds, step)
    assert not uses.database.is_writing
    assert not uses.database.changed
    assert is_stored(uses)


# ----------------------------------------------------------------------------------------------------------- the digest


def test_stored_digest_is_the_one_that_is_computed(uses: Uses) -> None:
    assert is_stored(uses)
    assert uses.digest() == uses.computed_digest()
    uses.require_digest()


@pytest.mark.parametrize("change", ["use", "witness", "remove", "rewind"])
def test_change_outdates_the_stored_digest(uses: Uses, change: str) -> None:
    before = uses.digest()
    if change == "use":
        uses.note([(8, 1, 12)])
    elif change == "witness":
        uses.note([], [(8, 4, b"s" * 40)])
    elif change == "remove":
        uses.remove([RemoveOrder(1, (0,))])
    else:
        uses.rewind(2, 9)
    assert not is_stored(uses)
    assert uses.digest() == uses.computed_digest() != before
    uses.store_digest()
    assert is_stored(uses)
    assert uses.digest() == uses.computed_digest() != before


def test_digest_is_a_function_of_the_notes_alone(uses: Uses) -> None:
    before = uses.digest()
    uses.note([(8, 1, 12)], [(8, 4, b"s" * 40)])
    uses.rewind(3, 9)
    assert uses.digest() == before
    uses.remove([RemoveOrder(1, None)])
    uses.note([use for use in reversed(FIRST) if use[0] == 1], [each for each in reversed(WITNESSES) if each[0] == 1])
    assert uses.digest() == before


def test_digest_tells_numbers_from_words_and_one_table_from_the_other(uses: Uses) -> None:
    found = {uses.digest()}
    for change in (
        "UPDATE first_uses SET sample = 'b' WHERE sample = 'a'",
        "UPDATE first_uses SET step = 6 WHERE step = 5",
        "UPDATE first_uses SET client = 2 WHERE client = 1",
        "UPDATE witnesses SET round = 9 WHERE round = 3",
        "UPDATE witnesses SET witness = zeroblob(40)",
        "DELETE FROM witnesses",
        "DELETE FROM first_uses",
    ):
        with uses.database.transaction():
            uses.database.run(change)
        found.add(uses.computed_digest())
    assert len(found) == 8


def test_digest_of_other_notes_is_damage(uses: Uses) -> None:
    with uses.database.transaction():
        uses.database.run("UPDATE first_uses SET step = 6 WHERE step = 5")
    with pytest.raises(RunDamaged, match=r"uses\.db is damaged: its digest is not that of its content"):
        uses.require_digest()


def test_digest_is_stored_once(uses: Uses) -> None:
    uses.store_digest()
    assert not uses.database.is_writing


def test_notes_about_unknown_clients_are_damage(uses: Uses) -> None:
    uses.require_clients(IdSet([1, "ward", 8, 9]))
    for missing in (1, "ward", 8):
        with pytest.raises(RunDamaged, match="notes about a client that is not in the roster"):
            uses.require_clients(IdSet(client for client in (1, "ward", 8) if client != missing))


def test_equal_notes_give_equal_bytes(uses: Uses, tmp_path: Path) -> None:
    uses.note([(8, 1, 12)], [(8, 4, b"s" * 40)])
    uses.rewind(3, 9)
    uses.store_digest()
    before = (tmp_path / "uses.db").read_bytes()
    uses.database.close_canonical()
    assert (tmp_path / "uses.db").read_bytes() == before, "the file was not touched, its log was"
