"""The facts that survive any crash, one by one: each is noticed when it does not hold, and no other run is refused."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedforget import Plan, Request
from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.seeds import SeedSource
from fedforget.disk.database import Database
from fedforget.errors import CommitsLost
from fedforget.store import crash_check, server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.client_store import ClientStore
from fedforget.store.crash_check import _FirstUseCheck, _witness_is_missing, require_in_step
from fedforget.store.model_files import ModelFiles
from fedforget.store.server_store import ServerStore
from fedforget.store.uses import Uses
from tests.requests.world import DATA, opened, samples

PLAN = Plan(2, 2, 2, 5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with samples that were never used."""
    data = {**DATA, 5: samples(60, 5)}
    run = opened(tmp_path_factory.mktemp("facts") / "run", PLAN, data=data)
    run.train()
    return run.path


@pytest.fixture
def path(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@contextlib.contextmanager
def stores(path: Path) -> Iterator[tuple[ServerStore, ClientStore]]:
    server = Database(path / "server.db", server_store.SCHEMA)
    notes = Database(path / "uses.db", uses.SCHEMA)
    with contextlib.closing(server), contextlib.closing(notes):
        memory = ServerStore(server, ModelFiles(path / "models"), PLAN)
        with contextlib.closing(Books(path, memory.tree_key)) as books:
            yield memory, ClientStore(books, Uses(notes))


def alter(path: Path, sql: str, *values: Any) -> None:
    """Change the clients' notes."""
    with contextlib.closing(sqlite3.connect(path / "uses.db")) as connection, connection:
        assert connection.execute(sql, values).rowcount


def first_steps(path: Path) -> list[tuple[Any, Any, int]]:
    """Every first use: client, sample and step, in the order of steps."""
    with stores(path) as (_, clients):
        found = [(c, s, step) for c in clients.clients() for s, step in clients.first_steps(c).items()]
    return sorted(found, key=lambda each: each[2])


def test_whole_run_is_in_step(path: Path) -> None:
    with stores(path) as (server, clients):
        assert clients.has_unused()
        assert not _witness_is_missing(server, clients)
        assert not _FirstUseCheck(server, clients).end_is_missing()
        for round_ in range(PLAN.rounds + 1):
            assert not _FirstUseCheck(server, clients).differ_after(round_)
        require_in_step(server, clients, None)
        require_in_step(server, clients, 2)


# ------------------------------------------------------------------------------------------------------------ witnesses


def test_missing_witness_of_the_last_round_is_noticed(path: Path) -> None:
    last = "SELECT max(client) FROM witnesses WHERE round = ?1"
    alter(path, f"DELETE FROM witnesses WHERE round = ?1 AND client = ({last})", PLAN.rounds)
    with stores(path) as (server, clients):
        assert _witness_is_missing(server, clients)
        with pytest.raises(CommitsLost, match="lacks a witness"):
            require_in_step(server, clients, None)


def test_missing_witness_of_an_earlier_round_is_not_this_checks_business(path: Path) -> None:
    alter(path, "DELETE FROM witnesses WHERE round < ?", PLAN.rounds)
    with stores(path) as (server, clients):
        assert not _witness_is_missing(server, clients)


@pytest.mark.parametrize(("spare", "missing"), [(0, True), (-1, False)])
def test_witnesses_are_compared_only_within_the_number_of_draws_that_one_check_may_take(
    monkeypatch: pytest.MonkeyPatch, spare: int, missing: bool
) -> None:
    """A hostile plan can make one round very large."""
    roster = tuple(range(24))
    world: dict[str, Any] = {"plan": Plan(3, 2, 2, 5), "rounds_done": 4, "seed": SeedSource("facts").server()}
    server: Any = SimpleNamespace(**world, roster=IdSet(roster))
    clients: Any = SimpleNamespace(witnesses=lambda _client: {})
    monkeypatch.setattr(crash_check, "_MOST_DRAWN", 3 * (24 + 1000) + spare)
    assert _witness_is_missing(server, clients) is missing


@pytest.mark.parametrize(("slots", "missing"), [(97_656, True), (97_657, False)])
def test_one_check_may_draw_a_hundred_million_priorities(
    monkeypatch: pytest.MonkeyPatch, slots: int, missing: bool
) -> None:
    """Seconds; a slot costs as much as a thousand priorities, beside the 24 of its clients."""
    monkeypatch.setattr(crash_check, "draw_clients_with_replacement", lambda *_: [0])
    server: Any = SimpleNamespace(
        plan=Plan(slots, 2, 2, 5), rounds_done=4, seed=SeedSource("facts").server(), roster=IdSet(range(24))
    )
    clients: Any = SimpleNamespace(witnesses=lambda _client: {})
    assert _witness_is_missing(server, clients) is missing


@pytest.mark.parametrize("without", ["rounds", "clients"])
def test_run_without_rounds_or_clients_has_no_witness_to_miss(without: str) -> None:
    server: Any = SimpleNamespace(
        plan=PLAN,
        rounds_done=0 if without == "rounds" else 4,
        roster=IdSet(() if without == "clients" else (1,)),
        seed=SeedSource("facts").server(),
    )
    clients: Any = SimpleNamespace(witnesses=lambda _client: {})
    assert not _witness_is_missing(server, clients)


# ----------------------------------------------------------------------------------------------------------- first uses


def test_each_missing_use_of_the_last_round_that_noted_any_is_noticed(path: Path, tmp_path: Path) -> None:
    uses = first_steps(path)
    last = PLAN.round_of(uses[-1][2])
    latest = [use for use in uses if PLAN.round_of(use[2]) == last]
    assert len(latest) > 1
    for number, (client, sample, _) in enumerate(latest):
        copy = Path(shutil.copytree(path, tmp_path / f"copy {number}"))
        alter(copy, "DELETE FROM first_uses WHERE client = ? AND sample = ?", client, sample)
        with stores(copy) as (server, clients):
            assert _FirstUseCheck(server, clients).end_is_missing()
            with pytest.raises(CommitsLost, match="first uses are not those"):
                require_in_step(server, clients, None)


def test_all_uses_since_any_step_missing_are_noticed(path: Path, tmp_path: Path) -> None:
    for step in sorted({step for _, _, step in first_steps(path)}):
        copy = Path(shutil.copytree(path, tmp_path / f"copy {step}"))
        alter(copy, "DELETE FROM first_uses WHERE step >= ?", step)
        with stores(copy) as (server, clients):
            assert _FirstUseCheck(server, clients).end_is_missing()


def test_use_noted_too_late_is_noticed(path: Path) -> None:
    uses = first_steps(path)
    client, sample, step = uses[-1]
    alter(path, "UPDATE first_uses SET step = ? WHERE client = ? AND sample = ?", step + 1, client, sample)
    with stores(path) as (server, clients):
        assert _FirstUseCheck(server, clients).differ_after(PLAN.round_of(step) - 1)


@pytest.mark.parametrize("rewound_to", range(PLAN.rounds))
def test_every_wrong_use_after_the_rewind_is_noticed_and_none_before_it(
    path: Path, tmp_path: Path, rewound_to: int
) -> None:
    for number, (client, sample, step) in enumerate(first_steps(path)[::3]):
        copy = Path(shutil.copytree(path, tmp_path / f"copy {number}"))
        alter(copy, "DELETE FROM first_uses WHERE client = ? AND sample = ?", client, sample)
        with stores(copy) as (server, clients):
            drawn_again = any(
                PLAN.round_of(later) > rewound_to
                for round_ in range(rewound_to + 1, PLAN.rounds + 1)
                for who, what, later in _FirstUseCheck(server, clients)._of_round(round_)
                if (who, what) == (client, sample)
            )
            assert _FirstUseCheck(server, clients).differ_after(rewound_to) is drawn_again
            assert drawn_again or PLAN.round_of(step) <= rewound_to


@pytest.mark.parametrize(("rounds", "noticed"), [(1, False), (2, True)])
def test_number_of_rounds_drawn_again_is_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, noticed: bool
) -> None:
    """A use of the third round is missing; ``verify`` checks what is not affordable here."""
    client, sample, _ = next(use for use in first_steps(path) if PLAN.round_of(use[2]) == 3)
    alter(path, "DELETE FROM first_uses WHERE client = ? AND sample = ?", client, sample)
    with stores(path) as (server, clients):
        uses = _FirstUseCheck(server, clients)
        one_round = 2 * (6 + 1000) + 2 * (2 * (60 + 1000)) + 1
        monkeypatch.setattr(crash_check, "_MOST_DRAWN", rounds * one_round)
        assert uses._affordable() == rounds
        monkeypatch.setattr(crash_check, "_MOST_DRAWN", rounds * one_round - 1)
        assert uses._affordable() == rounds - 1
        monkeypatch.setattr(crash_check, "_MOST_DRAWN", rounds * one_round)
        assert uses.differ_after(1) is noticed


