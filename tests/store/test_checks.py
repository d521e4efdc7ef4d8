"""What must hold before a run is used: each fact that does not is refused with the name of its file."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fedforget import Request, Run
from fedforget.disk.database import Database
from fedforget.errors import CommitsLost, RunDamaged, UnfinishedRequest
from fedforget.store import checks, client_store, record, run_directory, server_store
from fedforget.store.client_store import ClientStore
from fedforget.store.row_checks import validate_clients, validate_record, validate_server
from tests.requests.world import PLAN, opened
from tests.store.test_crash_check import copied_after

SCHEMAS = {"server.db": server_store.SCHEMA, "clients.db": client_store.SCHEMA, "record.db": record.SCHEMA}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = opened(tmp_path_factory.mktemp("checks") / "run")
    run.train()
    run.forget(Request(3, 1), defer=True)
    return run.path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def alter(run: Path, name: str, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(run / name)) as connection, connection:
        assert connection.execute(sql).rowcount


def unsealed(run: Path, name: str, sql: str) -> None:
    """Alter a run as if its last writer had not closed it."""
    alter(run, "record.db", "DELETE FROM seals")
    alter(run, name, sql)


def refusal(run: Path) -> str:
    with pytest.raises(RunDamaged) as refused, run_directory.reading(run):
        pass
    return refused.value.message


def test_whole_run_has_every_fact_once(run: Path) -> None:
    with contextlib.ExitStack() as stack:
        parts = checks.Parts(run, stack)
        told = [(fact.name, fact.check()) for fact in parts.facts(seeds_when_sealed=True)]
        assert parts.sealed
    sizes = [f"{(run / name).stat().st_size} bytes" for name in ("record.db", "server.db", "clients.db")]
    assert told == [
        ("plan.toml", f"{PLAN.rounds} rounds"),
        ("models", "present"),
        *zip(("record.db", "server.db", "clients.db"), sizes, strict=True),
        ("plan.toml", f"{PLAN.rounds} rounds"),
        ("seeds", "as committed to"),
    ]


def test_missing_models_directory_is_named(run: Path) -> None:
    shutil.rmtree(run / "models")
    assert refusal(run) == f"{run / 'models'} is missing"


def test_another_plan_is_refused(run: Path) -> None:
    text = (run / "plan.toml").read_text()
    (run / "plan.toml").write_text(text.replace("lr = 0.1", "lr = 0.2", 1))
    assert refusal(run) == f"{run / 'plan.toml'} is not the plan this run began with"


@pytest.mark.parametrize("name", ["server.db", "clients.db"])
def test_altered_database_is_not_as_sealed(run: Path, name: str) -> None:
    data = bytearray((run / name).read_bytes())
    data[-1] ^= 1
    (run / name).write_bytes(data)
    assert refusal(run) == f"{run / name} is damaged: it is not what it was when the run was last closed"


def test_record_that_fits_no_other_database_is_refused(run: Path) -> None:
    for name in ("server.db", "clients.db"):
        data = bytearray((run / name).read_bytes())
        data[-1] ^= 1
        (run / name).write_bytes(data)
    assert "record.db does not fit server.db and clients.db" in refusal(run)


def test_altered_record_is_not_as_sealed(run: Path) -> None:
    alter(run, "record.db", "UPDATE record SET value = 1 WHERE key = 'tainted'")
    assert refusal(run) == f"{run / 'record.db'} is damaged: it is not what it was when the run was last closed"


@pytest.mark.parametrize("seal", ["record", "server.db", "clients.db"])
def test_record_without_one_of_its_seals_is_refused(run: Path, seal: str) -> None:
    alter(run, "record.db", f"DELETE FROM seals WHERE file = '{seal}'")
    assert "its seals are not those of a run" in refusal(run)


@pytest.mark.parametrize("name", ["server.db-wal", "clients.db-wal"])
def test_seals_beside_a_write_ahead_log_mean_lost_commits(run: Path, name: str) -> None:
    (run / name).touch()
    with run_directory.reading(run):
        pass
    (run / name).write_bytes(bytes(100))
    with pytest.raises(CommitsLost, match=f"it does not know of {name}"), run_directory.reading(run):
        pass


@pytest.mark.parametrize(
    ("name", "sql", "expected"),
    [
        ("server.db", "UPDATE server SET value = zeroblob(32) WHERE key = 'seed'", "the plan is committed to"),
        ("clients.db", "UPDATE clients SET seed = zeroblob(32) WHERE client = 2", "the seed of client 2"),
        ("server.db", "UPDATE roster SET commitment = zeroblob(32) WHERE client = 2", "the seed of client 2"),
        ("server.db", "DELETE FROM roster WHERE client = 2", "name different clients"),
    ],
)
def test_seed_that_is_not_the_committed_one_is_refused_in_an_unsealed_run(
    run: Path, name: str, sql: str, expected: str
) -> None:
    unsealed(run, name, sql)
    assert expected in refusal(run)
    with run_directory.reading(run, skip_seed_check=True) as found:
        assert found.crashed


# ------------------------------------------------------------------------------------------------------ rows and tables


def database(run: Path, name: str) -> Database:
    return Database(run / name, SCHEMAS[name])


def validated(run: Path, name: str) -> None:
    with contextlib.closing(database(run, name)) as found:
        if name == "server.db":
            validate_server(found, PLAN)
        else:
            {"clients.db": validate_clients, "record.db": validate_record}[name](found)


@pytest.mark.parametrize("name", SCHEMAS)
def test_rows_of_a_whole_run_are_valid(run: Path, name: str) -> None:
    validated(run, name)


@pytest.mark.parametrize(
    ("name", "sql", "what"),
    [
        *(
            ("server.db", f"DELETE FROM server WHERE key = '{key}'", f"{key} is")
            for key in ("seed", "nonce", "seed_origin", "plan_digest", "rounds_done")
        ),
        ("server.db", f"UPDATE server SET value = {PLAN.rounds + 1} WHERE key = 'rounds_done'", "rounds_done"),
        ("server.db", "DELETE FROM rounds WHERE round = 2", "the number of its models"),
        ("server.db", f"UPDATE rounds SET round = 99 WHERE round = {PLAN.rounds}", "the model of its last round"),
        ("clients.db", "DELETE FROM clients WHERE client = 1", "the samples of a client"),
        ("clients.db", "DELETE FROM samples WHERE client = 1", "the samples of a client"),
        ("record.db", "DELETE FROM record WHERE key = 'key'", "key is"),
        ("record.db", "DELETE FROM record WHERE key = 'tainted'", "tainted is"),
        ("record.db", "DELETE FROM events", "the trail of events"),
        ("record.db", "INSERT INTO record VALUES ('policy', 'batch')", "policy"),
        ("record.db", "INSERT INTO record VALUES ('policy', 'batch 1e400')", "policy"),
        ("record.db", "INSERT INTO record VALUES ('policy', 'sometimes 0.0')", "policy"),
        ("record.db", "UPDATE requests SET received = 'yesterday'", "the time of a request"),
        ("record.db", "UPDATE requests SET deadline = '0001-01-01T00:00:00.000+23:59'", "the time of a request"),
        ("record.db", "DELETE FROM requests", "a request in waiting"),
        ("record.db", "INSERT INTO erased VALUES (zeroblob(16), 1, 'r-0', 0)", "a request in erased"),
        ("record.db", "INSERT INTO aliases VALUES ('r-1', 'r-0')", "a request in aliases"),
    ],
)
def test_row_that_cannot_be_right_is_named(run: Path, name: str, sql: str, what: str) -> None:
    alter(run, name, sql)
    with pytest.raises(RunDamaged, match=what):
        validated(run, name)


# -------------------------------------------------------------------------------------------------------- after a crash


def crashed_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was killed after a round's first uses were noted, and before the round was committed."""
    run = opened(tmp_path / "run")
    copied_after(monkeypatch, ClientStore, "_note", run.path, tmp_path / "crashed", call=3)
    run.train()
    return tmp_path / "crashed"


