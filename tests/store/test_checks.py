"""What must hold before a run is used: each fact that does not is refused with the name of its file."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fedforget import Request, Run
from fedforget.algorithm.seeds import SeedSource
from fedforget.disk.database import Database
from fedforget.errors import CommitsLost, RunDamaged, UnfinishedRequest
from fedforget.health.doctor import examine
from fedforget.store import checks, metrics, record, run_directory, server_store, uses
from fedforget.store.books.books import Books
from fedforget.store.books.content import Book
from fedforget.store.names import BOOKS, KEYS, METRICS, RECORD, SERVER, USES
from fedforget.store.row_checks import validate_record, validate_server
from fedforget.store.seals import SEALED, Seals
from fedforget.store.uses import Uses
from tests.helpers import take_off_seals
from tests.requests.world import PLAN, opened
from tests.store.book_sql import edit_book, rows_of_book
from tests.store.hostile import change_seal, rehash, reseal
from tests.store.roster_sql import client_comes, client_goes, commitment_becomes
from tests.store.test_crash_check import copied_after

SCHEMAS = {SERVER: server_store.SCHEMA, USES: uses.SCHEMA, METRICS: metrics.SCHEMA, RECORD: record.SCHEMA}
BOOK_OF = {client: Books(Path(), SeedSource("1").tree_key()).path_of(client).name for client in range(5)}
BOOK = BOOK_OF[2]


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
    if name in BOOKS:
        assert edit_book(run / name, sql)
        return
    with contextlib.closing(sqlite3.connect(run / name)) as connection, connection:
        assert connection.execute(sql).rowcount


def unsealed(run: Path, name: str, sql: str) -> None:
    """Alter a run as if its last writer had not closed it."""
    take_off_seals(run)
    alter(run, name, sql)


def refusal(run: Path) -> str:
    with pytest.raises(RunDamaged) as refused, run_directory.reading(run):
        pass
    return refused.value.message


def test_whole_run_has_every_fact_once(run: Path) -> None:
    with contextlib.ExitStack() as stack:
        parts = checks.Parts(run, stack)
        told = [(fact.name, fact.check()) for fact in parts.facts(every_book=True)]
        assert parts.sealed
    sizes = {name: f"{(run / name).stat().st_size} bytes" for name in (RECORD, SERVER, METRICS, USES, *BOOKS)}
    keys = ((run / KEYS).stat().st_size - 16 - 32) // 40
    assert told == [
        ("plan.toml", f"{PLAN.rounds} rounds"),
        ("models", "present"),
        ("seals", "set when the run was closed"),
        (RECORD, sizes.pop(RECORD)),
        (KEYS, f"{keys} keys"),
        *sizes.items(),
        ("plan.toml", f"{PLAN.rounds} rounds"),
        ("seeds", "as committed to"),
    ]


def test_missing_models_directory_is_named(run: Path) -> None:
    shutil.rmtree(run / "models")
    assert refusal(run) == f"{run / 'models'} is missing"


def test_another_plan_is_refused(run: Path) -> None:
    text = (run / "plan.toml").read_text()
    (run / "plan.toml").write_text(text.replace("lr = 0.1", "lr = 0.2", 1))
    assert refusal(run) == f"{run / 'plan.toml'} is not the plan that this run was created with"


@pytest.mark.parametrize("name", ["uses.db", *BOOKS])
def test_missing_database_of_the_clients_is_named(run: Path, name: str) -> None:
    """Also a book that nothing reads."""
    (run / name).unlink()
    assert refusal(run) == f"{run / name} is missing"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["server.db", "uses.db"])
def test_altered_database_is_not_as_sealed(run: Path, name: str) -> None:
    flip(run / name)
    assert refusal(run) == f"{run / name} is damaged: it is not what it was when the run was last closed"


def test_altered_record_is_not_as_sealed(run: Path) -> None:
    alter(run, "record.db", "UPDATE record SET value = 1 WHERE key = 'tainted'")
    assert refusal(run) == f"{run / 'record.db'} is damaged: it is not what it was when the run was last closed"


@pytest.mark.parametrize("name", SEALED)
def test_run_without_one_of_its_seals_is_refused(run: Path, name: str) -> None:
    seals = Seals(run).all()
    del seals[name]
    Seals(run).set(seals)
    assert "its seals are not those of a run" in refusal(run)


@pytest.mark.parametrize("name", ["server.db-wal", "uses.db-wal", "metrics.db-wal", "record.db-wal"])
def test_seals_beside_a_write_ahead_log_mean_lost_commits(run: Path, name: str) -> None:
    (run / name).touch()
    with run_directory.reading(run):
        pass
    (run / name).write_bytes(bytes(100))
    with pytest.raises(CommitsLost, match=f"{name}, which `seals` does not list"), run_directory.reading(run):
        pass


@pytest.mark.parametrize(
    ("name", "sql", "expected"),
    [
        ("server.db", "UPDATE server SET value = zeroblob(32) WHERE key = 'seed'", "the plan is committed to"),
        (BOOK, "UPDATE clients SET seed = zeroblob(32) WHERE client = 2", "the seed of client 2"),
        ("server.db", commitment_becomes(2), "the seed of client 2"),
        ("server.db", client_comes(99), "name different clients"),
    ],
)
def test_seed_that_is_not_the_committed_one_is_refused_in_an_unsealed_run(
    run: Path, name: str, sql: str, expected: str
) -> None:
    unsealed(run, name, sql)
    assert expected in refusal(run)
    with run_directory.reading(run, skip_seed_check=True) as found:
        assert found.crashed


def test_client_that_took_part_and_is_not_in_the_roster_is_damage(run: Path) -> None:
    unsealed(run, "server.db", client_goes(2))
    assert "names a round that drew a client which is not in its roster" in refusal(run)


# ---------------------------------------------------------------------------------------------------------------- books


def complaints(run: Path) -> dict[str, str]:
    """What the doctor says about each file or fact that is not in order."""
    return {check.name: check.detail for check in examine(run) if not check.ok}


def reading_of(run: Path, client: int) -> str:
    """The refusal of a reader of a client's book."""
    with run_directory.reading(run, skip_seed_check=True) as found, pytest.raises(RunDamaged) as refused:
        found.clients.samples(client)
    return refused.value.message


