"""Bad input: one clear line, a documented exit code, and the run as it was."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedforget.algorithm.ports import RemoveOrder
from fedforget.store import run_directory
from fedforget.store.books.books import Books
from fedforget.store.plan_file import FORMAT
from tests.cli.commandline import (
    PLAN,
    ROUNDS,
    WORLD,
    book_of,
    call,
    copy,
    everything_of,
    function_of,
    good,
    good_json,
    refused,
    requests_file,
    samples_of,
    state,
    train,
)
from tests.helpers import take_off_seals
from tests.requests.world import opened as own_run
from tests.store.book_sql import edit_book
from tests.store.roster_sql import commitment_becomes


@pytest.fixture
def unchanged(trained: Path) -> Iterator[Path]:
    """A run that must be as it was when the test is over."""
    before = everything_of(trained)
    yield trained
    assert everything_of(trained) == before


# Requests


@pytest.mark.parametrize(
    ("target", "named"),
    [
        (("--client", "99"), "client 99"),
        (("--client", "ward-7"), "client ward-7"),
        (("--client", "-1"), "client -1"),
        (("--client", ""), "client"),
        (("--client", "0", "--sample", "99999"), "sample 99999 of client 0"),
        (("--client", "0", "--sample", "x"), "sample x of client 0"),
        (("--client", "99", "--sample", "1"), "client 99"),
    ],
)
def test_unknown_client_or_sample(unchanged: Path, target: tuple[str, ...], named: str) -> None:
    error = refused(3, "unknown-target", "forget", unchanged, *target)
    assert named in error["message"]
    assert str(unchanged) in error["message"]
    assert "fedforget clients" in error["hint"]


def test_a_sample_of_another_client_is_unknown(unchanged: Path) -> None:
    refused(3, "unknown-target", "forget", unchanged, "--client", "0", "--sample", str(samples_of(unchanged, 1)[0]))


@pytest.mark.parametrize(
    "target",
    [(), ("--sample", "3"), ("--client", "1", "--batch", "x"), ("--sample", "3", "--batch", "x")],
)
def test_ambiguous_forget_options_are_refused(unchanged: Path, target: tuple[str, ...]) -> None:
    refused(3, "invalid-input", "forget", unchanged, *target)


def test_unknown_basis(unchanged: Path) -> None:
    error = refused(3, "invalid-input", "forget", unchanged, "--client", "1", "--basis", "whim")
    assert "exogenous" in error["hint"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("\n \n", None),
        ("nonsense\n", 1),
        ('{"client": 1}\n{"client": 2\n', 2),
        ('{"sample": 1}\n', 1),
        ('{"client": 1, "reason": "x"}\n', 1),
        ('{"client": 1, "sample": null}\n', 1),
        ('{"client": null}\n', 1),
        ('{"client": 1.5}\n', 1),
        ('{"client": true}\n', 1),
        ('{"client": -1}\n', 1),
        ('{"client": [1]}\n', 1),
        ("[1, 2]\n", 1),
        ("3\n", 1),
        ('{"client": 1}\n\n{"client": 9e99}\n', 3),
        ('{"client": "\\ud800"}\n', None),
        ("[" * 100_000 + "\n", 1),
    ],
    ids=lambda value: str(value)[:30],
)
def test_malformed_request_files_are_refused(unchanged: Path, tmp_path: Path, text: str, line: int | None) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(text)
    result = call("forget", unchanged, "--batch", file, "--json")
    assert result.code == 3, result
    error = result.error
    assert line is None or f"line {line}" in error["message"]
    assert line is None or str(file) in error["message"]
    assert error["hint"]


def test_unreadable_request_files_are_refused(unchanged: Path, tmp_path: Path) -> None:
    refused(3, "invalid-requests", "forget", unchanged, "--batch", tmp_path / "missing")
    refused(3, "invalid-requests", "forget", unchanged, "--batch", tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{")
    refused(3, "invalid-requests", "forget", unchanged, "--batch", tmp_path / "bytes")


def test_an_id_and_its_decimal_spelling_are_one(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "r").write_text('{"client": "3"}\n{"client": 3}\n')
    assert len(good_json("forget", trained, "--batch", tmp_path / "r")["receipts"]) == 1


# Plans


@pytest.mark.parametrize(
    "change",
    [
        ("--clients", "0"),
        ("--clients", "-3"),
        ("--clients", "1438"),
        ("--batch-size", "0"),
        ("--clients-per-round", "0"),
        ("--clients-per-round", "-2"),
        ("--local-steps", "0"),
        ("--rounds", "0"),
        ("--rounds", "2147483648"),
        ("--keep", "0"),
        ("--keep", "-1"),
        ("--keep", "some"),
        ("--lr", "0"),
        ("--lr", "nan"),
        ("--lr", "inf"),
        ("--lr", "-1"),
        ("--momentum", "1"),
        ("--weight-decay", "-1"),
        ("--prox", "nan"),
        ("--server-optimizer", "newton"),
        ("--server-optimizer", "fedadam", "--server-lr", "0"),
        ("--rho-s", "0.5"),
    ],
    ids=" ".join,
)
def test_impossible_plans(tmp_path: Path, change: tuple[str, ...]) -> None:
    refused(4, "plan-refused", "train", *PLAN, *change, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["plan", "train"])
@pytest.mark.parametrize(
    "rho",
    [("0", "0.5"), ("-1", "0.5"), ("1.01", "0.5"), ("0.5", "0"), ("0.5", "2"), ("nan", "0.5"), ("0.5", "inf")],
    ids=" ".join,
)
def test_rho_outside_its_range(tmp_path: Path, command: str, rho: tuple[str, str]) -> None:
    out = () if command == "plan" else ("--out", tmp_path / "run")
    error = refused(
        4, "plan-refused", command, "--clients", "6", "--rounds", "2", "--local-steps", "2", "--rho-s", rho[0],
        "--rho-c", rho[1], *out,
    )  # fmt: skip
    assert "(0, 1]" in error["message"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("rho", "named"), [(("0.5", "0.0001"), "less than one client"), (("0.00001", "0.9"), "less than one sample")]
)
def test_infeasible_rho_names_the_nearest_feasible_value(rho: tuple[str, str], named: str) -> None:
    plan = ("--clients", "60", "--samples", "20", "--rounds", "20", "--local-steps", "5")
    error = refused(4, "plan-refused", "plan", *plan, "--rho-s", rho[0], "--rho-c", rho[1])
    assert named in error["message"]
    assert "nearest feasible" in error["hint"]


def test_underdetermined_plans_are_refused(tmp_path: Path) -> None:
    size = ("--rounds", "2", "--local-steps", "2", "--out", tmp_path / "run")
    refused(4, "plan-refused", "train", *size)
    refused(4, "plan-refused", "train", *size, "--rho-s", "0.5")
    refused(4, "plan-refused", "train", *size, "--batch-size", "5")
    refused(4, "plan-refused", "train", *WORLD, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("clients", ["0", "-1"])
def test_plan_of_no_clients(clients: str) -> None:
    assert call("plan", *WORLD[2:], "--rounds", "3", "--clients", clients).code in {3, 4}
    assert call("plan", *WORLD[2:], "--rounds", "3", "--clients", clients, "--samples", "5").code in {3, 4}


def test_unknown_dataset_federation_or_device(tmp_path: Path) -> None:
    for change in (("--data", "emnist"), ("--federation", "pigeons"), ("--device", "cuda")):
        refused(3, "invalid-input", "train", *PLAN, *change, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("until", ["-1", str(ROUNDS + 1)])
def test_rounds_that_are_not_in_the_plan(tmp_path: Path, trained: Path, until: str) -> None:
    before = everything_of(trained)
    error = refused(3, "invalid-input", "train", trained, "--until-round", until)
    assert until in error["message"]
    assert everything_of(trained) == before
    error = refused(3, "invalid-input", "train", *PLAN, "--until-round", until, "--out", tmp_path / "new")
    assert str(ROUNDS) in error["hint"]
    shown = call("train", *PLAN, "--until-round", until, "--out", tmp_path / "newer").err
    assert "keeping" not in shown, "the goal is checked before anything is said or counted about it"


@pytest.mark.parametrize(
    "text",
    ["nonsense", "rounds = 'many'", "rounds = true", "unknown = 1", "seed = 1.5", "keep = []", "[plan]\nrounds = 3"],
)
def test_malformed_config_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    error = refused(3, "invalid-input", "train", "--config", tmp_path / "run.toml", "--out", tmp_path / "run")
    assert "run.toml" in error["message"]
    assert not (tmp_path / "run").exists()


def test_unreadable_config_files_are_refused(tmp_path: Path) -> None:
    refused(3, "invalid-input", "plan", "--config", tmp_path / "missing.toml")
    refused(3, "invalid-input", "plan", "--config", tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    refused(3, "invalid-input", "plan", "--config", tmp_path / "bytes.toml")


def test_an_empty_federation(tmp_path: Path) -> None:
    everyone = requests_file(tmp_path / "everyone", [(client, None) for client in range(6)])
    error = refused(4, "plan-refused", "train", *PLAN, "--out", tmp_path / "run", "--without", everyone)
    assert "no clients" in error["message"]
    assert not (tmp_path / "run").exists()


def test_without_unknown_target_is_refused(tmp_path: Path) -> None:
    for number, request in enumerate([(99, None), (0, 99999)]):
        file = requests_file(tmp_path / str(number), [request])
        refused(3, "unknown-target", "train", *PLAN, "--out", tmp_path / "run", "--without", file)
    refused(3, "invalid-requests", "train", *PLAN, "--out", tmp_path / "run", "--without", tmp_path / "missing")
    assert not (tmp_path / "run").exists()


# Directories


@pytest.mark.parametrize("command", ["status", "clients", "state", "verify", "train"])
def test_commands_without_a_run_exit_with_no_such_run(tmp_path: Path, command: str) -> None:
    error = refused(3, "no-such-run", command, tmp_path / "nothing")
    assert str(tmp_path / "nothing") in error["message"]
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").write_text("")
    refused(3, "no-such-run", command, tmp_path / "file")


def test_forget_and_export_where_there_is_no_run(tmp_path: Path) -> None:
    refused(3, "no-such-run", "forget", tmp_path / "nothing", "--client", "1")
    refused(3, "no-such-run", "forget", tmp_path / "nothing", "--client", "1", "--dry-run")
    refused(3, "no-such-run", "export", tmp_path / "nothing", tmp_path / "model.pt")
    assert call("doctor", tmp_path / "nothing").code != 0


def test_train_into_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    error = refused(3, "invalid-input", "train", *PLAN, "--out", tmp_path)
    assert "letters" in error["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]
    refused(3, "invalid-input", "train", *PLAN, "--out", tmp_path / "letters")
    refused(10, "storage-failed", "train", *PLAN, "--out", tmp_path / "letters" / "below")


def test_export_to_an_impossible_path_is_refused(unchanged: Path, tmp_path: Path) -> None:
    (tmp_path / "directory.pt").mkdir()
    refused(3, "invalid-input", "export", unchanged, tmp_path / "directory.pt")
    assert list(tmp_path.glob("*.tmp")) == []


def test_export_does_not_replace_what_is_not_a_regular_file(trained: Path, tmp_path: Path) -> None:
    """For example a device, which a privileged user would overwrite."""
    pipe, link = tmp_path / "pipe", tmp_path / "link.pt"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    good("forget", trained, "--client", "1", "--idempotency-key", "a")
    [receipt] = good_json("status", trained)["receipts"]
    for place in (pipe, link):
        error = refused(3, "invalid-input", "export", trained, place)
        assert error["message"] == f"{place} is not a regular file"
        refused(3, "invalid-input", "receipt", "show", trained, receipt["id"], "--out", place)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert not (trained / "receipt-key.pem").exists()


def test_export_follows_a_symlink(trained: Path, tmp_path: Path) -> None:
    link = tmp_path / "latest.pt"
    link.symlink_to(tmp_path / "model-1.pt")
    good("export", trained, link)
    assert link.is_symlink()
    assert (tmp_path / "model-1.pt").stat().st_size > 0


@pytest.mark.parametrize("text", ["r-\udcff", "\udcff"])
def test_arguments_that_are_not_utf8_are_refused(unchanged: Path, text: str) -> None:
    """As Python passes on what it cannot decode."""
    refused(3, "invalid-input", "cancel", unchanged, text)
    refused(3, "invalid-input", "receipt", "show", unchanged, text)
    refused(3, "invalid-input", "forget", unchanged, "--client", "1", "--defer", "--idempotency-key", text)


@pytest.mark.parametrize("name", ["below/model.pt", "below/more/model.safetensors", "file/model.pt"])
def test_export_makes_no_directories(unchanged: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    error = refused(3, "invalid-input", "export", unchanged, tmp_path / name)
    assert error["message"] == f"there is no directory {(tmp_path / name).parent}"
    assert not (tmp_path / "below").exists()


@pytest.mark.parametrize("name", ["server.db", "plan.toml", "models/model.pt", "new.pt"])
def test_export_does_not_write_into_the_run(unchanged: Path, name: str) -> None:
    error = refused(3, "invalid-input", "export", unchanged, unchanged / name)
    assert str(unchanged / name) in error["message"]


def test_prove_with_unknown_world_is_invalid_input() -> None:
    error = refused(3, "invalid-input", "prove", "--only", "no such world")
    assert "no such world" in error["message"]


def test_commands_refuse_a_run_with_own_data(tmp_path: Path) -> None:
    own_run(tmp_path / "own").train(1)
    for command in (("train",), ("verify",), ("forget", "--client", "0")):
        error = refused(3, "invalid-input", command[0], tmp_path / "own", *command[1:])
        assert "fedforget.Run" in error["hint"]
    error = refused(4, "plan-refused", "train", *PLAN, "--out", tmp_path / "own")
    assert "fedforget train" not in error["hint"]
    assert "model=…, data=…).train()" in error["hint"]


# Loss


def test_a_loss_that_is_no_number_stops_and_commits_nothing_of_the_round(tmp_path: Path) -> None:
    run = tmp_path / "run"
    plan = ("train", *PLAN, "--lr", "1e30", "--out", run)
    error = refused(9, "non-finite-loss", *plan)
    for word in ("client", "round 1", "step"):
        assert word in error["message"]
    assert "learning rate" in error["hint"]
    status = good_json("status", run)
    assert status["rounds_done"] == 0
    assert len(list((run / "models").iterdir())) == 1
    assert good_json("verify", run)["ok"]
    other = tmp_path / "other"
    good(*plan[:-1], other, "--until-round", "0")
    assert state(run) == state(other)
    assert function_of(run) == function_of(other)
    assert refused(9, "non-finite-loss", "train", run) == error, "the same draw fails again"


def test_a_loss_that_breaks_later_keeps_the_rounds_before(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = call("train", *WORLD, "--rounds", "300", "--lr", "30", "--weight-decay", "0.5", "--out", run, "--json")
    assert result.code == 9, result
    done = good_json("status", run)["rounds_done"]
    assert done > 0
    assert f"round {done + 1}," in result.error["message"]
    other = tmp_path / "other"
    settings = ("--rounds", "300", "--lr", "30", "--weight-decay", "0.5", "--until-round", str(done))
    good("train", *WORLD, *settings, "--out", other)
    assert function_of(run) == function_of(other)


# Damage

FIRST_OF_2 = "client = 2 AND sample = (SELECT min(sample) FROM samples WHERE client = 2)"


def slowly(*values: Any) -> list[Any]:
    """Cases for the slow part."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow) for value in values
    ]


