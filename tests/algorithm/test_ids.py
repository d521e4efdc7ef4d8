"""Ids: one spelling, one block, for ever."""

from __future__ import annotations

import enum
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedforget.algorithm.ids import Id, IdSet, canonical_id, id_block
from fedforget.errors import InvalidId
from tests.helpers import IDS, reference_block

LARGEST = 2**63 - 1


class Ward(enum.IntEnum):
    SEVEN = 7


class Room(str):
    """Like a member of an enumeration of strings: equal to its value, printed as its name."""

    __slots__ = ()

    def __str__(self) -> str:
        return "Room.RED"


@pytest.mark.parametrize(
    ("given_id", "canonical"),
    [
        (3, 3),
        ("3", 3),
        (np.int64(3), 3),
        (np.uint8(3), 3),
        (np.array(3), 3),
        (torch.tensor(3), 3),
        (np.str_("3"), 3),
        (Ward.SEVEN, 7),
        (0, 0),
        ("0", 0),
        (LARGEST, LARGEST),
        (str(LARGEST), LARGEST),
        (np.uint64(LARGEST), LARGEST),
        ("03", "03"),
        ("00", "00"),
        ("-3", "-3"),
        ("+3", "+3"),
        (" 3", " 3"),
        ("3\n", "3\n"),
        ("3.0", "3.0"),
        ("1_0", "1_0"),
        ("٣", "٣"),
        ("²", "²"),
        ("\uff13", "\uff13"),
        (str(2**63), str(2**63)),
        ("9" * 19, "9" * 19),
        ("1" * 5000, "1" * 5000),
        ("", ""),
        ("ward-7", "ward-7"),
        (np.str_("ward-7"), "ward-7"),
    ],
)
def test_an_id_has_one_spelling(given_id, canonical):
    spelled = canonical_id(given_id)
    assert (spelled, type(spelled)) == (canonical, type(canonical))
    assert canonical_id(spelled) == spelled


def test_string_subclass_is_the_id_of_its_characters():
    assert Room("red") == "red"
    assert canonical_id(Room("red")) == "red"


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        np.True_,
        3.0,
        np.float64(3),
        np.float32(3),
        float("nan"),
        Fraction(3),
        Decimal(3),
        -1,
        np.int64(-1),
        2**63,
        2**63 + 1,
        2**64,
        np.uint64(2**63),
        np.uint64(2**64 - 1),
        None,
        b"3",
        bytearray(b"3"),
        (3,),
        [3],
        np.array([3, 4]),
        np.array(True),
        Ellipsis,
    ],
    ids=repr,
)
def test_impossible_id_is_refused_by_name(value):
    with pytest.raises(InvalidId) as refused:
        canonical_id(value)
    assert repr(value) in refused.value.message
    assert refused.value.hint


@given(st.integers(0, LARGEST))
def test_a_number_and_its_decimals_are_one_id(number):
    assert canonical_id(str(number)) == canonical_id(number) == number


# Written down once, from the definition; they never change.
BLOCKS = {
    0: "00000000000000000000000000000000",
    3: "00000000000000000000000000000003",
    LARGEST: "00000000000000007fffffffffffffff",
    "03": "01015a0e424378606d89c6d9af20bd6a",
    "ward-7": "011da0d9c1b384123a2dae75feb3280e",
    "٣": "014d7b72e9421bd932830d0ff603f846",
    "é": "01ab4e4f9eb8851723127b543a58b5ed",
    "": "01abecda5a8fcca99ecbb9fe0c0f7422",
}


@pytest.mark.parametrize(("identifier", "block"), BLOCKS.items(), ids=repr)
def test_the_block_of_an_id_is_fixed(identifier, block):
    assert id_block(identifier).hex() == block
    assert reference_block(identifier).hex() == block


@given(st.one_of(st.integers(0, LARGEST), st.text()))
def test_the_block_of_any_id_is_that_of_the_definition(value):
    identifier = canonical_id(value)
    block = id_block(identifier)
    assert block == reference_block(identifier)
    assert len(block) == 16
    assert block[0] == isinstance(identifier, str)  # numbers and words never share a block


def test_text_that_is_not_unicode_is_refused():
    with pytest.raises(InvalidId, match="Unicode"):
        IdSet(["\ud800"])