def test_book_is_compared_with_its_seal_when_it_is_first_read(run: Path) -> None:
    flip(run / BOOK)
    damaged = f"{run / BOOK} is damaged: it is not what it was when the run was last closed"
    assert reading_of(run, 2) == damaged
    with run_directory.reading(run) as found:
        for client in (0, 1, 3, 4):
            assert len(found.clients.samples(client)), "in a file of its own"
        for read in (found.clients.sizes, found.clients.commitments, found.clients.clients):
            with pytest.raises(RunDamaged):
                read()
    assert complaints(run)[BOOK] == damaged


def test_request_about_another_book_leaves_a_damaged_one_and_its_seal_alone(run: Path) -> None:
    """Sealing must not vouch for what was not read."""
    assert BOOK_OF[1] != BOOK
    before = Seals(run).all()[BOOK]
    flip(run / BOOK)
    opened(run, plan=None, seed=None).forget(Request(1, 1), defer=True)
    assert Seals(run).all()[BOOK] == before
    assert list(complaints(run)) == [BOOK, checks.SEEDS]


def test_another_book_in_place_of_one_is_refused_by_its_number(run: Path) -> None:
    take_off_seals(run)
    shutil.copy(run / BOOK_OF[3], run / BOOK)
    damaged = f"{run / BOOK} is damaged: its number is missing or invalid"
    assert refusal(run) == damaged
    assert reading_of(run, 2) == damaged
    with pytest.raises(RunDamaged, match="its number"):
        opened(run, plan=None, seed=None).train()
    assert complaints(run)[BOOK] == damaged


