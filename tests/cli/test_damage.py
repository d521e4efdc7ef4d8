"""Damage: whatever byte of whatever file is flipped or lost, it is noticed and named, and nothing wrong is served."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from fedforget import Plan, ServerOptimizer
from fedforget.algorithm.plan import Keep
from fedforget.builtin import open_run
from fedforget.disk.door import Door
from fedforget.disk.files import digest
from fedforget.disk.lock import RunLock
from fedforget.errors import RunBusy
from fedforget.store import run_directory
from fedforget.store.names import BOOKS
from tests.cli.commandline import (
    WORLD,
    Result,
    book_of,
    call,
    copy,
    empty_book,
    everything_of,
    function_of,
    good,
    good_json,
    refused,
)
from tests.helpers import scratch, take_off_seals
from tests.requests import world
from tests.store.book_sql import rows_of_book
from tests.tally import tally

pytestmark = pytest.mark.slow  # a minute of it in all

ROUNDS = 3
GONE, NEXT = 3, 0  # the client that was forgotten, and the one that will be: first drawn in the last round
OWN_BOOK, ANOTHER_BOOK, EMPTY_BOOK = "book of client 0", "book of client 2", "book without clients"
CLIENT_BOOKS = (OWN_BOOK, ANOTHER_BOOK, EMPTY_BOOK)  # what forgetting NEXT changes; what is listed; what has no content
DATABASES = ("server.db", "uses.db", "metrics.db", *CLIENT_BOOKS, "record.db")
FILES = ("plan.toml", *DATABASES, "record.keys", "seals", "receipt-key.pem", "receipt-key.pub.pem")
MODELS = tuple(f"model of round {round_}" for round_ in range(ROUNDS + 1))
START = MODELS[ROUNDS - 1]  # where forgetting NEXT begins
INLINE = ("--federation", "inline")
READ_NO_BOOK = ("state", "export", "receipt")  # their roots are in the seals
DOCUMENTED = range(1, 14)
REGIONS = 12
CUTS = ("cut to 0", "cut to 1", "cut to half", "cut by 1")
EVERY_BIT, ONE_BIT = 0xFF, 0x01


@dataclass(frozen=True)
class Truth:
    """A run, and what its commands say and make while it is whole."""

    run: Path
    request: str
    models: dict[int, str]
    books: dict[str, str]
    answers: dict[str, Any]
    exported: bytes
    forgot: dict[str, bytes]

    def place_of(self, what: str) -> str:
        """Of a file in the run; models are called by their rounds, books by their clients."""
        if what.startswith("model of round"):
            return f"models/{self.models[int(what.rpartition(' ')[2])]}.safetensors"
        return self.books.get(what, what)

    def reads(self, command: str, what: str) -> bool:
        """Whether a command that looks must read this book. ``forget`` reads all, since it recomputes rounds here."""
        listed = self.books[what] == self.books[ANOTHER_BOOK] if command == "samples" else command not in READ_NO_BOOK
        return what in self.books and listed


@pytest.fixture(scope="module", autouse=True)
def commands_made_once() -> Iterator[None]:
    """Making the program takes longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="module")
def truth() -> Iterator[Truth]:
    with scratch() as directory:
        run = directory / "run"
        good("train", *WORLD, *INLINE, "--rounds", str(ROUNDS), "--out", run)
        good("forget", run, *INLINE, "--client", str(GONE))
        (receipt,) = good_json("status", run)["receipts"]
        open_run(run).signed_receipt(receipt["id"])
        exported = directory / "model.safetensors"
        commands = looking(run, receipt["id"], exported)
        answers = {name: answer(good(*command, "--json")) for name, command in commands.items()}
        answers["train"] = answer(good("train", copy(run, directory / "trained"), *INLINE, "--json"))
        good("forget", copy(run, directory / "forgot"), *INLINE, "--client", str(NEXT))
        with run_directory.reading(run) as parts:
            models = parts.server.kept()
            assert parts.server.first_round(NEXT) == ROUNDS
        books = {f"book of client {client}": book_of(run, client) for client in (NEXT, 2)}
        books[EMPTY_BOOK] = empty_book(run)
        assert len(set(books.values())) == len(CLIENT_BOOKS)
        assert set(books) == set(CLIENT_BOOKS)
        yield Truth(
            run, receipt["id"], models, books, answers, exported.read_bytes(), function_of(directory / "forgot")
        )