BOOK = "clients-?.book"  # stands for the one that holds client 2
DATABASES = ["server.db", "uses.db", "metrics.db", BOOK, "record.db"]
FILES = ["plan.toml", *DATABASES]


def file_in(run: Path, file: str) -> str:
    """The name of a file in a run that is whole."""
    return book_of(run, 2) if file == BOOK else file


def model_file(run: Path) -> Path:
    """The current model."""
    found: Path = run / "models" / (good_json("status", run)["model_digest"] + ".safetensors")
    return found


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "deleted":
        path.unlink()
    else:
        new = {
            "empty": b"",
            "truncated": data[: len(data) // 2],
            "one byte short": data[:-1],
            "zeroed": bytes(len(data)),
            "overwritten": b"x" * len(data),
            "flipped": bytes([data[0] ^ 0xFF]) + data[1:],
        }[how]
        path.write_bytes(new)


@pytest.mark.parametrize(
    "how", ["deleted", "empty", "truncated", *slowly("one byte short", "zeroed", "overwritten", "flipped")]
)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_nothing_is_touched(trained: Path, name: str, how: str) -> None:
    name = file_in(trained, name)
    damage(trained / name, how)
    before = everything_of(trained)
    for command in (("status",), ("train",), ("forget", "--client", "2")):
        error = refused(6, "run-damaged", command[0], trained, *command[1:])
        assert str(trained / name) in error["message"]
    assert everything_of(trained) == before
    doctor = call("doctor", trained, "--json")
    assert doctor.code == 1
    assert str(trained / name) in doctor.error["message"]


@pytest.mark.parametrize("how", ["deleted", "empty", "truncated", "one byte short", "zeroed", "flipped"])
def test_a_damaged_model_is_named_and_never_served(trained: Path, tmp_path: Path, how: str) -> None:
    path = model_file(trained)
    damage(path, how)
    error = refused(6, "run-damaged", "export", trained, tmp_path / "model.pt")
    assert str(path) in error["message"]
    assert "backup" in error["hint"]
    assert not (tmp_path / "model.pt").exists()
    result = call("verify", trained, "--json")
    assert result.code == 1
    assert (result.json["ok"], result.json["draws_ok"], result.json["rounds_replayed"]) == (False, None, 0)
    assert path.name in result.error["message"]
    assert f"`fedforget doctor {trained}`" in result.error["hint"]
    assert re.search(r"^draws_ok +not checked$", call("verify", trained).out, re.MULTILINE)
    assert str(path) in refused(6, "run-damaged", "train", trained)["message"], "though nothing is left to train"
    checks = call("doctor", trained, "--json").json["checks"]
    (bad,) = [check for check in checks if not check["ok"]]
    assert bad["name"] == f"model of round {ROUNDS}"
    assert "doctor" not in bad["remedy"], "the doctor does not send to the doctor"
    assert "backup" in bad["remedy"]


def test_training_from_a_damaged_model_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, "--until-round", "2")
    damage(model_file(run), "flipped")
    before = everything_of(run)
    refused(6, "run-damaged", "train", run)
    assert everything_of(run) == before