def test_books_that_changed_places_are_refused_by_their_numbers(run: Path) -> None:
    one, other = run / BOOK, run / BOOK_OF[3]
    one.rename(run / "between")
    other.rename(one)
    (run / "between").rename(other)
    for path, client in ((one, 2), (other, 3)):
        assert reading_of(run, client) == f"{path} is damaged: its number is missing or invalid"
        assert "its number" in complaints(run)[path.name]


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE part SET root = zeroblob(32)",
        "UPDATE clients SET root = zeroblob(32) WHERE client = 2",
        "UPDATE samples SET content = zeroblob(16) WHERE client = 2 AND sample = 1",
        "DELETE FROM samples WHERE client = 2 AND sample = 1",
        "INSERT INTO samples VALUES (2, 99, zeroblob(16))",
    ],
)
def test_roots_that_are_not_those_of_the_content_are_reported(run: Path, sql: str, sealed: bool) -> None:
    """By the doctor and by ``verify``, whether or not the seals fit the file."""
    alter(run, BOOK, sql)
    if sealed:
        reseal(run, BOOK)
    else:
        take_off_seals(run)
    expected = f"{run / BOOK} is damaged: its roots are not those of its content"
    assert complaints(run)[BOOK] == expected
    found = opened(run, plan=None, seed=None).verify()
    assert not found.ok
    assert not found.data_ok
    assert expected in found.problems


def test_root_in_the_seals_that_is_not_that_of_the_book_is_reported(run: Path) -> None:
    """The state digest and receipts take the root from there."""
    change_seal(run, BOOK, root=bytes(32))
    expected = f"{run / BOOK} is damaged: its roots are not those of its content"
    assert complaints(run) == {BOOK: expected}
    assert expected in opened(run, plan=None, seed=None).verify().problems


def literal(value: bytes) -> str:
    return f"x'{value.hex()}'"


@pytest.mark.parametrize("moved", [True, False])
def test_client_in_the_book_of_another_is_reported(run: Path, moved: bool) -> None:
    """Its seed and samples are looked for where its label says."""
    [secrets] = rows_of_book(run / BOOK_OF[3], "SELECT seed, nonce, root FROM clients WHERE client = 3")
    samples = rows_of_book(run / BOOK_OF[3], "SELECT sample, content FROM samples WHERE client = 3")
    edit_book(
        run / BOOK,
        f"INSERT INTO clients VALUES (3, {', '.join(map(literal, secrets))})",
        *(f"INSERT INTO samples VALUES (3, {sample}, {literal(content)})" for sample, content in samples),
    )
    if moved:
        edit_book(run / BOOK_OF[3], *(f"DELETE FROM {table} WHERE client = 3" for table in ("clients", "samples")))
    for name in (BOOK, BOOK_OF[3]):
        rehash(run, name)
        reseal(run, name)
    expected = f"{run / BOOK} is damaged: client 3 belongs into another file"
    assert complaints(run)[BOOK] == expected
    assert expected in opened(run, plan=None, seed=None).verify().problems


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM first_uses WHERE client = 2",
        "UPDATE witnesses SET witness = zeroblob(40)",
        "UPDATE content SET digest = zeroblob(32)",
    ],
)
def test_digest_that_is_not_that_of_the_notes_is_reported(run: Path, sql: str) -> None:
    alter(run, "uses.db", sql)
    reseal(run)
    assert complaints(run) == {"uses.db": f"{run / 'uses.db'} is damaged: its digest is not that of its content"}
    assert not opened(run, plan=None, seed=None).verify().ok


@pytest.mark.parametrize("sql", ["first_uses VALUES ('gone', 1, 1)", "witnesses VALUES ('gone', 1, zeroblob(40))"])
def test_notes_about_a_client_outside_the_roster_are_reported(run: Path, sql: str) -> None:
    alter(run, "uses.db", f"INSERT INTO {sql}")
    alter(run, "uses.db", "DELETE FROM content")
    reseal(run)
    assert "notes about a client that is not in the roster" in complaints(run)["uses.db"]


