"""The tree: its root depends on the leaves alone, and its paths show what is in it and what is not."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedforget.algorithm.contents import one_by_one
from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.tree import (
    BUCKET,
    Path,
    beside,
    bit_of,
    joined,
    label_of,
    labeller,
    labels_of,
    leaves_of,
    path_of,
    root_of,
    roots_of,
    salts_of,
    value_of,
)

Leaves = dict[bytes, bytes]
Data = Any  # hypothesis's st.data()


def own_hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32, person=b"fedforget/tree/1").digest()


def slow_root(leaves: list[tuple[bytes, bytes]], depth: int = 0) -> bytes:
    """The definition, word by word."""
    if len(leaves) <= 16:
        return own_hash(b"\0" + b"".join(label + value for label, value in sorted(leaves)))
    halves = [slow_root([leaf for leaf in leaves if bit_of(leaf[0], depth) == bit], depth + 1) for bit in (0, 1)]
    return own_hash(b"\1" + b"".join(halves))


def label(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=32).digest()


# Random labels, and labels that agree in all but their last bits.
labels = st.one_of(
    st.integers(0, 200).map(label),
    st.integers(0, 63).map(lambda number: bytes(31) + bytes([number])),
)
values = st.integers(0, 3).map(lambda number: bytes([number]) * 16)
trees = st.integers(0, 120).flatmap(lambda size: st.dictionaries(labels, values, min_size=size // 2, max_size=size))
crowded = st.dictionaries(labels, values, min_size=BUCKET + 1, max_size=80)


@given(trees)
def test_root_is_that_of_the_definition(leaves: Leaves) -> None:
    assert root_of(leaves.items()) == slow_root(list(leaves.items()))


@given(trees, labels, values)
def test_a_leaf_that_came_and_went_leaves_no_trace(leaves: Leaves, new: bytes, value: bytes) -> None:
    without = {each: leaves[each] for each in leaves if each != new}
    back = {**without, new: value}
    assert root_of(back.items()) != root_of(without.items())
    del back[new]
    assert root_of(reversed(list(back.items()))) == root_of(without.items())


@given(trees, labels)
def test_path_shows_whether_a_label_is_there(leaves: Leaves, wanted: bytes) -> None:
    path = path_of(leaves.items(), wanted)
    assert path.root(wanted) == root_of(leaves.items())
    assert path.value(wanted) == leaves.get(wanted)


@given(crowded, labels, st.data())
def test_altered_path_gives_another_root(leaves: Leaves, wanted: bytes, data: Data) -> None:
    path, root = path_of(leaves.items(), wanted), root_of(leaves.items())
    place = data.draw(st.integers(0, len(path.siblings) - 1))
    other = bytes([path.siblings[place][0] ^ 1]) + path.siblings[place][1:]
    assert Path((*path.siblings[:place], other, *path.siblings[place + 1 :]), path.bucket).root(wanted) != root
    assert Path(path.siblings[:-1], path.bucket).root(wanted) != root


@given(crowded, st.data())
def test_absence_of_a_present_label_cannot_be_shown(leaves: Leaves, data: Data) -> None:
    """Cut the path at any depth and put any other bucket at its end: the root changes, or the path is refused."""
    wanted = data.draw(st.sampled_from(sorted(leaves)))
    path, root = path_of(leaves.items(), wanted), root_of(leaves.items())
    depth = data.draw(st.integers(0, len(path.siblings)))
    others = [leaf for leaf in sorted(leaves.items()) if leaf[0] != wanted]
    bucket = data.draw(st.lists(st.sampled_from(others), max_size=BUCKET, unique=True).map(sorted))
    without = tuple(leaf for leaf in path.bucket if leaf[0] != wanted)
    for forged in (Path(path.siblings[:depth], tuple(bucket)), Path(path.siblings, without)):
        try:
            found = forged.root(wanted)
        except ValueError:
            continue
        assert found != root


@given(trees, st.integers(0, 4))
def test_subtrees_join_to_one_tree(leaves: Leaves, depth: int) -> None:
    parts: list[list[tuple[bytes, bytes]]] = [[] for _ in range(2**depth)]
    for leaf in leaves.items():
        parts[leaf[0][0] >> (8 - depth)].append(leaf)
    roots = [root_of(part, depth) for part in parts]
    for wanted in (*leaves, label(1)):
        here = wanted[0] >> (8 - depth)
        whole = path_of(parts[here], wanted, depth).below(beside(roots, here))
        assert whole.root(wanted) == joined(roots)
        assert whole.value(wanted) == leaves.get(wanted)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (Path((), tuple((label(n), b"") for n in range(17))), "not a bucket"),
        (Path((), ((label(2), b""), (label(2), b""))), "not a bucket"),
        (Path((), tuple(sorted([(label(1), b"a"), (label(2), b"")]))), "differ in length"),
        (Path((bytes(32),) * 9, ((bytes([255]) * 32, b""),)), "not on the path"),
        (Path((bytes(32),) * 257, ()), "not a path"),
        (Path((), ((b"short", b""),)), "not on the path"),
    ],
    ids=["too full", "twice", "lengths", "elsewhere", "too deep", "short label"],
)
def test_malformed_path_is_refused(path: Path, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        path.root(bytes(32))


def test_two_leaves_with_one_label_are_refused() -> None:
    with pytest.raises(ValueError, match="same label"):
        root_of([(label(1), bytes(16)), (label(1), bytes(16))])


def test_labels_of_many_ids_are_those_of_each() -> None:
    key, ids = bytes(range(32)), IdSet([3, "ward-7", 2**60, 0])
    salts = salts_of(key, ids)
    assert labels_of(key, ids) == [label_of(salt, each) for salt, each in zip(salts, ids, strict=True)]
    assert len({*salts, *salts_of(bytes(32), ids)}) == 8


def test_leaves_of_samples_are_labels_with_salted_contents() -> None:
    key, ids = bytes(range(32)), IdSet([3, "ward-7", 2**60, 0])
    contents = [bytes([place]) * 16 for place in range(4)]
    salts = salts_of(key, ids)
    expected = [own_hash(b"\3" + salt + content) for salt, content in zip(salts, contents, strict=True)]
    assert leaves_of(key, ids, contents) == list(zip(labels_of(key, ids), expected, strict=True))
    assert expected == [value_of(salt, content) for salt, content in zip(salts, contents, strict=True)]


def test_equal_contents_have_different_values() -> None:
    """Otherwise a path would show which samples are equal, and a guess of a content could be tested."""
    key, ids = bytes(range(32)), IdSet(range(8))
    values = {value for which in (key, bytes(32)) for _, value in leaves_of(which, ids, [bytes(16)] * 8)}
    assert len(values) == 16


def test_published_values() -> None:
    """Vectors: receipts hold these bytes, so they never change."""
    key, ids = bytes(range(32)), IdSet([3])
    [salt], [(found, value)] = salts_of(key, ids), leaves_of(key, ids, [bytes(16)])
    roots = root_of([]), root_of([(found, value)])
    assert [part.hex()[:16] for part in (salt, found, value, *roots)] == VECTORS


VECTORS = ["186a090966bd7c4a", "c6334f1a4d7608f0", "27fb1ff166904e57", "a5a4800cf0ed81a3", "8e6e8ff012d02089"]


@given(st.lists(st.sets(st.integers(0, 10**6), max_size=40), max_size=4))
def test_roots_of_many_clients_are_those_of_each(worlds: list[set[int]]) -> None:
    """Also of clients without samples, and of more samples than a bucket holds."""
    keys = [bytes([place]) * 32 for place in range(len(worlds))]
    sets: dict[Id, IdSet] = {place: IdSet(world) for place, world in enumerate(worlds)}
    digests = {
        place: [hashlib.blake2b(id_block(each), digest_size=16).digest() for each in ids] for place, ids in sets.items()
    }
    found = roots_of(keys, one_by_one(lambda place: (sets[place], b"".join(digests[place])))(range(len(worlds))))
    assert found == [root_of(leaves_of(key, sets[place], digests[place])) for place, key in enumerate(keys)]


def test_labeller_gives_the_labels_of_labels_of() -> None:
    ids = IdSet([0, 1, 2**62, "ward-7", "äöü"])
    assert list(map(labeller(bytes(32)), ids)) == labels_of(bytes(32), ids)
