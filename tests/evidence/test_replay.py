"""``verify`` detects every deviation of a run from what its seeds and data determine."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedforget import LocalOptimizer, Plan, Request, Run
from fedforget.algorithm.ports import RemoveOrder, State, Trained
from fedforget.errors import RunDamaged
from fedforget.evidence.replay import TOLERANCE, close
from fedforget.session.engine import Engine
from fedforget.store import run_directory
from fedforget.store.books.books import Books
from fedforget.store.books.tree import PARTS
from fedforget.store.names import BOOKS
from tests.helpers import take_off_seals
from tests.store.book_sql import edit_book
from tests.store.roster_sql import commitment_becomes

ANOTHER_STEP = "CASE step WHEN 1 THEN 2 ELSE 1 END"  # whatever it is, under any seed
ANOTHER_ROUND = "CASE round WHEN 1 THEN 2 ELSE 1 END"
A_USE = "(client, sample) = (SELECT client, sample FROM first_uses LIMIT 1)"
BOOK = "clients-?.book"  # stands for the one that holds client 3
FIRST_MODEL = "SELECT model FROM rounds WHERE round = 1"
PLAN = Plan(2, 3, 2, 5, LocalOptimizer(lr=0.1, momentum=0.5))


def samples() -> dict[int, dict[int, tuple[np.ndarray, int]]]:
    rng = np.random.default_rng(0)
    return {k: {i: (rng.normal(size=4).astype(np.float32), i % 3) for i in range(4 + k)} for k in range(5)}


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def opened(path: Path, data: dict | None = None) -> Run:
    return Run(path, model=module(), data=samples() if data is None else data)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "run"
    run = Run(path, PLAN, model=module(), data=samples())
    run.train()
    run.forget([Request(1, 0), Request(2)], basis="exogenous")
    return path


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def book_of(path: Path, client: int) -> Path:
    with run_directory.reading(path) as run:
        return run.clients.books.path_of(client)


def alter(database: Path, sql: str) -> None:
    """Change a database as an attacker would: keep it well-formed, and delete its seals."""
    if database.name in BOOKS:
        assert edit_book(database, sql)
    else:
        with closing(sqlite3.connect(database)) as connection, connection:
            assert connection.execute(sql).rowcount
    take_off_seals(database.parent)


def test_an_untouched_run_is_ok(copy: Path) -> None:
    books: list[int] = []
    found = opened(copy).verify(on_book=books.append)
    assert books == list(range(1, PARTS + 1))
    assert found.ok
    assert found.bitwise_equal
    assert found.problems == []
    assert found.rounds_replayed == PLAN.rounds
    assert found.models_compared == PLAN.rounds


@pytest.mark.parametrize(
    ("database", "sql", "flag"),
    [
        ("server.db", "UPDATE server SET value = zeroblob(32) WHERE key = 'seed'", "seeds_ok"),
        ("server.db", commitment_becomes(3), "seeds_ok"),
        (BOOK, "UPDATE clients SET seed = zeroblob(32) WHERE client = 3", "seeds_ok"),
        (BOOK, "UPDATE samples SET content = zeroblob(16) WHERE client = 3 AND sample = 1", "data_ok"),
        (BOOK, "DELETE FROM samples WHERE client = 3 AND sample = 1", "data_ok"),
        (BOOK, "UPDATE clients SET root = zeroblob(32) WHERE client = 3", "data_ok"),
        (BOOK, "UPDATE part SET root = zeroblob(32)", "data_ok"),
        ("server.db", "UPDATE server SET value = zeroblob(32) WHERE key = 'tree_key'", "data_ok"),
        ("uses.db", f"UPDATE first_uses SET step = {ANOTHER_STEP} WHERE {A_USE}", "draws_ok"),
        ("uses.db", f"DELETE FROM first_uses WHERE {A_USE}", "draws_ok"),
        ("uses.db", "INSERT INTO first_uses VALUES (99, 1, 1)", "draws_ok"),
        ("uses.db", "UPDATE content SET digest = zeroblob(32)", "draws_ok"),
        ("uses.db", "UPDATE witnesses SET witness = zeroblob(40)", "witnesses_ok"),
        ("server.db", f"UPDATE first_rounds SET round = {ANOTHER_ROUND} WHERE client = 3", "draws_ok"),
        ("server.db", f"UPDATE rounds SET model = ({FIRST_MODEL}) WHERE round = 3", "bitwise_equal"),
        ("record.db", "UPDATE events SET body = '{}' WHERE kind = 'accepted'", "chain_ok"),
        ("record.db", "DELETE FROM events WHERE sequence = 2", "chain_ok"),
        ("record.db", "UPDATE requests SET state = 'accepted'", "chain_ok"),
        ("record.db", "UPDATE batches SET guarantee = 'path'", "chain_ok"),
        ("record.db", "UPDATE requests SET basis = 'unknown'", "chain_ok"),
        ("record.db", "UPDATE requests SET first_changed_step = 1000", "chain_ok"),
        ("record.db", "UPDATE requests SET received = '2020-01-01T00:00:00.000+00:00'", "chain_ok"),
        ("record.db", "UPDATE batches SET recomputed_steps = 3000", "chain_ok"),
        ("record.db", "UPDATE batches SET model_mac = zeroblob(16)", "chain_ok"),
        ("record.db", "UPDATE record SET value = 1 WHERE key = 'tainted'", "chain_ok"),
        ("record.db", "DELETE FROM erased", "chain_ok"),
        ("server.db", "UPDATE server SET value = 'given' WHERE key = 'seed_origin'", "chain_ok"),
    ],
)  # fmt: skip
def test_an_altered_database_is_found(copy: Path, database: str, sql: str, flag: str) -> None:
    alter(book_of(copy, 3) if database == BOOK else copy / database, sql)
    found = opened(copy).verify()
    assert not found.ok
    assert getattr(found, flag) is False
    assert found.problems


def test_a_model_that_the_plan_keeps_and_no_round_names_is_refused(copy: Path) -> None:
    alter(copy / "server.db", "DELETE FROM rounds WHERE round = 2")
    with pytest.raises(RunDamaged, match="the number of its models"):
        opened(copy).verify()


def test_a_run_that_kept_an_erased_sample_is_found(copy: Path) -> None:
    """The forbidden outcome: the ids are gone from the books, which are well made, the models are those with the data.

    The notes of the sample are gone, too, with a digest that fits.
    """
    data = samples()
    with run_directory.reading(copy) as run:
        client, sample = next((c, s) for c in run.server.roster for s in run.clients.first_steps(c))
        key = run.server.tree_key
    books = Books(copy, key)
    with closing(books):
        books.remove([RemoveOrder(client, (sample,))])
    alter(copy / "uses.db", f"DELETE FROM first_uses WHERE client = {client} AND sample = {sample}")
    alter(copy / "uses.db", "DELETE FROM content")
    found = opened(copy, data).verify()
    assert not found.ok
    assert not found.bitwise_equal
    assert (found.seeds_ok, found.data_ok, found.models_ok, found.rounds_replayed) == (True, True, True, PLAN.rounds)


def test_changed_content_under_the_same_id_is_found(copy: Path) -> None:
    data = samples()
    data[3][1] = (data[3][1][0] + np.float32(1e-3), data[3][1][1])
    found = opened(copy, data).verify()
    assert not found.data_ok
    assert "sample 1 of client 3" in found.problems[0]


def test_an_altered_model_file_is_found(copy: Path) -> None:
    path = min((copy / "models").iterdir())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    found = opened(copy).verify()
    assert not found.models_ok
    assert path.name in " ".join(found.problems)
    assert (found.rounds_replayed, found.draws_ok, found.bitwise_equal) == (0, None, False), "nothing was derived"
    assert (found.seeds_ok, found.chain_ok, found.ok) == (True, True, False)


def test_verification_without_replayed_draws_is_not_ok(copy: Path) -> None:
    found = opened(copy).verify()
    assert (found.draws_ok, found.ok) == (True, True)
    found.draws_ok = None
    assert found.ok is False


def test_replay_in_another_environment_is_compared_within_tolerance(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another processor the bits may differ: then, and only then, closeness is enough, and it is said."""
    nudge: Callable[[np.ndarray], np.ndarray] = lambda array: np.nextafter(array, np.float32(10))  # noqa: E731
    original = Engine.learner

    def nudged(self: Engine) -> object:
        learner = original(self)
        train = learner.train
        learner.train = lambda work: Trained(  # type: ignore[method-assign]
            {name: nudge(tensor) for name, tensor in train(work).model.items()}, b"other bits"
        )
        return learner

    monkeypatch.setattr(Engine, "learner", nudged)
    here = opened(copy).verify()
    assert not here.ok
    assert here.witnesses_ok is False
    monkeypatch.setattr("fedforget.evidence.replay.numeric_environment", lambda: {"processor": "another"})
    elsewhere = opened(copy).verify()
    assert elsewhere.ok
    assert not elsewhere.bitwise_equal
    assert elsewhere.within_tolerance is True
    assert elsewhere.witnesses_ok is None, "no bits can be expected there"
    assert elsewhere.problems


def test_close_rejects_states_beyond_the_tolerance() -> None:
    one = State({"w": np.array([1.0, 2.0])})
    assert close(one, State({"w": np.array([1.0, 2.001])}))
    assert not close(one, State({"w": np.array([1.0, 2.01])}))
    edge = State({"w": np.array([1.0, TOLERANCE])})
    assert close(edge, State({"w": np.array([1.0, 0.0])})), "the tolerance itself is allowed"
