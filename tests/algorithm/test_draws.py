"""Draws: the definition's vectors, and what happens to a draw when an id goes."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedforget.algorithm import draws
from fedforget.algorithm.draws import (
    NO_CLIENT,
    Address,
    PrfPriorities,
    Purpose,
    draw_batch_without_replacement,
    draw_batches_without_replacement,
    draw_clients_with_replacement,
    draw_key,
    multiplicities,
    smallest,
)
from fedforget.algorithm.ids import IdSet, id_block
from fedforget.algorithm.seeds import Seed, SeedSource
from fedforget.errors import InvalidInput
from tests.helpers import IDS, reference_batch, reference_block, reference_key, reference_priority, reference_slot

SEED = bytes(range(32))
LARGEST = 2**63 - 1
MIXED = (0, 3, LARGEST, "03", "ward-7", "٣", "é", "")


def batch_of(seed, client, samples, round_, step, size):
    held = samples if isinstance(samples, IdSet) else IdSet(samples)
    places = draw_batch_without_replacement(PrfPriorities(seed), client, held, round_, step, size)
    return [held.ids[place] for place in places]


# ------------------------------------------------------------------------------------------------------------ vectors

KEYS = [
    ((1, 1, 0, None), "d205c6d184a639ccb10387478b939e55"),
    ((2, 1, 0, 3), "bec8a9167620ef22d8003cd1bed0b870"),
    ((1, 2, 5, None), "34d5dba020ea59176597b10ce26e5439"),
    ((2, 7, 9, "ward-7"), "7c2556a49cac4787e9f7fffcfbf6d3c0"),
    ((2, 1, 0, LARGEST), "c7f1bc45e3df520e19aa916bd3ffc445"),
    ((2, 1, 0, "03"), "20693d7f6ea4b4e83c0ec8c29762bf32"),
    ((3, 4, 1, "٣"), "5807f32d58dd70827da31f64e5d1d112"),
    ((4, 2, 3, 0), "34f239d4cc4957eb95f953b16fa3eba7"),
    ((2, 2**40, 2**33, "é"), "eda58ebc41fd787cb92bf23c6c497d82"),
]

PRIORITIES = {  # at slot (1, 0)
    0: "41fc9215762bc6ac4db22a20f03c8cf1",
    3: "dec46afe5b891e982f230ea99a5d27d2",
    LARGEST: "736b25a96e01cfb236c6ef5f7a36b04b",
    "03": "174755ab1768551df8ef35ff794479aa",
    "ward-7": "f7c0cc39d83b6c673e18bf300826c998",
    "٣": "840c67f188ef29e587732d2a93e6acfe",
    "é": "4ebea9d7825ec838524b795bddfe850c",
    "": "105479927634152a4146bf2e00f5e0f1",
}


@pytest.mark.parametrize(("place", "key"), KEYS)
def test_the_key_of_an_address_is_fixed(place, key):
    purpose, round_, index, client = place
    address = Address(Purpose(purpose), round_, index, NO_CLIENT if client is None else id_block(client))
    assert draw_key(SEED, address).hex() == key
    assert PrfPriorities(SEED).stream(address).hex() == key
    assert reference_key(SEED, *place).hex() == key


def test_the_priority_of_an_id_is_fixed():
    ids = IdSet(PRIORITIES)
    columns = PrfPriorities(SEED)(Address(Purpose.SLOT, 1, 0), ids)
    found = {
        identifier: f"{int(high):016x}{int(low):016x}" for identifier, (high, low) in zip(ids, columns, strict=True)
    }
    assert found == PRIORITIES
    assert {i: f"{reference_priority(bytes.fromhex(KEYS[0][1]), i):032x}" for i in PRIORITIES} == PRIORITIES


def test_the_draws_of_the_definition():
    assert draw_clients_with_replacement(PrfPriorities(SEED), IdSet(range(8)), 1, 1) == [1]
    assert batch_of(SEED, 3, range(8), 1, 0, 3) == [1, 3, 6]


def test_slots_are_fixed():
    priorities = PrfPriorities(SEED)
    assert draw_clients_with_replacement(priorities, IdSet(range(8)), 1, 8) == [1, 7, 0, 2, 2, 4, 0, 4]
    words = draw_clients_with_replacement(priorities, IdSet(MIXED), 2, 8)
    assert words == [LARGEST, "٣", "٣", 0, LARGEST, 0, "", "٣"]


@pytest.mark.parametrize(
    ("client", "batch"),
    [
        (3, [3, "٣", "é"]),
        ("03", [3, LARGEST, "٣"]),
        ("ward-7", [0, 3, "٣"]),
        ("٣", [0, "é", ""]),
        (LARGEST, [0, "ward-7", ""]),
    ],
)
def test_batches_are_fixed(client, batch):
    assert sorted(batch_of(SEED, client, MIXED, 2, 1, 3), key=str) == sorted(batch, key=str)


ROUNDS, INDICES = st.integers(1, 2**63), st.integers(0, 2**63)
SEEDS = st.binary(min_size=32, max_size=32)
SETS = st.sets(st.one_of(st.integers(0, LARGEST), st.sampled_from(IDS)), min_size=1, max_size=12)


@given(SEEDS, SETS, st.integers(1, 2**63), st.integers(1, 6))
def test_slots_are_those_of_the_definition(seed, roster, round_, count):
    expected = [reference_slot(seed, round_, slot, roster) for slot in range(count)]
    assert draw_clients_with_replacement(PrfPriorities(seed), IdSet(roster), round_, count) == expected


@given(SEEDS, SETS, st.sampled_from(IDS), ROUNDS, INDICES, st.integers(1, 14))
def test_batches_are_those_of_the_definition_in_block_order(seed, samples, client, round_, step, size):
    expected = reference_batch(seed, round_, client, step, samples, size)
    assert batch_of(seed, client, samples, round_, step, size) == expected
    assert len(expected) == min(size, len(samples))


@given(SEEDS, st.permutations(IDS), st.sampled_from([list, tuple, set, frozenset]))
def test_draws_do_not_depend_on_order_type_or_container_of_ids(seed, ids, container):
    spelled = container([str(each) if isinstance(each, int) else each for each in ids])
    for round_ in (1, 2):
        assert batch_of(seed, 3, spelled, round_, 0, 4) == batch_of(seed, 3, IDS, round_, 0, 4)
        slots = [draw_clients_with_replacement(PrfPriorities(seed), IdSet(each), round_, 3) for each in (spelled, IDS)]
        assert slots[0] == slots[1]


def test_a_seed_of_another_length_is_refused():
    with pytest.raises(ValueError, match="32 bytes, not 16"):
        PrfPriorities(bytes(16))


def test_draw_from_empty_roster_raises():
    with pytest.raises(ValueError, match="empty"):
        draw_clients_with_replacement(PrfPriorities(SEED), IdSet(()), 1, 1)


def test_multiplicities_come_in_block_order():
    assert list(multiplicities(["b", 7, 0, 7, "a", "b", 7]).items()) == sorted(
        Counter(["b", 7, 0, 7, "a", "b", 7]).items(), key=lambda pair: reference_block(pair[0])
    )


# ------------------------------------------------------------------------------------------------------------ smallest

HALVES = st.one_of(st.integers(0, 3), st.sampled_from([2**32, 2**63 - 1, 2**63, 2**64 - 1]))


@st.composite
def priorities_without_ties(draw):
    pairs = draw(st.lists(st.tuples(HALVES, HALVES), min_size=1, max_size=24, unique=True))
    order = draw(st.sampled_from([">u8", "<u8"]))
    return pairs, np.array(pairs, np.uint64).astype(order).reshape(-1, 2)


def by_sorting(pairs, count):
    return sorted(sorted(range(len(pairs)), key=lambda place: (pairs[place][0] << 64) + pairs[place][1])[:count])


@given(priorities_without_ties(), st.integers(0, 30))
def test_smallest_compares_all_sixteen_bytes(priorities, count):
    pairs, columns = priorities
    assert smallest(columns, count).tolist() == by_sorting(pairs, count)


@given(priorities_without_ties(), st.data())
def test_the_edges_of_smallest(priorities, data):
    pairs, columns = priorities
    for count in (0, 1, len(pairs) - 1, len(pairs), len(pairs) + 1):
        assert smallest(columns, count).tolist() == by_sorting(pairs, count)


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.permutations(range(6))), min_size=1, max_size=5),
    count=st.integers(1, 6),
)
def test_many_rows_are_compared_as_each_alone(rows, count):
    """Also where some have equal high halves at the boundary and others have not."""
    orders = np.array([[[rank // 2**shift, rank] for rank in ranks] for shift, ranks in rows], np.uint64)
    assert smallest(orders, count).tolist() == [smallest(order, count).tolist() for order in orders]


@given(st.integers(1, 40), st.sets(st.integers(0, 30), min_size=1), st.integers(1, 9), st.integers(1, 12))
def test_a_round_of_batches_is_its_steps_one_by_one(together, samples, steps, size):
    held, priorities = IdSet(samples), PrfPriorities(SEED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "_TOGETHER", together)
        rows = draw_batches_without_replacement(priorities, 3, held, 2, range(steps), size)
    assert [[held.ids[place] for place in row] for row in rows] == [
        reference_batch(SEED, 2, 3, step, held.ids, size) for step in range(steps)
    ]


def test_smallest_of_nothing_is_nothing():
    assert smallest(np.zeros((0, 2), np.uint64), 3).tolist() == []


@pytest.mark.parametrize("column", [0, 1])
def test_one_half_of_a_priority_does_not_decide(column):
    """Looking at the high or the low halves alone gives another answer here, so the test above can tell."""
    columns = np.array([[1, 5], [1, 2], [0, 9], [1, 0]], np.uint64)
    halves = sorted(np.argsort(columns[:, column], kind="stable")[:3].tolist())
    assert halves != smallest(columns, 3).tolist() == [1, 2, 3]


# ---------------------------------------------------------------------------------------------- an id is removed


def check_slots(draw, seed, roster, gone):
    """A slot changes only if it held the removed client; then another client takes that slot alone."""
    before, after = draw(seed, roster), draw(seed, roster - {gone})
    for old, new in zip(before, after, strict=True):
        assert new == old if old != gone else new != gone


def check_batch(draw, seed, samples, gone, size):
    """A batch changes only if it held the removed sample; then one other sample takes its place, if there is one."""
    before, after = set(draw(seed, samples)), set(draw(seed, samples - {gone}))
    if gone not in before:
        assert after == before
    else:
        assert before - {gone} <= after
        assert len(after) == min(size, len(samples) - 1)
        assert gone not in after


def slots(seed, roster):
    return draw_clients_with_replacement(PrfPriorities(seed), IdSet(roster), 3, 8)


TWO_OR_MORE = st.sets(st.sampled_from(IDS), min_size=2)


@given(SEEDS, TWO_OR_MORE, st.data())
def test_removed_client_changes_only_its_own_slots(seed, roster, data):
    check_slots(slots, seed, roster, data.draw(st.sampled_from(sorted(roster, key=str))))


@given(SEEDS, TWO_OR_MORE, st.integers(1, 6), st.data())
def test_removed_sample_changes_only_batches_that_held_it(seed, samples, size, data):
    gone = data.draw(st.sampled_from(sorted(samples, key=str)))
    check_batch(lambda s, ids: batch_of(s, "k", ids, 2, 1, size), seed, samples, gone, size)


@given(SEEDS, TWO_OR_MORE, st.data())
def test_slot_passes_to_next_priority(seed, roster, data):
    gone = data.draw(st.sets(st.sampled_from(sorted(roster, key=str)), max_size=len(roster) - 1))
    for slot, drawn in enumerate(slots(seed, roster - gone)):
        key = reference_key(seed, 1, 3, slot)
        in_line = sorted(roster, key=lambda client: reference_priority(key, client))
        assert drawn == next(client for client in in_line if client not in gone)


def test_draws_by_position_fail_the_consistency_checks():
    """Position ⌊uN⌋ in the list of ids present: the usual way to draw, and the wrong one here."""

    def stream(seed, round_, index):
        return int.from_bytes(hashlib.blake2b(bytes([round_, index]), key=seed, digest_size=8).digest(), "big")

    def ordinary_slots(seed, roster):
        there = IdSet(roster).ids
        return [there[stream(seed, 3, slot) * len(there) >> 64] for slot in range(8)]

    def ordinary_batch(seed, samples):
        there = list(IdSet(samples).ids)
        return [there.pop(stream(seed, 2, index) * len(there) >> 64) for index in range(min(2, len(there)))]

    def check_all(check, draw, *more):
        for gone in range(8):
            check(draw, SEED, set(range(8)), gone, *more)

    with pytest.raises(AssertionError):
        check_all(check_slots, ordinary_slots)
    with pytest.raises(AssertionError):
        check_all(check_batch, ordinary_batch, 2)


# --------------------------------------------------------------------------------------------------------------- seeds


def test_a_given_seed_derives_every_other_and_no_two_are_alike():
    seeds = SeedSource(7)
    parts = [seeds.server(), *(seeds.client(client) for client in IDS)]
    values = [part.value for part in parts] + [part.nonce for part in parts]
    values += [seeds.initial_model(), seeds.partition()]
    assert len(set(values)) == len(values)
    assert all(len(value) == 32 for value in values)
    again = SeedSource("7")
    assert [again.server(), *(again.client(client) for client in IDS)] == parts
    assert SeedSource(8).server() != seeds.server()
    assert (seeds.origin, SeedSource(None).origin) == ("given", "system")


def test_without_a_given_seed_every_draw_of_one_is_new():
    seeds = SeedSource(None)
    assert seeds.server() != seeds.server()
    assert SeedSource(None).client(3) != SeedSource(None).client(3)


@pytest.mark.parametrize("given", [7, "7", np.int64(7)], ids=repr)
def test_seed_as_number_or_text_is_the_same(given):
    assert SeedSource.of_person(given).server() == SeedSource(7).server()


@pytest.mark.parametrize(
    "given", [7.5, 7.0, True, np.bool_(True), [7], "\ud800", 10**5000], ids=lambda v: type(v).__name__
)
def test_values_that_look_like_a_seed_are_refused(given):
    """True would be the seed "True", and 7.0 another than 7."""
    with pytest.raises(InvalidInput, match="cannot be a seed"):
        SeedSource(given)
    with pytest.raises(InvalidInput, match="cannot be a seed"):
        SeedSource.of_person(given)


def test_only_our_own_seeds_are_bytes():
    assert SeedSource(bytes(32)).origin == "given"
    with pytest.raises(InvalidInput, match="this bytes cannot be a seed"):
        SeedSource.of_person(b"x")


def test_a_commitment_binds_the_seed_and_hides_it_behind_the_nonce():
    seed = Seed(SEED, bytes(32))
    assert seed.commitment == hashlib.blake2b(bytes(32) + SEED, digest_size=32).digest()
    assert seed.commitment != Seed(SEED, b"\1" * 32).commitment
    assert seed.commitment != Seed(SEED[::-1], bytes(32)).commitment


def test_equal_addresses_are_one_key():
    """A table of draws has them by address."""
    first, second = (Address(Purpose.BATCH, 3, 1, b"a" * 16) for _ in range(2))
    assert {first: 1}[second] == 1
    assert Address(Purpose.BATCH, 3, 2, b"a" * 16) not in {first: 1}
