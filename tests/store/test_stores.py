"""The tables of both parties and of the record, one operation at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedforget import Request
from fedforget.algorithm.contents import one_by_one
from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Newcomer, RemoveOrder, State
from fedforget.algorithm.seeds import SeedSource
from fedforget.disk.database import Database
from fedforget.errors import InvalidInput, RunDamaged
from fedforget.requests.policy import Policy
from fedforget.store import hints, metrics, record, server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.client_store import ClientStore
from fedforget.store.environments import TrainedRounds
from fedforget.store.metrics import Metrics
from fedforget.store.model_files import ModelFiles
from fedforget.store.record import Record
from fedforget.store.server_store import ServerStore
from fedforget.store.uses import Uses
from tests.requests.world import opened

SEEDS = SeedSource("stores")
ZERO, ONE, SEVEN, OTHER, EX = (bytes([number]) * 16 for number in range(5))
HERE, THERE = {"torch": "2", "processor": "a"}, {"torch": "2", "processor": "b"}


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[ClientStore]:
    books = Books(tmp_path, SEEDS.tree_key())
    books.create({1: SEEDS.client(1)}, one_by_one(lambda _: (IdSet([0, "a"]), ZERO + ONE)))
    notes = Database(tmp_path / "uses.db", uses.SCHEMA, create=True, writable=True)
    yield ClientStore(books, Uses(notes))
    books.close()
    notes.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerStore]:
    (tmp_path / "models").mkdir()
    database = Database(tmp_path / "server.db", server_store.SCHEMA, create=True, writable=True)
    models = ModelFiles(tmp_path / "models")
    ServerStore.create(
        database, models, seed=SEEDS.server(), seed_origin="given", tree_key=SEEDS.tree_key(), plan_digest="0" * 64,
        commitments={client: SEEDS.client(client).commitment for client in (1, 2)}, initial=state(0),
    )  # fmt: skip
    yield ServerStore(database, models, Plan(1, 1, 3, 9, keep=2))
    database.close()


@pytest.fixture
def trail(tmp_path: Path) -> Iterator[Record]:
    made = Record(Database(tmp_path / "record.db", record.SCHEMA, create=True))
    made.create("system", {"loss": "loss"})
    yield made
    made.database.close()


def state(content: int) -> State:
    return State({"w": np.full(2, content, np.float32)})


# -------------------------------------------------------------------------------------------------------------- clients


def test_samples_and_clients_join_once(clients: ClientStore) -> None:
    clients.note([(1, 0, 5)], [(1, 2, b"w" * 40)])
    new = [
        Newcomer(1, None, ((0, OTHER), (7, SEVEN))),
        Newcomer("b", SEEDS.client("b"), (("x", EX),)),
    ]
    for _ in range(2):
        clients.join(new)
        assert clients.sizes() == {1: 3, "b": 1}
        assert clients.contents(1) == {0: ZERO, "a": ONE, 7: SEVEN}
        assert clients.books.seed("b") == SEEDS.client("b")
        assert clients.first_steps(1) == {0: 5}
    clients.join([Newcomer(1, SEEDS.client("another"), ())])
    assert clients.books.seed(1) == SEEDS.client(1)


def test_unknown_client_has_no_seed(clients: ClientStore) -> None:
    with pytest.raises(RunDamaged, match="lacks client 9") as lacking:
        clients.seed(9)
    assert str(clients.books.path_of(9)) in lacking.value.message


def test_last_uses_and_witnesses_are_found(clients: ClientStore) -> None:
    assert (clients.last_noted_step(), clients.last_witnessed_round(), clients.has_unused()) == (0, 0, True)
    clients.note([(1, 0, 5), (1, "a", 9)], [(1, 2, b"w" * 40), (1, 3, b"v" * 40)])
    assert (clients.last_noted_step(), clients.last_witnessed_round(), clients.has_unused()) == (9, 3, False)
    assert [clients.last_noted_step(until) for until in (4, 5, 8, 9)] == [0, 5, 5, 9]
    clients.rewind(2, 8)
    assert (clients.last_noted_step(), clients.last_witnessed_round(), clients.has_unused()) == (5, 2, True)
    assert clients.has(1, "a")
    assert not clients.has(1, "b")
    assert not clients.has(2, 0)


def test_uses_and_witnesses_are_noted_one_without_the_other(clients: ClientStore) -> None:
    """Most later rounds have no witness, and most later witnesses come without a first use."""
    clients.note([(1, 0, 5)])
    assert (clients.first_steps(1), clients.witnesses(1)) == ({0: 5}, {})
    clients.note([], [(1, 3, b"v" * 40)])
    assert (clients.first_steps(1), clients.witnesses(1)) == ({0: 5}, {3: b"v" * 40})


def test_use_of_a_sample_that_the_client_does_not_have_is_damage(clients: ClientStore) -> None:
    clients.note([(1, 0, 5), (1, "gone", 6)])
    with pytest.raises(RunDamaged, match=r"uses\.db is damaged: it notes a use of a sample that client 1 lacks"):
        clients.first_steps(1)
    clients.remove([RemoveOrder(1, ("gone",))])
    assert clients.first_steps(1) == {0: 5}


def test_new_seeds_are_stored_for_the_named_clients(clients: ClientStore) -> None:
    other = SeedSource("other").client(1)
    clients.reseed({1: other, "unknown": SEEDS.client("unknown")})
    assert clients.commitments() == {1: other.commitment}


def test_removed_data_are_gone_from_book_and_notes(clients: ClientStore) -> None:
    clients.join([Newcomer("b", SEEDS.client("b"), (("x", EX),))])
    clients.note([(1, 0, 5), (1, "a", 6), ("b", "x", 7)], [(1, 2, b"w" * 40), ("b", 2, b"v" * 40)])
    for _ in range(2):
        clients.remove([RemoveOrder(1, (0,)), RemoveOrder("b", None)])
        assert (clients.sizes(), clients.first_steps(1), clients.first_steps("b")) == ({1: 1}, {"a": 6}, {})
        assert (clients.witnesses(1), clients.witnesses("b")) == ({2: b"w" * 40}, {})
        assert clients.commitments() == {1: SEEDS.client(1).commitment}


# --------------------------------------------------------------------------------------------------------------- server


def test_clients_join_the_roster_once(server: ServerStore) -> None:
    server.commit(1, state(1), [1])
    for _ in range(2):
        server.join({1: b"\0" * 32, "b": SEEDS.client("b").commitment})
        assert set(server.roster) == {1, 2, "b"}
        assert server.commitments() == {client: SEEDS.client(client).commitment for client in (1, 2, "b")}
        assert server.first_rounds() == {1: 1}


def test_interval_decides_which_models_stay(server: ServerStore) -> None:
    for round_ in range(1, 6):
        server.commit(round_, state(round_), [1 + round_ % 2])
        assert list(server.kept()) == sorted({0, round_, *range(0, round_, 2)})
        assert {path.stem for path in (server.database.path.parent / "models").iterdir()} == set(server.kept().values())
    assert [server.kept_at_or_before(round_) for round_ in range(7)] == [0, 0, 2, 2, 4, 5, 5]
    assert server.first_rounds() == {1: 2, 2: 1}
    assert server.model_digest() == server.model_digest(5) == server.kept()[5]
    assert server.steps_of(5) == 15
    with pytest.raises(RunDamaged, match="no model of round 3"):
        server.model_digest(3)


def test_model_that_a_kept_round_shares_is_not_deleted(server: ServerStore) -> None:
    server.commit(1, state(0), [1])  # equal to the initial state, which stays
    server.commit(2, state(2), [1])
    assert list(server.kept()) == [0, 2]
    assert np.array_equal(server.load(0).model["w"], state(0).model["w"])


def test_rewind_never_goes_forwards(server: ServerStore) -> None:
    for round_ in range(1, 5):
        server.commit(round_, state(round_), [1 + round_ % 2])
    server.rewind(7, [])
    assert (server.rounds_done, server.stored_rounds_done()) == (4, 4)
    server.rewind(2, [2], "b-1")
    assert (server.rounds_done, set(server.roster), server.first_rounds()) == (2, {1}, {1: 2})
    assert server.work() == {"b-1": "rewound"}


def test_progress_of_a_batch_is_noted_until_the_work_ends(server: ServerStore) -> None:
    assert server.work() == {}
    server.begin("b-1")
    server.begin("b-2")
    server.rewind(0, [], "b-1")
    server.begin("b-1")
    assert server.work() == {"b-1": "rewound", "b-2": "begun"}
    server.end_work()
    assert server.work() == {}


def test_unreadable_progress_is_damage(server: ServerStore) -> None:
    server.database.run("INSERT INTO server VALUES ('work', 'nonsense')")
    with pytest.raises(RunDamaged, match="its work cannot be read"):
        server.work()


def test_reseeding_replaces_the_seed_its_origin_and_the_commitments(server: ServerStore) -> None:
    new = SeedSource("new")
    server.reseed(new.server(), {1: new.client(1).commitment})
    assert (server.seed, server.seed_origin, server.plan_digest) == (new.server(), "system", "0" * 64)
    assert server.commitments() == {1: new.client(1).commitment, 2: SEEDS.client(2).commitment}
    assert server.tree_key == SEEDS.tree_key(), "else every label in the tree would change"
    server.commit_to = lambda commitment: commitment.hex()
    server.reseed(SEEDS.server(), {})
    assert server.plan_digest == SEEDS.server().commitment.hex()


# --------------------------------------------------------------------------------------------------------------- record


def test_environment_holds_until_another_begins(trail: Record) -> None:
    found = trail.environments
    found.begin(1, HERE)
    found.begin(4, HERE)
    assert found.of_rounds(5) == [TrainedRounds(1, 5, HERE)]
    assert json.dumps(found.of_rounds(5)[0].as_dict()) == json.dumps(
        {"first_round": 1, "last_round": 5} | dict(sorted(HERE.items()))
    )
    found.begin(6, THERE)
    assert found.of_rounds(7) == [TrainedRounds(1, 5, HERE), TrainedRounds(6, 7, THERE)]
    assert found.of_rounds(6) == [TrainedRounds(1, 5, HERE), TrainedRounds(6, 6, THERE)]
    assert found.of_rounds(5) == [TrainedRounds(1, 5, HERE)]
    assert found.of_rounds(0) == []


@pytest.mark.parametrize(("before", "after"), [(HERE, THERE), (THERE, HERE)])
def test_environment_noted_before_a_crash_is_replaced(
    trail: Record, before: dict[str, str], after: dict[str, str]
) -> None:
    """The process died before its first round, and another one begins the same round elsewhere."""
    trail.environments.begin(1, before)
    trail.environments.begin(1, after)
    assert trail.environments.of_rounds(3) == [TrainedRounds(1, 3, after)]
    trail.environments.begin(3, before)
    trail.environments.begin(3, after)
    assert trail.environments.of_rounds(3) == [TrainedRounds(1, 3, after)]


def test_environment_that_is_noted_already_is_not_written_again(trail: Record) -> None:
    trail.environments.begin(1, HERE)
    trail.environments.begin(5, THERE)
    before = trail.database.rows("PRAGMA data_version"), trail.database.rows("SELECT total_changes()")
    trail.environments.begin(5, THERE)
    trail.environments.begin(7, THERE)
    assert (trail.database.rows("PRAGMA data_version"), trail.database.rows("SELECT total_changes()")) == before


def test_environments_and_metrics_are_rewound_with_the_rounds(trail: Record, tmp_path: Path) -> None:
    measured = Metrics(Database(tmp_path / "metrics.db", metrics.SCHEMA, create=True))
    trail.environments.begin(1, HERE)
    trail.environments.begin(4, THERE)
    measured.measured(2, {None: (3, 4)})
    measured.measured(4, {1: (1, 2), "a": (5, 6)})
    measured.measured(5, {None: (0, 0)})
    assert measured.accuracies() == {2: 0.75, 4: 0.75}
    assert [measured.clients_of(round_) for round_ in (2, 3, 4)] == [{None}, set(), {1, "a"}]
    assert (measured.accuracy(4), measured.accuracy(3)) == (0.75, None)
    trail.environments.rewind(4, ())
    measured.rewind(4, ())
    assert trail.environments.of_rounds(4) == [TrainedRounds(1, 3, HERE), TrainedRounds(4, 4, THERE)]
    assert measured.accuracies() == {2: 0.75, 4: 0.75}
    trail.environments.rewind(3, ())
    measured.rewind(4, (1,))
    assert measured.accuracies() == {2: 0.75, 4: 5 / 6}
    measured.rewind(3, ())
    assert trail.environments.of_rounds(9) == [TrainedRounds(1, 9, HERE)]
    assert measured.accuracies() == {2: 0.75}


def test_learner_policy_and_receipt_key_are_replaced_on_record(trail: Record) -> None:
    assert (trail.policy, trail.receipt_key, trail.learner) == (Policy(), None, {"loss": "loss"})
    trail.set_policy(Policy.of_days("batch", 2))
    trail.note_receipt_key("k-1")
    trail.note_receipt_key("k-2")
    trail.note_learner({"loss": "other"}, ["loss"], compared=True)
    assert (trail.policy, trail.receipt_key, trail.learner) == (Policy.of_days("batch", 2), "k-2", {"loss": "other"})
    *_, renamed = trail.events()
    assert (renamed["kind"], renamed["differences"], renamed["compared"]) == ("learner renamed", ["loss"], True)


def test_forgotten_record_names_nothing_erased(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    run.train()
    run.forget(Request(3, 1), idempotency_key="k")
    waiting = run.forget(Request(2), defer=True)[0].id
    with pytest.raises(InvalidInput, match="a request is pending"):
        run.forget_record()
    run.cancel(waiting)
    found = Record(Database(run.path / "record.db", record.SCHEMA))
    key = found.pseudonyms.mac("any", b"")
    assert found.forgotten_at == 0
    assert found.book.find(Request(3, 1)) is not None
    found.database.close()
    run.forget_record()
    found = Record(Database(run.path / "record.db", record.SCHEMA))
    assert found.forgotten_at == next(event["sequence"] for event in found.events() if "forgotten" in event["kind"])
    assert found.pseudonyms.mac("any", b"") != key
    assert found.book.find(Request(3, 1)) is None
    assert found.database.rows("SELECT (SELECT count(*) FROM keys), count(model_mac) FROM batches") == [(0, 0)]
    found.database.close()
    assert run.verify().ok


# ---------------------------------------------------------------------------------------------------------------- hints


def test_hints_name_the_command_or_the_call_in_python(tmp_path: Path) -> None:
    own = opened(tmp_path / "own").path
    for hint, command, call in (
        (hints.train, "train {}", ".train()"),
        (hints.forget, "forget {}", ".forget(…)"),
        (hints.run_pending, "run-pending {}", ".run_pending()"),
        (hints.rebuild, "doctor {} --rebuild", ").rebuild()"),
    ):
        assert hint(tmp_path) == f"`fedforget {command.format(tmp_path)}`", "no plan: nothing says it is the caller's"
        assert call in hint(own)
        by_app = hint in (hints.train, hints.run_pending)  # what `flwr run` of a Flower app does, too
        assert hint(own).endswith("in Python, or with `flwr run` of its Flower app" if by_app else "in Python")
        assert repr(str(own)) in hint(own)
    assert hints.run_pending(tmp_path, everything=True) == f"`fedforget run-pending {tmp_path} --all`"
    assert "everything=True" in hints.run_pending(own, everything=True)
    assert hints.rebuild_now(tmp_path) == "give the same command with --rebuild"
    assert hints.rebuild_now(own) == hints.rebuild(own)