# ------------------------------------------------------------------------------------------------------ rows and tables


def database(run: Path, name: str) -> Database:
    return Database(run / name, SCHEMAS[name])


def validated(run: Path, name: str) -> None:
    if name in BOOKS:
        Book.read(run / name, BOOKS.index(name))
        return
    with contextlib.closing(database(run, name)) as found:
        if name == "server.db":
            validate_server(found, PLAN)
        else:
            validate_record(found)


@pytest.mark.parametrize("name", [SERVER, RECORD, *BOOKS])
def test_rows_of_a_whole_run_are_valid(run: Path, name: str) -> None:
    validated(run, name)


@pytest.mark.parametrize(
    ("name", "sql", "what"),
    [
        *(
            ("server.db", f"DELETE FROM server WHERE key = '{key}'", f"{key} is")
            for key in ("seed", "nonce", "seed_origin", "tree_key", "plan_digest", "rounds_done")
        ),
        ("server.db", f"UPDATE server SET value = {PLAN.rounds + 1} WHERE key = 'rounds_done'", "rounds_done"),
        ("server.db", "DELETE FROM rounds WHERE round = 2", "the number of its models"),
        ("server.db", f"UPDATE rounds SET round = 99 WHERE round = {PLAN.rounds}", "the model of its last round"),
        (BOOK, "DELETE FROM clients WHERE client = 2", "the samples of a client"),
        (BOOK, "DELETE FROM samples WHERE client = 2", "the samples of a client"),
        (BOOK, f"UPDATE part SET number = {(BOOKS.index(BOOK) + 1) % 16}", "its number"),
        ("record.db", "DELETE FROM record WHERE key = 'pseudonym_key'", "pseudonym_key is"),
        ("record.db", "DELETE FROM record WHERE key = 'tainted'", "tainted is"),
        ("record.db", "DELETE FROM events", "the trail of events"),
        ("record.db", "INSERT INTO record VALUES ('policy', 'batch')", "policy"),
        ("record.db", "INSERT INTO record VALUES ('policy', 'batch 1e400')", "policy"),
        ("record.db", "INSERT INTO record VALUES ('policy', 'sometimes 0.0')", "policy"),
        ("record.db", "UPDATE requests SET received = 'yesterday'", "the time of a request"),
        ("record.db", "UPDATE requests SET deadline = '0001-01-01T00:00:00.000+23:59'", "the time of a request"),
        ("record.db", "DELETE FROM requests", "what waiting refers to"),
        ("record.db", "INSERT INTO erased VALUES (zeroblob(16), 1, 'r-0', 0)", "what erased refers to"),
        ("record.db", "INSERT INTO aliases VALUES ('r-1', 'r-0')", "what aliases refers to"),
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
    copied_after(monkeypatch, Uses, "_note", run.path, tmp_path / "crashed", call=3)
    run.train()
    return tmp_path / "crashed"


def test_reading_a_crashed_run_leaves_out_the_round_that_was_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = crashed_between(tmp_path, monkeypatch)
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    with run_directory.reading(path, only_idle=False) as found:
        assert found.crashed
        assert found.clients.last_witnessed_round() == 3
    with run_directory.reading(path) as found:
        assert found.server.rounds_done == 2
        assert found.clients.last_witnessed_round() == 2
        assert found.clients.last_noted_step() <= 2 * PLAN.local_steps
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()} == before


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
    assert counted(monkeypatch, lambda: deferring.forget(Request(2, 1), defer=True)) == 0


def test_every_seed_problem_is_listed(run: Path) -> None:
    with run_directory.reading(run) as found:
        answers = {**found.clients.commitments(), "new": b"", 2: b"other"}
        del answers[1]
        problems = list(checks.seed_problems(found.server, found.clients, b"other", answers))
        assert not list(checks.seed_problems(found.server, found.clients, None, found.clients.commitments()))
    assert len(problems) == 3
    for problem, words in zip(problems, ("the plan is", "name different clients", "the seed of client 2"), strict=True):
        assert words in problem
