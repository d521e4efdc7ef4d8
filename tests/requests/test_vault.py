"""What a record holds only for a time: readable while it is needed, and its key gone afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedforget import Request
from fedforget.disk.database import Database
from fedforget.disk.key_file import KeyFile
from fedforget.requests import vault as vault_module
from fedforget.requests.lifecycle import Submission
from fedforget.requests.vault import MODEL, STATE
from fedforget.store import record as record_module
from fedforget.store.record import Record


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.setattr(vault_module, "GROUP", 4)
    made = Record(Database(tmp_path / "record.db", record_module.SCHEMA, create=True))
    made.create("system", {"loss": "loss"})
    made.vault.begin()
    return made


def defer(record: Record, *targets: Request) -> list[str]:
    with record.book.transaction():
        return record.book.receive(Submission.of(targets, "exogenous"), {})


def targets(first: int, count: int) -> tuple[Request, ...]:
    return tuple(Request(f"ward {number}", number) for number in range(first, first + count))


def key_of(record: Record, identifier: str) -> int:
    [(key,)] = record.database.rows("SELECT key FROM waiting JOIN requests USING (number) WHERE id = ?", (identifier,))
    return int(key)


def closed(record: Record) -> None:
    """What closing a run does with the keys."""
    record.vault.renew_spent()
    record.vault.drop_unused()


def test_waiting_requests_share_keys_in_groups(record: Record) -> None:
    ids = [identifier for first in range(10) for identifier in defer(record, *targets(first, 1))]
    ids += defer(record, *targets(10, 7))
    keys = [key_of(record, identifier) for identifier in ids]
    assert [keys.count(key) for key in dict.fromkeys(keys)] == [4, 4, 4, 4, 1]
    assert list(record.book.pending()) == ids
    assert list(record.book.pending().values()) == list(targets(0, 17))


def test_cancelling_one_renews_the_keys_of_its_group_only(record: Record) -> None:
    ids = defer(record, *targets(0, 12))
    before = {identifier: key_of(record, identifier) for identifier in ids}
    record.book.cancel(ids[5])
    closed(record)
    left = [identifier for identifier in ids if identifier != ids[5]]
    changed = {identifier for identifier in left if key_of(record, identifier) != before[identifier]}
    assert changed == {ids[4], ids[6], ids[7]}
    assert before[ids[5]] not in KeyFile(record.vault.keys.path).keys
    assert {before[ids[0]], before[ids[8]]} <= KeyFile(record.vault.keys.path).keys.keys()
    assert list(record.book.pending()) == left
    record.vault.require_readable()


def test_deferring_writes_no_keys_but_for_a_new_group(record: Record) -> None:
    defer(record, *targets(0, 1))
    before = record.vault.keys.path.stat().st_ino
    defer(record, *targets(1, 3))
    closed(record)
    assert record.vault.keys.path.stat().st_ino == before


def test_pending_requests_are_found_by_target_and_client(record: Record) -> None:
    one, other, whole = Request("a", 1), Request("a", 2), Request("b")
    ids = defer(record, one, other, whole)
    book = record.book
    assert book.pending_ids([other, Request("c")]) == {other: ids[1]}
    assert book.pending_under({one}, ()) == {ids[0]: one}
    assert book.pending_under((), ["a"]) == {ids[0]: one, ids[1]: other}
    assert book.pending_under({whole}, ["a"]) == dict(zip(ids, (one, other, whole), strict=True))
    assert book.pending_of([ids[2], "r-0", ids[0]]) == {ids[2]: whole, ids[0]: one}
    assert book.was_erased_by(ids[0], one)
    assert not book.was_erased_by(ids[0], other)
    assert book.pending_under({Request("a")}, ()) == {}, "a request for a client is not one for its samples"


def test_superseding_drops_key_and_reencrypts_rest(record: Record) -> None:
    vault = record.vault
    with record.database.transaction():
        vault.put(MODEL, "b-1", b"first", 3)
        vault.put(MODEL, "b-2", b"second", 5)
        vault.put(STATE, "b-2", b"state")
        vault.put("proof", "r-1", b"path")
    [(old,)] = record.database.rows("SELECT DISTINCT key FROM standing")
    assert vault.of_round(MODEL, 5) == [("b-2", b"second")]
    with record.database.transaction():
        vault.supersede(4)
    assert (vault.get(MODEL, "b-1"), vault.get(MODEL, "b-2")) == (b"first", None)
    assert vault.get(STATE, "b-2") is None
    assert vault.get("proof", "r-1") is None
    vault.drop_unused()
    assert old not in KeyFile(vault.keys.path).keys
    assert Record(record.database).vault.get(MODEL, "b-1") == b"first"


def test_keys_are_those_that_the_record_refers_to_and_some_unused(record: Record) -> None:
    ids = defer(record, *targets(0, 9))
    for identifier in ids[:5]:
        record.book.cancel(identifier)
    closed(record)
    assert record.vault.used() <= record.vault.keys.keys.keys()
    assert len(record.vault.keys.keys) <= len(record.vault.used()) + 3
