"""The file of keys: a dropped key is in no file, and nothing else is lost with it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fedforget.disk import key_file
from fedforget.disk.key_file import KeyFile
from fedforget.errors import RunDamaged


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    made = KeyFile(tmp_path / "keys")
    made.create()
    return made


def test_next_process_decrypts_what_the_first_encrypted(keys: KeyFile) -> None:
    key = keys.take()
    sealed = keys.encrypt(key, b"ward 7", "request 1")
    assert b"ward 7" not in sealed
    assert KeyFile(keys.path).decrypt(key, sealed, "request 1") == b"ward 7"
    assert keys.encrypt(key, b"ward 7", "request 1") != sealed


def test_dropped_key_is_in_no_file_and_decrypts_nothing(keys: KeyFile) -> None:
    gone, stays = keys.take(), keys.take()
    secret = keys.key(gone)
    assert secret is not None
    assert secret in keys.path.read_bytes()
    sealed, other = keys.encrypt(gone, b"x", "a"), keys.encrypt(stays, b"y", "a")
    keys.keep_only([stays])
    assert [path for path in keys.path.parent.iterdir() if secret in path.read_bytes()] == []
    for known in (keys, KeyFile(keys.path)):
        with pytest.raises(RunDamaged, match="lacks a key"):
            known.decrypt(gone, sealed, "a")
        assert known.decrypt(stays, other, "a") == b"y"


def test_taking_a_key_writes_the_file_only_when_no_unused_one_is_left(keys: KeyFile) -> None:
    before, taken = keys.path.read_bytes(), set[int]()
    for _ in range(key_file._SPARE):
        taken.add(keys.take())
        assert keys.path.read_bytes() == before
    assert keys.take() not in taken
    assert keys.path.read_bytes() != before
    assert taken <= KeyFile(keys.path).keys.keys()


def test_key_is_never_taken_twice(keys: KeyFile) -> None:
    """Also where the database never came to refer to the first one."""
    assert len({keys.take() for _ in range(9)}) == 9


def test_keeping_all_used_keys_writes_nothing(keys: KeyFile) -> None:
    before = keys.path.stat().st_ino
    keys.keep_only([])
    key = keys.take()
    keys.keep_only([key])
    assert keys.path.stat().st_ino == before
    again = KeyFile(keys.path)
    again.begin([key])
    again.keep_only([key])
    assert keys.path.stat().st_ino == before


def test_key_of_an_earlier_process_is_dropped(keys: KeyFile) -> None:
    key = keys.take()
    again = KeyFile(keys.path)
    again.begin([key])
    again.keep_only([])
    assert key not in KeyFile(keys.path).keys


def test_after_a_crash_no_key_counts_as_unused(keys: KeyFile) -> None:
    """What it encrypted may be in a log although it was never committed."""
    lost, again = keys.take(), KeyFile(keys.path)
    assert again.take() not in {lost, *keys.keys}
    again.keep_only([])
    assert not keys.keys.keys() & KeyFile(keys.path).keys.keys()


@pytest.mark.parametrize("how", ["cut", "bit", "empty", "longer", "missing"])
def test_damaged_file_is_refused_and_named(keys: KeyFile, how: str) -> None:
    data = keys.path.read_bytes()
    if how == "missing":
        keys.path.unlink()
    else:
        keys.path.write_bytes(
            {"cut": data[:-1], "bit": data[:30] + bytes([data[30] ^ 1]) + data[31:], "empty": b"", "longer": data * 2}[
                how
            ]
        )
    with pytest.raises(RunDamaged, match="keys is"):
        KeyFile(keys.path).keys  # noqa: B018


@pytest.mark.parametrize("numbers", [(0,), (2**63,), (5, 5)])
def test_numbers_that_a_database_cannot_hold_are_refused(keys: KeyFile, numbers: tuple[int, ...]) -> None:
    data = keys.path.read_bytes()[:16] + b"".join(number.to_bytes(8, "big") + bytes(32) for number in numbers)
    keys.path.write_bytes(data + hashlib.blake2b(data, digest_size=32, person=b"fedforget/keys").digest())
    with pytest.raises(RunDamaged, match="the numbers of its keys"):
        KeyFile(keys.path).keys  # noqa: B018


def test_altered_data_and_another_place_are_refused(keys: KeyFile) -> None:
    key = keys.take()
    sealed = keys.encrypt(key, b"x", "request 1")
    for bad, about in ((sealed[:-1] + bytes([sealed[-1] ^ 1]), "request 1"), (sealed, "request 2"), (b"", "request 1")):
        with pytest.raises(RunDamaged, match="cannot be decrypted"):
            keys.decrypt(key, bad, about)
