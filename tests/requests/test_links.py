"""A short proof shows that one event follows another; no other proof, place or hash does."""

from __future__ import annotations

import hashlib

import pytest

from fedforget.requests.links import BEGINNING, Linker, follow, link, path_back, proof, shortcut_of

COUNT = 70
DIGESTS = [hashlib.sha256(bytes([number])).digest() for number in range(COUNT + 1)]


def chained(digests: list[bytes]) -> list[bytes]:
    """The hash of every event, by the definition: of the one before and of the shortcut."""
    hashes = [BEGINNING]
    for number in range(1, len(digests)):
        hashes.append(link(number, hashes[-1], hashes[shortcut_of(number)], digests[number]))
    return hashes


HASHES = chained(DIGESTS)


def steps(newer: int, older: int) -> list[tuple[bytes, bytes]]:
    return proof(newer, older, DIGESTS.__getitem__, HASHES.__getitem__)


@pytest.mark.parametrize("start", range(0, COUNT, 3))
def test_linker_computes_the_same_hashes_from_any_event_on(start: int) -> None:
    linker = Linker(start, HASHES.__getitem__)
    assert linker.sequence == start
    assert [linker.append(digest) for digest in DIGESTS[start + 1 :]] == HASHES[start + 1 :]


def test_every_event_follows_every_earlier_one() -> None:
    for newer in range(COUNT + 1):
        for older in range(newer + 1):
            assert follow(older, HASHES[older], newer, steps(newer, older)) == HASHES[newer]


def test_path_has_few_steps() -> None:
    for newer in (2**20 - 1, 2**20, 2**20 + 12345):
        for older in (0, 1, 2**19 - 1, 777_777):
            assert len(list(path_back(newer, older))) <= 3 * 20


def test_older_event_of_another_history_is_not_followed() -> None:
    """The other history differs in one event only: no proof of ours leads from its hashes to ours."""
    for changed in (1, 16, 37):
        other = chained([*DIGESTS[:changed], bytes(32), *DIGESTS[changed + 1 :]])
        for older in range(changed, COUNT):
            assert follow(older, other[older], COUNT, steps(COUNT, older)) != HASHES[COUNT]


def test_any_altered_proof_leads_elsewhere() -> None:
    newer, older = 52, 21
    good = steps(newer, older)
    for number, step in enumerate(good):
        for part in (0, 1):
            broken = bytearray(step[part])
            broken[7] ^= 1
            altered = [bytes(broken), step[1]] if part == 0 else [step[0], bytes(broken)]
            given = [*good[:number], (altered[0], altered[1]), *good[number + 1 :]]
            assert follow(older, HASHES[older], newer, given) != HASHES[newer]
    for given in (good[:-1], [*good, good[-1]], []):
        assert follow(older, HASHES[older], newer, given) is None
    for place in (older - 1, older + 1):
        assert follow(place, HASHES[older], newer, steps(newer, place)) != HASHES[newer]


def test_an_event_does_not_follow_a_later_one() -> None:
    assert follow(9, HASHES[9], 5, []) == HASHES[9] != HASHES[5]
    assert list(path_back(5, 9)) == []


def test_every_hash_covers_its_number_and_both_earlier_hashes() -> None:
    found = link(13, HASHES[12], HASHES[10], DIGESTS[13])
    others = {
        link(12, HASHES[12], HASHES[10], DIGESTS[13]), link(13, HASHES[11], HASHES[10], DIGESTS[13]),
        link(13, HASHES[12], HASHES[9], DIGESTS[13]), link(13, HASHES[12], HASHES[10], DIGESTS[12]),
    }  # fmt: skip
    assert found == HASHES[13]
    assert found not in others
    assert len(others) == 4


def test_shortcuts_are_those_of_the_specification() -> None:
    """Myers' rule: jump over the last two jumps if they are equally long, else to the event before."""
    assert [shortcut_of(number) for number in range(1, 16)] == [0, 1, 0, 3, 4, 3, 0, 7, 8, 7, 10, 11, 10, 7, 0]
    for number in range(2, 500):
        last = shortcut_of(number - 1)
        equally_long = last > 0 and number - 1 - last == last - shortcut_of(last)
        assert shortcut_of(number) == (shortcut_of(last) if equally_long else number - 1)