@pytest.mark.parametrize("affordable", [0, 1, 2, 3, 9])
def test_end_is_looked_for_only_in_the_rounds_that_are_affordable(
    path: Path, monkeypatch: pytest.MonkeyPatch, affordable: int
) -> None:
    alter(path, "DELETE FROM first_uses")
    asked: list[int] = []
    real = _FirstUseCheck._of_round

    def of_round(self: _FirstUseCheck, round_: int) -> Any:
        asked.append(round_)
        return real(self, round_)

    monkeypatch.setattr(_FirstUseCheck, "_affordable", lambda _: affordable)
    monkeypatch.setattr(_FirstUseCheck, "_of_round", of_round)
    with stores(path) as (server, clients):
        assert _FirstUseCheck(server, clients).end_is_missing() is bool(affordable)
    assert asked == ([min(affordable, PLAN.rounds)] if affordable else []), "the latest first; one is enough"


def test_end_is_looked_for_back_to_the_last_round_that_noted_a_use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for last in range(PLAN.rounds, 0, -1):
        alter(path, "UPDATE first_uses SET step = ?", PLAN.step_of(last, 1))
        asked: list[int] = []
        monkeypatch.setattr(_FirstUseCheck, "_of_round", lambda _, round_, asked=asked: asked.append(round_) or ())
        with stores(path) as (server, clients):
            assert not _FirstUseCheck(server, clients).end_is_missing()
        assert asked == list(range(PLAN.rounds, last - 1, -1))