def test_reading_a_crashed_run_leaves_out_the_round_that_was_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = crashed_between(tmp_path, monkeypatch)
    before = {file.name: file.read_bytes() for file in path.glob("*.db*")}
    with run_directory.reading(path, only_idle=False) as found:
        assert found.crashed
        assert found.clients.last_witnessed_round() == 3
    with run_directory.reading(path) as found:
        assert found.server.rounds_done == 2
        assert found.clients.last_witnessed_round() == 2
        assert found.clients.last_noted_step() <= 2 * PLAN.local_steps
    assert {file.name: file.read_bytes() for file in path.glob("*.db*")} == before


def test_writer_after_a_crash_cleans_up_and_seals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = crashed_between(tmp_path, monkeypatch)
    (path / "plan.toml.tmp").touch()
    (path / "models" / "half.tmp").touch()
    with run_directory.writing(path) as found:
        assert found.clients.last_witnessed_round() == 2
    with run_directory.reading(path) as found:
        assert not found.crashed
    assert not list(path.rglob("*.tmp"))


def test_interrupted_request_is_refused_to_readers_that_need_an_idle_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened(tmp_path / "run")
    run.train()

    def interrupt(_round: int) -> None:
        raise KeyboardInterrupt

    with run_directory.reading(run.path) as found:
        first = next(client for client, round_ in found.server.first_rounds().items() if round_ == 1)
    with pytest.raises(KeyboardInterrupt):
        run.forget(Request(first), on_round=interrupt)
    with pytest.raises(UnfinishedRequest, match="was interrupted"), run_directory.reading(run.path):
        pass
    with run_directory.reading(run.path, only_idle=False) as found:
        assert found.record.batches.unfinished()


def counted(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> int:
    """How many databases are rewritten in canonical form meanwhile."""
    calls, real = [0], Database.close_canonical

    def close_canonical(self: Database) -> None:
        calls[0] += 1
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "close_canonical", close_canonical)
        act()
    return calls[0]


def test_databases_that_did_not_change_are_not_rewritten(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deferring: Run = opened(run, plan=None, seed=None)
    assert counted(monkeypatch, lambda: deferring.forget(Request(2, 1), defer=True)) == 1, "the record alone"


def test_every_seed_problem_is_listed(run: Path) -> None:
    with run_directory.reading(run) as found:
        answers = {**found.clients.commitments(), "new": b"", 2: b"other"}
        del answers[1]
        problems = list(checks.seed_problems(found.server, found.clients, b"other", answers))
        assert not list(checks.seed_problems(found.server, found.clients, None, found.clients.commitments()))
    assert len(problems) == 3
    for problem, words in zip(problems, ("the plan is", "name different clients", "the seed of client 2"), strict=True):
        assert words in problem