def test_a_changed_plan_is_refused(trained: Path) -> None:
    plan = trained / "plan.toml"
    plan.write_text(plan.read_text().replace("lr = 0.1", "lr = 0.2"))
    for command in ("status", "train", "verify", "state"):
        error = refused(6, "run-damaged", command, trained)
        assert "plan.toml" in error["message"]


def test_train_on_run_without_plan_raises_run_damaged_and_changes_nothing(trained: Path) -> None:
    """Only what was never finished starts anew: a run with rounds or requests is not a leftover."""
    good("forget", trained, "--client", "3")
    (trained / "plan.toml").unlink()
    before = everything_of(trained)
    refused(6, "run-damaged", "train", *PLAN, "--out", trained)
    assert everything_of(trained) == before


def test_failed_verify_reports_on_stderr_and_exits_with_1(trained: Path) -> None:
    alter(trained, "record.db", "UPDATE events SET body = replace(body, '2', '3') WHERE kind = 'trained'")
    result = call("verify", trained, "--json")
    assert result.code == 1
    assert (result.json["ok"], result.json["chain_ok"], result.json["bitwise_equal"]) == (False, False, True)
    assert result.error["code"] == "verification-failed"
    assert "event" in result.error["message"]
    assert "event" in call("verify", trained).err


def alter(run: Path, file: str, sql: str) -> None:
    """Change a database, and open it as after a crash: without the seals, which would refuse it at once."""
    if file.endswith(".book"):
        assert edit_book(run / file, sql)
    else:
        with not_strict(run / file), contextlib.closing(sqlite3.connect(run / file)) as database, database:
            database.execute("PRAGMA ignore_check_constraints=ON")
            database.execute(sql)
    take_off_seals(run)


