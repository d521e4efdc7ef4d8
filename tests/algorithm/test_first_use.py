"""First uses against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedforget.algorithm.first_use import FirstUse
from fedforget.algorithm.ids import IdSet
from tests.helpers import IDS, reference_block

SOME = st.sets(st.sampled_from(IDS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), SOME),
        st.tuples(st.just("rewind"), st.integers(0, 12)),
        st.tuples(st.just("without"), SOME),
    ),
    max_size=12,
)


def places(first_use, ids):
    return np.array(sorted(first_use.ids.position[each] for each in ids), np.intp)


@given(SOME, STEPS)
def test_any_sequence_of_notes_rewinds_and_removals_is_that_of_a_dictionary(ids, steps):
    first_use, reference, present = FirstUse(IdSet(ids)), dict[object, int](), set(ids)
    when = 0
    for kind, value in steps:
        if kind == "note":
            when += 1
            used = value & present
            fresh = first_use.note(places(first_use, used), when)
            assert fresh == sorted(used - reference.keys(), key=reference_block)
            reference |= {each: when for each in used if each not in reference}
        elif kind == "rewind":
            first_use.rewind(value)
            reference = {each: step for each, step in reference.items() if step <= value}
            when = min(when, value)
        else:
            first_use = first_use.without(value)
            present -= value
            reference = {each: step for each, step in reference.items() if each in present}
        assert set(first_use.ids) == present
        assert first_use.known() == reference
        assert {each: first_use.of(each) for each in present} == {each: reference.get(each) for each in present}
        listed = list(present)
        assert first_use.look_up(listed).tolist() == [reference.get(each, 0) for each in listed]


@given(st.dictionaries(st.sampled_from(IDS), st.integers(1, 2**40)), SOME)
def test_stored_first_uses_are_restored(known, others):
    first_use = FirstUse(IdSet(known.keys() | others), known)
    assert first_use.known() == known
    assert all(first_use.of(each) is None for each in others - known.keys())


def test_first_use_without_does_not_change_the_original():
    whole = FirstUse(IdSet([1, 2, 3]), {1: 4, 2: 6})
    rest = whole.without([1])
    rest.rewind(5)
    assert (whole.known(), rest.known()) == ({1: 4, 2: 6}, {})


def test_first_use_of_unknown_id_raises():
    with pytest.raises(KeyError):
        FirstUse(IdSet([1])).of(2)