@pytest.fixture
def run(truth: Truth, scratch_path: Path) -> Path:
    return copy(truth.run, scratch_path / "run")


def looking(run: Path, request: str, exported: Path) -> dict[str, tuple[str | Path, ...]]:
    """Every command that serves something and changes nothing that it serves."""
    return {
        "status": ("status", run),
        "clients": ("clients", run),
        "samples": ("clients", run, "--client", "2"),
        "state": ("state", run),
        "receipt": ("receipt", "show", run, request),
        "verify": ("verify", run, *INLINE),
        "export": ("export", run, exported),  # the last one: the record notes it
    }


def answer(result: Result) -> dict[str, Any]:
    """Without the places, which differ from copy to copy."""
    return {key: value for key, value in result.json.items() if key not in ("run", "file")}


# Every region of every file


def flips(data: bytes, regions: int = REGIONS) -> list[str]:
    """One in each region of a file, and as many spread over the bytes that are not zero: databases are half empty."""
    everywhere, filled = np.arange(len(data)), np.flatnonzero(np.frombuffer(data, np.uint8))
    places = {
        int(part[place]) for part in (everywhere, filled) for place in np.linspace(0, len(part) - 1, regions, dtype=int)
    }
    return [f"flipped at {place}" for place in sorted(places)]


