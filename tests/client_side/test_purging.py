"""What a client erases is in no byte of its state directory once the request is purged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedforget.algorithm.ids import Id, id_block
from fedforget.client_side.directory import reading
from fedforget.federation import parcels
from fedforget.requests.lifecycle import Stage
from tests.client_side.deployment import Deployment, samples_of
from tests.helpers import World, scratch

SECRET: tuple[Id, ...] = ("patient-Ada-Lovelace", 8_070_605_040_302_010, "patient-Émilie")
STAYS: tuple[Id, ...] = ("patient-stays", 5, 6)
WORLD: World = {"ward-7": (*SECRET, *STAYS), 1: (1, 2, 3)}


@pytest.fixture
def life() -> Iterator[Deployment]:
    with scratch() as place:
        yield Deployment(place, WORLD)


def traces(life: Deployment, ids: tuple[Id, ...], client: Id = "ward-7") -> set[str]:
    """Where ids, their blocks or the digests of their contents stand in the bytes of a state directory."""
    found = set()
    for path in sorted(life.clients[client].path.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        for sample in ids:
            for wanted in marks(sample):
                if wanted in data:
                    found.add(path.name)
    return found


def marks(sample: Id) -> Iterator[bytes]:
    block = id_block(sample)
    yield from (block, block[1:] if block[0] else block[8:], block.hex().encode())
    if isinstance(sample, str):
        yield sample.encode()
        yield ascii(sample)[1:-1].encode()  # as JSON writes it
    elif sample > 10**6:
        yield str(sample).encode()
        yield sample.to_bytes(7, "big")  # as SQLite stores it
    yield from (CONTENTS[sample], CONTENTS[sample].hex().encode())


def digests() -> dict[Id, bytes]:
    from fedforget.client_side.sync import contents_of  # noqa: PLC0415

    return contents_of("ward-7", samples_of([*SECRET, *STAYS]))


CONTENTS = digests()


def test_search_finds_present_markers(life: Deployment) -> None:
    life.learn(6)
    assert traces(life, SECRET) >= {"client.book", "uses.db"}


def test_pending_request_is_encrypted(life: Deployment) -> None:
    life.learn(6)
    life.clients["ward-7"].forget(SECRET)
    assert traces(life, SECRET) == {"client.book", "uses.db"}  # and not record.db


@pytest.mark.parametrize("way", ["forget", "sync", "one by one", "leave"])
def test_purged_data_leave_no_trace(life: Deployment, way: str) -> None:
    state, erased = life.clients["ward-7"], SECRET
    life.learn(6)
    if way == "forget":
        state.forget(SECRET)
    elif way == "sync":
        state.sync(samples_of(STAYS), confirm=3)
    elif way == "leave":
        state.leave()
        erased = (*SECRET, "patient-stays")
    for sample in SECRET if way == "one by one" else ():
        state.forget([sample])
        life.meet()
    life.meet()
    assert {receipt.state for receipt in state.receipts()} == {Stage.PURGED}
    assert traces(life, erased) == set()
    life.learn(6)
    assert traces(life, erased) == set()
    if way != "leave":
        assert traces(life, STAYS[:1]) == {"client.book", "uses.db"}


def test_handle_of_a_request_at_work_leads_to_samples_only_until_it_is_purged(life: Deployment) -> None:
    life.learn(3)
    state = life.clients["ward-7"]
    state.forget(SECRET)
    life.say("ward-7", parcels.PRESENCE)
    [withdrawal] = life.nodes.standing["ward-7"].withdrawals
    life.say("ward-7", parcels.REMOVE, samples=[f"withdrawal:{withdrawal.handle}"])
    assert traces(life, SECRET) == set()  # the book and the notes are rewritten already; the intent is encrypted
    with reading(state.path) as found:
        keys = {key for (key,) in found.record.database.rows("SELECT key FROM intents")}
        assert keys <= found.record.vault.keys.keys.keys()
    life.say("ward-7", parcels.DONE, handles=[withdrawal.handle], facts={})
    with reading(state.path) as found:
        assert not keys & found.record.vault.keys.keys.keys()


def test_dropped_addition_leaves_nothing(life: Deployment) -> None:
    state, new = life.clients["ward-7"], "patient-Ada-Lovelace"
    life.clients["ward-7"].forget([new])
    life.meet()
    everything: dict[Id, Any] = samples_of([*SECRET, *STAYS])
    state.sync(everything, returning=True)
    assert state.status().arriving == 1
    assert traces(life, (new,)) == set()
    state.sync({each: everything[each] for each in everything if each != new})
    assert state.status().arriving == 0
    life.meet()
    assert traces(life, (new,)) == set()
    with reading(state.path) as found:
        assert found.record.arriving() == {}


def test_record_of_erased_client_still_finds_its_receipt(life: Deployment) -> None:
    state = life.clients["ward-7"]
    state.leave()
    life.meet()
    [first] = state.receipts()
    [again] = state.leave()
    assert (again.id, again.state) == (first.id, Stage.PURGED)
    assert Path(state.path / "client.book").stat().st_size < 100