@contextlib.contextmanager
def not_strict(path: Path) -> Iterator[None]:
    """Let values of any type into the tables of a database."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA writable_schema=ON")
        tables = database.execute("SELECT sql, name FROM sqlite_schema WHERE sql LIKE '%) STRICT%'").fetchall()
        for text, name in tables:
            loose = text.replace(") STRICT, ", ") ").removesuffix(" STRICT")
            database.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (loose, name))
    yield
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA writable_schema=ON")
        database.executemany("UPDATE sqlite_schema SET sql = ? WHERE name = ?", tables)


@pytest.mark.parametrize("file", DATABASES)
def test_database_altered_after_closing_is_refused(trained: Path, file: str) -> None:
    statements = {
        "server.db": "UPDATE first_rounds SET round = 5 WHERE round = 1",
        "uses.db": "UPDATE first_uses SET step = 1 WHERE step = 2",
        BOOK: "UPDATE samples SET content = zeroblob(16) WHERE client = 2",
        "metrics.db": "INSERT INTO metrics VALUES (1, -1, 1, 1)",
        "record.db": "UPDATE events SET time = '2020-01-01' WHERE sequence = 1",
    }
    name, digest = file_in(trained, file), good_json("state", trained)
    if file == BOOK:
        assert edit_book(trained / name, statements[file])
    else:
        with contextlib.closing(sqlite3.connect(trained / name)) as database, database:
            assert database.execute(statements[file]).rowcount
    before = everything_of(trained)
    for command in (("status",), ("train",), ("verify",), ("state",), ("forget", "--client", "2")):
        if (command[0], file) == ("state", BOOK):  # its root is in the seals, so no book is read
            assert good_json("state", trained) == digest
            continue
        error = refused(6, "run-damaged", command[0], trained, *command[1:])
        assert str(trained / name) in error["message"]
    assert everything_of(trained) == before


@pytest.mark.parametrize(
    ("file", "sql", "broken"),
    [
        (BOOK, "UPDATE clients SET seed = zeroblob(32) WHERE client = 2", "seeds_ok"),
        ("server.db", "UPDATE server SET value = zeroblob(32) WHERE key = 'seed'", "seeds_ok"),
        ("server.db", commitment_becomes(2), "seeds_ok"),
        (BOOK, "UPDATE samples SET content = zeroblob(16) WHERE client = 2", "data_ok"),
        (BOOK, "UPDATE clients SET root = zeroblob(32) WHERE client = 2", "data_ok"),
        (BOOK, "UPDATE part SET root = zeroblob(32)", "data_ok"),
        (BOOK, "DELETE FROM samples WHERE " + FIRST_OF_2, "data_ok"),
        ("server.db", "UPDATE server SET value = zeroblob(32) WHERE key = 'tree_key'", "data_ok"),
        ("uses.db", "UPDATE first_uses SET step = 1 WHERE step = 2", "draws_ok"),
        ("uses.db", "DELETE FROM first_uses WHERE step = 1", "draws_ok"),
        ("uses.db", "UPDATE content SET digest = zeroblob(32)", "draws_ok"),
        ("uses.db", "UPDATE witnesses SET witness = zeroblob(40)", "witnesses_ok"),
        ("server.db", "UPDATE first_rounds SET round = 5 WHERE round = 1", "draws_ok"),
        ("server.db", "UPDATE rounds SET model = (SELECT model FROM rounds WHERE round = 1) WHERE round = 2",
         "bitwise_equal"),
        ("record.db", "DELETE FROM events WHERE sequence = 1", "chain_ok"),
        ("record.db", "UPDATE events SET hash = zeroblob(32) WHERE sequence = 2", "chain_ok"),
        ("record.db", "UPDATE events SET body = 'nonsense' WHERE sequence = 2", "chain_ok"),
        ("record.db", "UPDATE events SET body = '[]' WHERE sequence = 2", "chain_ok"),
    ],
)  # fmt: skip
def test_verify_fails_on_altered_database(trained: Path, file: str, sql: str, broken: str) -> None:
    alter(trained, file_in(trained, file), sql)
    result = call("verify", trained, "--json")
    assert result.code == 1, result
    assert result.json["ok"] is result.json[broken] is False
    assert result.error["message"]


def test_verify_fails_if_a_book_never_had_a_used_sample(trained: Path) -> None:
    """The roots in the book fit its content: only the replay shows that the models are those with the sample."""
    with run_directory.reading(trained) as found:
        client = next(iter(found.server.first_rounds()))
        used = next(iter(found.clients.first_steps(client)))
        key, place = found.server.tree_key, found.clients.books.path_of(client)
    alter(trained, "uses.db", f"DELETE FROM first_uses WHERE client = {client} AND sample = {used}")
    alter(trained, "uses.db", "DELETE FROM content")
    before = place.read_bytes()
    books = Books(trained, key)
    books.remove([RemoveOrder(client, (used,))])
    books.close()
    assert place.read_bytes() != before
    result = call("verify", trained, "--json")
    assert result.code == 1, result
    assert (result.json["seeds_ok"], result.json["data_ok"], result.json["models_ok"]) == (True, True, True)
    assert result.json["rounds_replayed"] == ROUNDS
    assert result.json["ok"] is result.json["bitwise_equal"] is False


GARBAGE = [
    ("server.db", "UPDATE server SET value = 'x' WHERE key = 'rounds_done'"),
    ("server.db", "DELETE FROM server WHERE key = 'seed'"),
    ("server.db", "UPDATE roster SET clients = 1.5"),
    ("server.db", "DELETE FROM rounds"),
    (BOOK, "DELETE FROM clients WHERE client = 2"),
    (BOOK, "UPDATE samples SET sample = 'abc' WHERE " + FIRST_OF_2),
    ("uses.db", "UPDATE first_uses SET step = 'x' WHERE step = 1"),
    ("uses.db", "DROP TABLE first_uses"),
    ("record.db", "INSERT INTO intents VALUES ('b-1', 'accepted', 1, x'00')"),
    ("record.db", "DROP TABLE events"),
    *slowly(
        ("server.db", "UPDATE server SET value = 99 WHERE key = 'rounds_done'"),
        ("server.db", "UPDATE server SET value = -1 WHERE key = 'rounds_done'"),
        ("server.db", "UPDATE server SET value = x'00' WHERE key = 'seed'"),
        ("server.db", "UPDATE server SET value = 'text' WHERE key = 'seed'"),
        ("server.db", "UPDATE roster SET clients = x'ff'"),
        ("server.db", "UPDATE first_rounds SET round = 'x'"),
        ("server.db", "UPDATE rounds SET model = '../../etc/passwd'"),
        ("server.db", "DROP TABLE rounds"),
        ("server.db", "DELETE FROM server WHERE key = 'tree_key'"),
        ("server.db", "UPDATE server SET value = 'x' WHERE key = 'tree_key'"),
        ("server.db", "UPDATE server SET value = zeroblob(32) WHERE key = 'tree_key'"),
        (BOOK, "UPDATE clients SET client = 5 WHERE client = 2"),
        (BOOK, "UPDATE samples SET sample = 99999 WHERE " + FIRST_OF_2),
        (BOOK, "DELETE FROM samples WHERE client = 2"),
        (BOOK, "UPDATE part SET number = 99"),
        ("uses.db", "UPDATE first_uses SET client = -5"),
        ("uses.db", "UPDATE first_uses SET sample = sample + 0.5 WHERE step = 1"),
        ("uses.db", "UPDATE first_uses SET step = 99999"),
        ("uses.db", "UPDATE witnesses SET witness = 'x'"),
        ("uses.db", "UPDATE witnesses SET round = 'x' WHERE round = 1"),
        ("uses.db", "DELETE FROM witnesses"),
        ("uses.db", "UPDATE content SET digest = 'x'"),
        ("uses.db", "DROP TABLE content"),
        ("record.db", "DELETE FROM record"),
        ("record.db", "UPDATE record SET value = 'x' WHERE key = 'pseudonym_key'"),
        ("record.db", "INSERT INTO intents VALUES ('b-1', 'nonsense', 1, x'00')"),
        ("metrics.db", "UPDATE metrics SET count = 0"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("file", "sql"), GARBAGE)
def test_no_traceback_whatever_is_in_the_databases(trained: Path, tmp_path: Path, file: str, sql: str) -> None:
    """Damage that SQLite cannot see: every command either works or says in one line what is wrong."""
    alter(trained, file_in(trained, file), sql)
    problems = []
    for arguments in (
        ("status", trained), ("clients", trained), ("clients", trained, "--client", "2"), ("state", trained),
        ("verify", trained), ("export", trained, tmp_path / "model.pt"), ("doctor", trained),
        ("forget", trained, "--client", "2", "--dry-run"), ("train", trained), ("forget", trained, "--client", "2"),
    ):  # fmt: skip
        try:
            result = call(*arguments, "--json")
        except Exception as error:  # noqa: BLE001 (that is what is looked for)
            problems.append(f"{arguments[0]}: {type(error).__name__}: {error}")
            continue
        if result.code:
            assert result.error["message"]
    assert problems == []


@pytest.mark.parametrize("file", [*DATABASES, "plan.toml"])
def test_no_traceback_whatever_byte_is_flipped(trained: Path, tmp_path: Path, file: str) -> None:
    file = file_in(trained, file)
    data, problems = (trained / file).read_bytes(), []
    chance = np.random.default_rng(5)
    for number in range(4):
        run = copy(trained, tmp_path / f"run{number}")
        flipped = bytearray(data)
        place = int(chance.choice(np.flatnonzero(np.frombuffer(data, np.uint8))))
        flipped[place] ^= int(chance.integers(1, 256))
        (run / file).write_bytes(flipped)
        if number % 2:
            with contextlib.suppress(sqlite3.Error):
                alter(run, file, "SELECT 1")
        for command in ("status", "state", "verify", "train", "doctor"):
            try:
                result = call(command, run, "--json")
            except Exception as error:  # noqa: BLE001 (that is what is looked for)
                problems.append(f"byte {place}, {command}: {type(error).__name__}: {error}")
                continue
            assert result.code == 0 or result.error["message"]
    assert problems == []


# Newer versions


@pytest.mark.parametrize("name", DATABASES)
def test_a_database_of_a_newer_version(trained: Path, name: str) -> None:
    name = file_in(trained, name)
    if name.endswith(".book"):
        data = (trained / name).read_bytes()
        (trained / name).write_bytes(data[:15] + b"9" + data[16:])
        take_off_seals(trained)
    else:
        alter(trained, name, "PRAGMA user_version = 99")
    before = everything_of(trained)
    for command in ("train", "verify", "state"):
        error = refused(7, "run-too-new", command, trained)
        assert name in error["message"]
        assert "upgrade" in error["hint"]
    assert everything_of(trained) == before


def test_a_plan_of_a_newer_version(trained: Path) -> None:
    plan = trained / "plan.toml"
    plan.write_text(plan.read_text().replace(f"format = {FORMAT}", "format = 99"))
    for command in ("status", "train", "verify"):
        error = refused(7, "run-too-new", command, trained)
        assert "upgrade" in error["hint"]
    assert str(trained) in refused(7, "run-too-new", "state", trained)["message"]


@pytest.mark.parametrize("earlier", range(1, FORMAT))
def test_a_run_made_by_an_earlier_version(trained: Path, earlier: int) -> None:
    plan = trained / "plan.toml"
    plan.write_text(plan.read_text().replace(f"format = {FORMAT}", f"format = {earlier}"))
    for command in ("status", "train", "verify", "state"):
        error = refused(18, "run-too-old", command, trained)
        by = "FedForget 0.2, or by a development version of 0.3"
        assert error["message"] == f"{trained} was made by {by}: make it anew"


def test_errors_are_one_json_object_on_one_line(tmp_path: Path) -> None:
    result = call("status", tmp_path, "--json")
    assert json.loads(result.err).keys() == {"error"}
    assert json.loads(result.err)["error"].keys() == {"code", "message", "hint"}
    assert result.err.count("\n") == 1


def test_lack_of_memory_is_named(unchanged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*given: object, **named: object) -> None:
        raise MemoryError

    monkeypatch.setattr("fedforget.builtin.engine_of", short)
    assert "workers" in refused(14, "out-of-memory", "train", unchanged)["hint"]