def test_cost_of_a_round_counts_every_client_slot_and_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(40, 2, 3, 5)
    server: Any = SimpleNamespace(plan=plan, seed=SeedSource("facts").server(), roster=IdSet(range(24)))
    clients: Any = SimpleNamespace(sizes=lambda: {0: 8, 1: 27})
    cost = 40 * (24 + 1000) + 24 * (3 * (27 + 1000)) + 1  # 40 slots, at most 24 clients that draw three batches each
    for most, affordable in ((cost - 1, 0), (cost, 1), (7 * cost - 1, 6), (7 * cost, 7)):
        monkeypatch.setattr(crash_check, "_MOST_DRAWN", most)
        assert _FirstUseCheck(server, clients)._affordable() == affordable


@pytest.mark.parametrize(
    ("sql", "refused"),
    [
        ("INSERT INTO first_uses VALUES (5, {unused}, {next})", False),
        ("INSERT INTO first_uses VALUES (5, {unused}, {next} + 1)", True),
        ("INSERT INTO witnesses VALUES (0, {round}, zeroblob(40))", False),
        ("INSERT INTO witnesses VALUES (0, {round} + 1, zeroblob(40))", True),
    ],
)
def test_clients_may_be_one_round_ahead_of_the_server_and_no_more(path: Path, sql: str, refused: bool) -> None:
    with stores(path) as (_, clients):
        unused = next(sample for sample in clients.samples(5) if sample not in clients.first_steps(5))
    numbers = {"next": PLAN.steps + PLAN.local_steps, "round": PLAN.rounds + 1, "unused": unused}
    alter(path, sql.format(**numbers))
    with stores(path) as (server, clients):
        if refused:
            with pytest.raises(CommitsLost, match="it is behind the clients"):
                require_in_step(server, clients, None)
        else:
            require_in_step(server, clients, None)


# ----------------------------------------------------------------------------------------------------- what is applied


def applied(path: Path, **decision: Any) -> None:
    intent: Any = SimpleNamespace(
        decision=SimpleNamespace(**{"requests": (), "leaving": (), "joining": (), **decision})
    )
    with stores(path) as (server, clients):
        crash_check.require_applied(intent, server, clients)


def newcomer(client: Any, *ids: Any) -> Any:
    return SimpleNamespace(client=client, samples=[(sample, b"") for sample in ids])


@pytest.mark.parametrize(
    "decision",
    [
        {"requests": (Request(2, 99), Request("gone"), Request("gone", 0)), "leaving": ("gone",)},
        {"joining": [newcomer(2, 0, 1), newcomer(4, 3)]},
        {},
    ],
)
def test_decision_that_was_applied_is_accepted(path: Path, decision: dict[str, Any]) -> None:
    applied(path, **decision)


@pytest.mark.parametrize(
    ("decision", "book_of", "message"),
    [
        ({"requests": (Request("gone"), Request(2, 1))}, 2, "it holds data that were removed"),
        ({"requests": (Request(2),)}, 2, "it holds data that were removed"),
        ({"leaving": ("gone", 2)}, None, "it holds a client that was removed"),
        ({"joining": [newcomer(2, 0, 99)]}, 2, "it lacks data that were added"),
        ({"joining": [newcomer("new", 0)]}, "new", "it lacks data that were added"),
        ({"joining": [newcomer("new")]}, None, "it lacks a client that was added"),
    ],
)
def test_decision_that_was_not_applied_is_noticed_with_the_name_of_the_file(
    path: Path, decision: dict[str, Any], book_of: Any, message: str
) -> None:
    with stores(path) as (server, clients):
        file = server.database.path if book_of is None else clients.books.path_of(book_of)
    with pytest.raises(CommitsLost, match=message) as lost:
        applied(path, **decision)
    assert lost.value.message.startswith(f"{file} has lost commits")


@pytest.mark.parametrize(
    ("clients", "named", "round_", "stands"),
    [
        (1, "ab", 1000, True),
        (1, "cd", 1000, False),
        (1, "ab", 999, False),
        (1, "ab", 1001, False),
        (1, None, 3, True),  # a later batch has removed the digest
        (0, None, 1000, True),
        (0, None, 999, False),
        (0, "ab", 1000, False),
    ],
)
def test_receipt_is_current_if_its_model_is(clients: int, named: str | None, round_: int, stands: bool) -> None:
    server: Any = SimpleNamespace(roster=IdSet(range(clients)), rounds_done=int("1000"), model_digest=lambda: "ab")
    book = SimpleNamespace(receipt=lambda _id: SimpleNamespace(model_digest=named), round_of=lambda _id: round_)
    record: Any = SimpleNamespace(book=book)
    assert crash_check._stands(server, record, "r-1") is stands
