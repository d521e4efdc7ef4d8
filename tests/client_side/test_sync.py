"""Synchronising with a dataset: what vanished, changed, is new or comes back, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from fedforget.algorithm.ids import Id
from fedforget.client_side import ClientState
from fedforget.client_side.sync import Differences
from fedforget.errors import FedForgetError, InvalidInput, NotConfirmed
from fedforget.federation import parcels
from fedforget.federation.standing import addition_id, standing_in
from tests.client_side.deployment import Deployment, ask, samples_of
from tests.helpers import World, scratch

WORLD: World = {"c": tuple(range(150)), "d": (1, 2)}


@pytest.fixture
def life() -> Iterator[Deployment]:
    with scratch() as place:
        yield Deployment(place, WORLD)


@pytest.fixture
def state(life: Deployment) -> ClientState:
    return life.clients["c"]


def counts(found: Differences) -> tuple[tuple[Id, ...], ...]:
    return found.vanished, found.changed, found.new, found.returning


def samples(but: Mapping[Id, Any] | None = None, without: tuple[Id, ...] = ()) -> dict[Id, Any]:
    data = samples_of(list(range(150))) | dict(but or {})
    return {each: data[each] for each in data if each not in without}


def test_equal_data_ask_for_nothing(state: ClientState) -> None:
    before = (state.path / "record.db").read_bytes()
    done = state.sync(samples())
    assert (counts(done.found), done.receipts) == (((), (), (), ()), ())
    assert (state.path / "record.db").read_bytes() == before


def test_differences_are_found_and_dry_run_changes_nothing(state: ClientState) -> None:
    data = samples({"new": samples_of(["new"])["new"], **samples_of([7], version=1)}, without=(3,))
    before = {path.name: path.read_bytes() for path in state.path.iterdir()}
    assert counts(state.sync(data, dry_run=True).found) == ((3,), (7,), ("new",), ())
    assert {path.name: path.read_bytes() for path in state.path.iterdir()} == before
    with pytest.raises(NotConfirmed, match="2 of 150 samples would be erased, more than 1 %"):
        state.sync(data)
    with pytest.raises(NotConfirmed, match="2 samples would be erased, but --confirm says 3"):
        state.sync(data, confirm=3)
    done = state.sync(data, confirm=2, basis="exogenous")
    assert [(each.level, each.sample, each.basis) for each in done.receipts] == [
        ("sample", 3, "exogenous"),
        ("sample", 7, "exogenous"),
    ]
    assert state.status().arriving == 2


def test_one_per_cent_may_go_unconfirmed(state: ClientState) -> None:
    assert len(state.sync(samples(without=(1,))).receipts) == 1
    with pytest.raises(NotConfirmed):
        state.sync(samples(without=(1, 2, 3)))


def test_second_sync_of_the_same_data_asks_for_nothing_more(state: ClientState) -> None:
    data = samples({**samples_of([7], version=1), "new": samples_of(["new"])["new"]})
    state.sync(data)
    assert counts(state.sync(data).found) == ((), (), (), ())
    assert (len(state.receipts()), state.status().arriving) == (1, 2)


def test_changed_content_joins_after_the_old_content_is_erased(state: ClientState) -> None:
    state.sync(samples({**samples_of([7], version=1)}))
    assert standing_in(ask(state, parcels.PRESENCE), "c").additions == ()
    state.sync(samples({**samples_of([7], version=1), "new": samples_of(["new"])["new"]}))
    [ready] = standing_in(ask(state, parcels.PRESENCE), "c").additions
    ask(state, parcels.JOIN, samples=[[addition_id(ready.handle), ""]])
    assert state.status().arriving == 1
    assert state.opening().contents.keys() == {*range(150), "new"}


def test_second_change_of_content_replaces_the_pending_addition(state: ClientState, life: Deployment) -> None:
    state.sync(samples(samples_of([7], version=1)))
    state.sync(samples(samples_of([7], version=2)))
    life.meet()
    assert counts(state.sync(samples(samples_of([7], version=2)), dry_run=True).found) == ((), (), (), ())
    assert len(state.receipts()) == 1


def test_erased_sample_in_the_data_is_added_only_with_returning(state: ClientState, life: Deployment) -> None:
    state.forget([7])
    for _ in range(2):  # while it waits, and after it was carried out
        assert counts(state.sync(samples()).found)[:3] == ((), (), ())
        life.meet()
    assert state.sync(samples(), dry_run=True).found.returning == (7,)
    assert 7 not in [*life.clients["c"].opening().contents]
    state.sync(samples(), returning=True)
    life.meet()
    assert 7 in [*life.clients["c"].opening().contents]


class Gone(Mapping[Id, Any]):
    """A source that cannot even be listed."""

    def __getitem__(self, key: Id) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[Id]:
        raise RuntimeError("the database is gone")

    def __len__(self) -> int:
        return 150


class Broken(Mapping[Id, Any]):
    """A source of which a part cannot be read, as on a disk that fails."""

    def __getitem__(self, key: Id) -> Any:
        if key == 77:
            raise OSError("Input/output error")
        return samples()[key]

    def __iter__(self) -> Iterator[Id]:
        return iter(samples())

    def __len__(self) -> int:
        return 150


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Broken(), "sample 77 of client c cannot be read: OSError: Input/output error"),
        (Gone(), "the data of client c cannot be read: RuntimeError: the database is gone"),
        (None, "the samples of client c are a NoneType"),
        ({1: "no pair"}, "sample 1 of client c is not a pair"),
    ],
)
def test_source_that_cannot_be_read_erases_nothing(state: ClientState, source: Any, message: str) -> None:
    before = {path.name: path.read_bytes() for path in state.path.iterdir()}
    with pytest.raises(InvalidInput, match=message):
        state.sync(source, confirm=150)
    assert {path.name: path.read_bytes() for path in state.path.iterdir()} == before


def test_empty_source_erases_nothing_unconfirmed(state: ClientState) -> None:
    with pytest.raises(NotConfirmed, match="150 of 150 samples would be erased"):
        state.sync({})
    assert state.receipts() == []


def test_confirmed_empty_source_empties_the_client(state: ClientState, life: Deployment) -> None:
    life.learn(3)
    state.sync({}, confirm=150)
    life.meet()
    assert state.status().left
    assert "c" not in life.server.memory.roster


def test_key_of_other_requests_is_refused_before_anything_changes(state: ClientState) -> None:
    state.forget([1], idempotency_key="k")
    with pytest.raises(FedForgetError, match="was used for other requests"):
        state.sync(samples({"new": samples_of(["new"])["new"]}, without=(2,)), idempotency_key="k")
    assert state.status().arriving == 0


def test_retry_with_the_same_key_returns_the_same_requests(state: ClientState, life: Deployment) -> None:
    data = samples(without=(1, 2))
    first = state.sync(data, confirm=2, idempotency_key="k")
    again = state.sync(data, confirm=2, idempotency_key="k")
    assert [each.id for each in again.receipts] == [each.id for each in first.receipts]
    assert len(state.receipts()) == 2
    life.meet()
    done = state.sync(data, confirm=2, idempotency_key="k")
    assert [(each.id, each.state) for each in done.receipts] == [(each.id, "purged") for each in first.receipts]
    with pytest.raises(InvalidInput, match="was used for other requests"):
        state.sync(samples(without=(1, 2, 3)), confirm=1, idempotency_key="k")
    with pytest.raises(NotConfirmed, match="0 samples would be erased, but --confirm says 2"):
        state.sync(data, confirm=2, idempotency_key="another")


def test_client_that_is_about_to_leave_adds_nothing(state: ClientState) -> None:
    state.leave()
    with pytest.raises(InvalidInput, match="about to leave"):
        state.sync(samples())