def damage(path: Path, how: str, mask: int = EVERY_BIT) -> None:
    data = path.read_bytes()
    if how.startswith("flipped at"):
        place = int(how.rpartition(" ")[2])
        path.write_bytes(data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :])
    else:
        length = dict(zip(CUTS, (0, 1, len(data) // 2, len(data) - 1), strict=True))[how]
        path.write_bytes(data[:length])


def mistakes(truth: Truth, what: str, hows: list[str], mask: int) -> list[str]:
    """What commands say and do wrong about a file, over all ways to damage it."""
    found = []
    for how in hows:
        with scratch() as directory:
            run = copy(truth.run, directory / "run")
            damage(run / truth.place_of(what), how, mask)
            wrong = [f"{what} {how}: {mistake}" for mistake in mistakes_about(truth, run, what)]
        found += wrong
        if not wrong:
            tally(f"damage/{'models' if what in MODELS else 'clients-*.book' if what in CLIENT_BOOKS else what}")
    return found


def _of_command(truth: Truth, name: str, command: tuple[str | Path, ...], what: str, *, missing: bool) -> Iterator[str]:
    result = call(*command, "--json")
    yield from _of_answer(truth, name, result, truth.place_of(what))
    if what in CLIENT_BOOKS and (result.code != 0) != (truth.reads(name, what) or missing):
        yield f"{name}: exit {result.code}, although it {'reads' if result.code == 0 else 'need not read'} the book"


def mistakes_about(truth: Truth, run: Path, what: str) -> Iterator[str]:
    damaged, before = truth.place_of(what), everything_of(run)
    missing = damaged not in before
    yield from _of_doctor(truth, run, damaged)
    exported = run.parent / "model.safetensors"
    commands = looking(run, truth.request, exported)
    export = commands.pop("export")
    for name, command in commands.items():
        yield from _of_command(truth, name, command, what, missing=missing)
    after = everything_of(run)
    healed = damaged == "receipt-key.pub.pem" and after == everything_of(truth.run)  # it derives from the other half
    if after != before and not healed:
        yield "looking has changed the run"
    yield from _of_command(truth, "export", export, what, missing=missing)
    if exported.exists() and exported.read_bytes() != truth.exported:
        yield "export: a wrong model"
    result = call("train", run, *INLINE, "--json")
    yield from _of_answer(truth, "train", result, damaged)
    if what in CLIENT_BOOKS and result.code == 0:
        yield "train: does not read the book"
    before = everything_of(run)
    result = call("forget", run, *INLINE, "--client", str(NEXT), "--json")
    if result.code:
        yield from _of_answer(truth, "forget", result, damaged)
        if everything_of(run) != before and what != START:  # which is needed after the request is accepted
            yield "forget: changed the run and failed"
    elif what in CLIENT_BOOKS:
        yield "forget: recomputes rounds and does not read the book"
    elif differences(function_of(run), truth.forgot) - {damaged}:
        yield "forget: the run is not what the whole one becomes"


def _of_doctor(truth: Truth, run: Path, damaged: str) -> Iterator[str]:
    result = call("doctor", run, "--json")
    if result.code == 1:
        if Path(damaged).name not in result.error["message"]:
            yield f"doctor: doesn't name it: {result.error['message']}"
    else:
        yield f"doctor: exit {result.code}"


def _of_answer(truth: Truth, name: str, result: Result, damaged: str) -> Iterator[str]:
    if result.code == 0:
        if answer(result) != truth.answers[name]:
            yield f"{name}: another answer"
        return
    message = result.error["message"]
    if result.code not in DOCUMENTED:
        yield f"{name}: exit {result.code}: {message}"
    elif Path(damaged).name not in message:
        yield f"{name}: exit {result.code} doesn't name the file: {message}"
    if result.out and name != "verify":
        yield f"{name}: says something, and fails"


def differences(one: dict[str, bytes], other: dict[str, bytes]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


@pytest.mark.parametrize("what", [*FILES, MODELS[0], START, MODELS[-1]])
def test_damage_is_noticed_and_named(truth: Truth, what: str) -> None:
    hows = flips((truth.run / truth.place_of(what)).read_bytes(), 3)
    assert mistakes(truth, what, [*hows[:3], "cut to 0", "cut to half"], EVERY_BIT) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "mask"),
    [(what, mask) for what in (*FILES, *MODELS) for mask in (EVERY_BIT, ONE_BIT)],
)
def test_damage_anywhere_is_noticed_and_named(truth: Truth, what: str, mask: int) -> None:
    hows = flips((truth.run / truth.place_of(what)).read_bytes())
    assert mistakes(truth, what, [*hows, *CUTS] if mask == EVERY_BIT else hows, mask) == []


def test_missing_file_is_reported_and_not_created(truth: Truth, run: Path) -> None:
    """Lost is not empty."""
    for what in (*DATABASES, "record.keys", "plan.toml"):
        place = run / truth.place_of(what)
        kept = place.read_bytes()
        place.unlink()
        assert list(mistakes_about(truth, run, what)) == []
        assert not place.exists()
        place.write_bytes(kept)


# Damage that is hard to tell


def test_missing_models_directory_raises_run_damaged(truth: Truth, run: Path) -> None:
    shutil.rmtree(run / "models")
    for command in (("train", run), ("forget", run, "--client", "2"), ("run-pending", run)):
        assert str(run / "models") in refused(6, "run-damaged", *command)["message"]


def test_directory_with_a_temporary_name_is_ignored(run: Path) -> None:
    (run / "x.tmp").mkdir()
    good("run-pending", run)


def test_record_of_another_time_is_reported_as_mismatch(truth: Truth, run: Path) -> None:
    before = (run / "record.db").read_bytes()
    good("forget", run, "--client", "2")
    (run / "record.db").write_bytes(before)
    for command in (("train", run), ("status", run), ("state", run)):
        assert f"{run / 'record.db'} is damaged" in refused(6, "run-damaged", *command)["message"]
    bad = bad_checks(run)
    assert "not what it was" in bad["record.db"]["detail"]
    assert not {"server.db", "uses.db", *BOOKS} & bad.keys()


@pytest.mark.parametrize("what", DATABASES)
def test_missing_database_is_reported_as_missing(truth: Truth, run: Path, what: str) -> None:
    place = run / truth.place_of(what)
    place.unlink()
    for command in ("train", "status", "state"):
        assert refused(6, "run-damaged", command, run)["message"] == f"{place} is missing"


def test_another_dataset_in_the_plan(truth: Truth, run: Path) -> None:
    plan = run / "plan.toml"
    plan.write_bytes(plan.read_bytes().replace(b'"digits"', b'"dights"'))
    assert list(mistakes_about(truth, run, "plan.toml")) == []


def test_flipped_byte_in_the_schema_is_reported(truth: Truth, run: Path) -> None:
    place = (run / "record.db").read_bytes().index(b"WITHOUT ROWID") + len(b"WITHOUT ROWI")
    damage(run / "record.db", f"flipped at {place}")
    assert list(mistakes_about(truth, run, "record.db")) == []


def test_a_renamed_column_is_noticed_before_anything_is_done(truth: Truth, run: Path) -> None:
    place = (run / "record.db").read_bytes().index(b"recomputed_steps INTEGER")
    damage(run / "record.db", f"flipped at {place}", ONE_BIT)
    assert list(mistakes_about(truth, run, "record.db")) == []


@pytest.mark.parametrize(
    "sealed",
    ["uses.db", "server.db", *CLIENT_BOOKS],
)
def test_a_damaged_seal_is_named(truth: Truth, run: Path, sealed: str) -> None:
    seal = digest((run / truth.place_of(sealed)).read_bytes())
    place = (run / "seals").read_bytes().index(seal.encode())
    damage(run / "seals", f"flipped at {place}", ONE_BIT)
    assert list(mistakes_about(truth, run, "seals")) == []


def test_key_of_another_run_does_not_sign(truth: Truth, run: Path) -> None:
    exchange_key(run)
    assert list(mistakes_about(truth, run, "receipt-key.pem")) == []


def test_a_key_of_an_unknown_kind(truth: Truth, run: Path) -> None:
    place = (run / "receipt-key.pem").read_bytes().index(b"K2VwBCIEI")  # in the name of its kind
    damage(run / "receipt-key.pem", f"flipped at {place}", ONE_BIT)
    assert list(mistakes_about(truth, run, "receipt-key.pem")) == []


def test_lost_key_is_not_generated_again(truth: Truth, run: Path) -> None:
    (run / "receipt-key.pem").unlink()
    assert list(mistakes_about(truth, run, "receipt-key.pem")) == []


def test_altered_request_in_the_inbox_is_refused(run: Path) -> None:
    with RunLock(run):
        good("forget", run, "--client", "0", "--defer")
    (left,) = (run / "inbox").iterdir()
    left.write_bytes(left.read_bytes().replace(b"[[0, null]]", b"[[1, null]]"))
    assert call("run-pending", run, "--all", *INLINE).code == 6


def test_a_torn_request_in_the_inbox_is_named(run: Path) -> None:
    with RunLock(run):
        good("forget", run, "--client", "0", "--defer")
    (left,) = (run / "inbox").iterdir()
    assert not bad_checks(run)
    damage(left, "cut by 1")
    for command in (("train", run), ("run-pending", run, "--all"), ("forget", run, "--client", "2")):
        assert str(left) in refused(6, "run-damaged", *command, *INLINE)["message"]
    assert str(left) in bad_checks(run)[f"inbox/{left.name}"]["detail"]


def exchange_key(run: Path) -> None:
    """One letter of the secret: still a key, but another one."""
    key = run / "receipt-key.pem"
    lines = key.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1][:40] + (b"f" if lines[1][40:41] != b"f" else b"g") + lines[1][41:]
    key.write_bytes(b"".join(lines))


# The doctor


def bad_checks(run: Path, *options: str) -> dict[str, dict[str, Any]]:
    result = call("doctor", run, *options, "--json")
    assert result.code == (not result.json["ok"])
    return {check["name"]: check for check in result.json["checks"] if not check["ok"]}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_doctor_does_not_report_system_errors_as_damage(
    run: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = Door.open

    def refuse(self: Door, name: str, *rest: Any) -> int:
        if name in ("plan.toml", "receipt-key.pem") or name.endswith(".safetensors"):
            raise OSError(number, os.strerror(number), name)
        return real(self, name, *rest)

    monkeypatch.setattr(Door, "open", refuse)
    found = bad_checks(run)
    assert {"plan.toml", "receipt-key.pem"} <= set(found)
    for check in found.values():
        assert os.strerror(number) in check["detail"]
        assert "fix the cause" in check["remedy"]
        assert "backup" not in check["remedy"]


@pytest.mark.parametrize(
    ("what", "lost"),
    [
        ("plan.toml", "the plan"),
        ("server.db", "the server's seed and the roster"),
        ("uses.db", "the clients' first uses"),
        *((book, "the clients' seeds and sample ids") for book in CLIENT_BOOKS),
        ("record.db", "the audit trail"),
        ("record.keys", "keys"),
        ("receipt-key.pem", "still verify with the public key"),
        (MODELS[0], "the initial model"),
    ],
)
def test_doctor_names_files_that_cannot_be_rebuilt(truth: Truth, run: Path, what: str, lost: str) -> None:
    (run / truth.place_of(what)).unlink()
    before = everything_of(run)
    check = bad_checks(run, "--rebuild")[what if what in MODELS else truth.place_of(what)]
    assert truth.place_of(what) in check["detail"]
    assert check["rebuildable"] is False
    assert "backup" in check["remedy"]
    assert "cannot be rebuilt" in check["remedy"]
    assert lost in check["remedy"]
    assert everything_of(run) == before


def test_doctor_names_files_that_can_be_rebuilt(truth: Truth, run: Path) -> None:
    for what in (MODELS[2], "receipt-key.pub.pem"):
        (run / truth.place_of(what)).unlink()
    bad = bad_checks(run)
    assert set(bad) == {MODELS[2], "receipt-key.pub.pem"}
    assert all(check["rebuildable"] and "--rebuild" in check["remedy"] for check in bad.values())
    plain = call("doctor", run)
    for told in (plain.out, plain.err):
        assert "from round 1" in told
        assert MODELS[2] in told


def test_doctor_reports_every_damaged_file(truth: Truth, run: Path) -> None:
    """Each damaged file is named, whatever else is damaged."""
    (run / "inbox").mkdir()
    (run / "inbox" / "r-1.json").write_text("{")
    damaged = {*(truth.place_of(what) for what in (*FILES, *MODELS)), *BOOKS}
    for name in damaged:
        damage(run / name, "cut to half")
    before = everything_of(run)
    bad = bad_checks(run)
    assert set(bad) == {*damaged, "inbox/r-1.json"}
    assert not any(check["rebuildable"] for check in bad.values())
    assert "submit the request again" in bad["inbox/r-1.json"]["remedy"]
    assert everything_of(run) == before


def test_doctor_reports_a_renamed_column(run: Path) -> None:
    place = (run / "record.db").read_bytes().index(b"recomputed_steps INTEGER")
    damage(run / "record.db", f"flipped at {place}", ONE_BIT)
    assert str(run / "record.db") in bad_checks(run)["record.db"]["detail"]


@pytest.mark.parametrize(
    ("file", "sql"),
    [
        (ANOTHER_BOOK, "SELECT seed FROM clients WHERE client = 2"),
        ("server.db", "SELECT substr(commitments, 65, 32) FROM roster"),
        ("server.db", "SELECT value FROM server WHERE key = 'seed'"),
    ],
)
def test_doctor_reports_an_altered_seed_after_a_crash(truth: Truth, run: Path, file: str, sql: str) -> None:
    """When there are no seals."""
    file = truth.place_of(file)
    take_off_seals(run)
    if file.endswith(".book"):
        ((value,),) = rows_of_book(run / file, sql)
    else:
        with contextlib.closing(sqlite3.connect(run / file)) as database:
            ((value,),) = database.execute(sql)
    damage(run / file, f"flipped at {(run / file).read_bytes().index(value)}", ONE_BIT)
    check = bad_checks(run)["seeds"]
    assert str(run / file) in check["detail"]
    assert check["rebuildable"] is False
    assert "cannot be rebuilt" in check["remedy"]


def change(database: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(sql)


@pytest.mark.parametrize("what", [*DATABASES, "plan.toml"])
def test_a_model_cannot_be_rebuilt_from_a_damaged_run(truth: Truth, run: Path, what: str) -> None:
    damage(run / truth.place_of(what), "cut to half")
    damage(run / truth.place_of(MODELS[2]), "cut to half")
    before = everything_of(run)
    (model,) = (check for name, check in bad_checks(run, "--rebuild").items() if name.startswith("model"))
    assert model["rebuildable"] is False
    assert "restore the other files first" in model["remedy"]
    assert everything_of(run) == before


def test_doctor_reports_a_key_readable_by_others(run: Path) -> None:
    key = run / "receipt-key.pem"
    key.chmod(0o644)
    (check,) = bad_checks(run).values()
    assert str(key) in check["detail"]
    assert "chmod 600" in check["remedy"]


def test_doctor_reports_a_mismatched_key_pair(run: Path) -> None:
    """The record knows by its id which key it was; nothing is replaced."""
    exchange_key(run)
    before = everything_of(run)
    (check,) = bad_checks(run, "--rebuild").values()
    assert "receipt-key.pem is not the key of this run" in check["detail"]
    assert check["rebuildable"] is False
    assert everything_of(run) == before


def test_doctor_on_a_directory_without_run_says_so(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing"):
        assert "holds no run" in bad_checks(place)["run"]["detail"]
    assert list(tmp_path.iterdir()) == []


# Rebuilding


@pytest.mark.parametrize("lost", [(1,), (ROUNDS,), (1, 2), (1, 2, ROUNDS)], ids=str)
@pytest.mark.parametrize("how", ["deleted", "cut to half", "flipped at 5000"])
def test_models_are_rebuilt_byte_for_byte(truth: Truth, run: Path, lost: tuple[int, ...], how: str) -> None:
    for round_ in lost:
        path = run / truth.place_of(MODELS[round_])
        path.unlink() if how == "deleted" else damage(path, how)
    told = good_json("doctor", run, "--rebuild", *INLINE)
    assert told["ok"] is True
    assert (told["rebuilt"], told["not_rebuilt"]) == ([f"the model of round {round_}" for round_ in lost], [])
    assert everything_of(run) == everything_of(truth.run)


def test_worker_processes_rebuild_the_same(truth: Truth, run: Path) -> None:
    for model in MODELS[1:]:
        (run / truth.place_of(model)).unlink()
    assert f"rebuilt: the {MODELS[1]}" in good("doctor", run, "--rebuild", "--workers", "2").out
    assert everything_of(run) == everything_of(truth.run)


def test_the_public_key_is_derived_again(truth: Truth, run: Path) -> None:
    damage(run / "receipt-key.pub.pem", "cut to half")
    assert good_json("doctor", run, "--rebuild")["rebuilt"] == ["the public half of receipt-key.pem"]
    assert everything_of(run) == everything_of(truth.run)


def test_no_public_key_is_derived_from_a_key_that_is_not_the_runs(truth: Truth, run: Path) -> None:
    exchange_key(run)
    for what in ("receipt-key.pub.pem", truth.place_of(MODELS[2])):  # the model gives something to rebuild
        (run / what).unlink()
    told = call("doctor", run, "--rebuild", *INLINE, "--json").json
    assert told["rebuilt"] == [f"the {MODELS[2]}"]
    assert "not the key of this run" in told["not_rebuilt"][0]
    assert not (run / "receipt-key.pub.pem").exists()


def test_rebuild_of_intact_run_rebuilds_nothing(truth: Truth, run: Path) -> None:
    told = good_json("doctor", run, "--rebuild")
    assert (told["rebuilt"], told["not_rebuilt"]) == ([], [])
    assert everything_of(run) == everything_of(truth.run)
    refused(3, "invalid-input", "doctor", "--rebuild")


def test_models_after_a_lost_initial_model(truth: Truth, run: Path) -> None:
    """Round 1 has nothing to start from any more; round 3 has."""
    for round_ in (0, 1, ROUNDS):
        (run / truth.place_of(MODELS[round_])).unlink()
    result = call("doctor", run, "--rebuild", *INLINE, "--json")
    assert result.code == 1
    assert result.json["rebuilt"] == [f"the model of round {ROUNDS}"]
    assert len(result.json["not_rebuilt"]) == 2
    assert set(bad_checks(run)) == {MODELS[0], MODELS[1]}
    lost = {truth.place_of(MODELS[0]), truth.place_of(MODELS[1])}
    assert differences(everything_of(run), everything_of(truth.run)) == lost


def test_a_replay_that_gives_another_model_is_not_written(run: Path) -> None:
    change(run / "server.db", f"UPDATE rounds SET model = '{'ab' * 32}' WHERE round = 2")
    take_off_seals(run)
    before = everything_of(run)
    result = call("doctor", run, "--rebuild", *INLINE, "--json")
    assert result.code == 1
    assert result.json["rebuilt"] == []
    (told,) = result.json["not_rebuilt"]
    assert "round 2 is not rebuilt: replaying from round 1 gives another one" in told
    assert everything_of(run) == before


def test_doctor_and_rebuild_on_busy_run_raise_run_busy(truth: Truth, run: Path) -> None:
    (run / truth.place_of(MODELS[1])).unlink()
    opened = open_run(run)
    with RunLock(run):
        for more in ((), ("--rebuild",)):
            assert refused(5, "run-busy", "doctor", run, *more)["hint"]
        with pytest.raises(RunBusy):
            opened.rebuild()
    assert not (run / truth.place_of(MODELS[1])).exists()


def test_request_stopped_by_a_lost_model_is_finished_after_rebuilding(truth: Truth, run: Path) -> None:
    path = run / truth.place_of(START)
    damage(path, "cut to half")
    assert path.name in refused_once(6, "forget", run, *INLINE, "--client", str(NEXT))
    told = call("doctor", run, "--rebuild", *INLINE, "--json")
    assert told.json["rebuilt"] == [f"the {START}"]
    if told.code:  # only that the request is still to be finished
        assert set(bad_checks(run)) == {"requests"}
    good("forget", run, *INLINE, "--client", str(NEXT))
    assert function_of(run) == truth.forgot


def refused_once(code: int, *arguments: str | Path) -> str:
    result = call(*arguments, "--json")
    assert result.code == code, result
    return result.error["message"]


@pytest.mark.parametrize("keep", ["every", "ends", 2])
def test_rebuild_in_python_with_own_data_and_fedadam(tmp_path: Path, keep: Keep) -> None:
    plan = Plan(3, 3, 2, 6, server=ServerOptimizer("fedadam", lr=0.01), keep=keep)
    opened = world.opened(tmp_path / "run", plan)
    opened.train()
    opened.forget(client=2)
    before = everything_of(tmp_path / "run")
    with run_directory.reading(tmp_path / "run") as parts:
        models = parts.server.kept()
        for round_ in list(models)[1:]:
            parts.server.models.path(models[round_]).unlink()
    found = opened.rebuild()
    assert (len(found.rebuilt), found.not_rebuilt) == (len(models) - 1, [])
    assert everything_of(tmp_path / "run") == before