@pytest.mark.parametrize("twice", [[3, "3"], [3, 3], ["a", "b", "a"], [np.int64(3), 3], [0, 1, "0"]])
def test_duplicates_are_refused_and_named(twice):
    with pytest.raises(InvalidId, match=r"duplicate client id (3|'a'|0)"):
        IdSet(twice, what="client id")


def test_number_and_similar_text_are_different_ids():
    assert len(IdSet([3, "03", "٣", " 3"])) == 4


@given(st.permutations(IDS), st.sampled_from([list, tuple, set, frozenset, iter, dict.fromkeys]))
def test_a_set_does_not_depend_on_order_type_or_container(ids, container):
    plain = IdSet(IDS)
    other = IdSet(container([str(each) if isinstance(each, int) else np.str_(each) for each in ids]))
    assert other == plain
    assert other.ids == plain.ids == tuple(sorted(IDS, key=reference_block))
    assert other.blocks.tobytes() == plain.blocks.tobytes() == b"".join(map(reference_block, plain.ids))


@given(st.sets(st.sampled_from(IDS)), st.sets(st.sampled_from(IDS)))
def test_idset_without_equals_new_idset(ids, gone):
    left, fresh = IdSet(ids).without(gone), IdSet(ids - gone)
    assert left == fresh
    assert left.ids == fresh.ids
    assert left.blocks.tobytes() == fresh.blocks.tobytes()
    assert left.blocks.flags.c_contiguous
    assert left.position == fresh.position
    assert set(left) == ids - gone
    assert all((identifier in left) == (identifier in ids - gone) for identifier in IDS)


def test_idset_without_does_not_change_the_original():
    whole = IdSet([1, 2, 3])
    assert whole.without([2]).ids == (1, 3)
    assert whole.ids == (1, 2, 3)
    assert whole != IdSet([1, 2])
    assert whole != [1, 2, 3]


@given(st.sets(st.one_of(st.integers(0, 2**63 - 1), st.text(max_size=3)).map(canonical_id), max_size=20))
def test_set_of_canonical_ids_is_the_same_set(ids: set[int | str]) -> None:
    made, expected = IdSet.of_canonical(ids), IdSet(ids)
    assert made == expected
    assert np.array_equal(made.blocks, expected.blocks)


MIXED: list[Id] = [*range(0, 90, 3), "ward-7", "zoo", "", 2**62]


@pytest.mark.parametrize("few", [0, 2**12], ids=["by bisection", "by dictionary"])
@pytest.mark.parametrize("ids", [MIXED, list(range(40)), []], ids=["mixed", "integers", "empty"])
def test_position_of_an_id_is_where_it_is(ids: list[Id], few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedforget.algorithm.ids._FEW", few)
    names = {id_block(each): each for each in ids if isinstance(each, str)}
    for found in (IdSet(ids), IdSet.of_blocks(IdSet(ids).blocks, names)):
        assert [found.place_of(each) for each in IdSet(ids).ids] == list(range(len(ids)))
        assert [found.at(place) for place in range(len(ids))] == list(IdSet(ids).ids)
        for stranger in (1000, "stranger", "03", 2**63 - 1, -1, 2**70, None, 1.5):
            assert found.place_of(stranger) is None
            assert stranger not in found
        assert found == IdSet(ids)
        half = IdSet(ids).ids[::2]
        assert found.without(half) == IdSet([each for each in ids if each not in half])
        assert found.without(["stranger"]) is found


@given(st.sets(st.one_of(st.integers(0, 2**63 - 1), st.text(max_size=3)), min_size=1, max_size=30), st.integers(0, 99))
def test_places_of_many_ids_are_those_of_each(found: set[int | str], turn: int) -> None:
    ids = IdSet({canonical_id(each) for each in found})
    wanted = [*ids.ids[turn % len(ids) :], *ids.ids]
    assert ids.places_of(wanted).tolist() == [ids.place_of(each) for each in wanted]
    assert not len(ids.places_of([]))


@pytest.mark.parametrize("missing", [5, 0, 255, 2**62, "a"])
def test_place_of_a_missing_id_raises_key_error(missing: int | str) -> None:
    with pytest.raises(KeyError, match=str(missing)):
        IdSet([1, 256, 2**40]).places_of([256, missing])
