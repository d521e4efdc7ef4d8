"""The commands of a client of a deployment."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedforget.client_side import ClientState
from fedforget.client_side.directory import reading
from fedforget.client_side.enrolment import Enrolment
from fedforget.federation import parcels
from tests.cli.commandline import call, good, good_json, refused
from tests.client_side.deployment import ask, plan_file
from tests.helpers import scratch
from tests.test_rooms import loaded_after

OWN = """
import pathlib
def samples(client):
    files = sorted(pathlib.Path("DIRECTORY").iterdir())
    return {path.name: ([float(path.read_text())], int(len(client))) for path in files}
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module of the user's own and its data: one file per sample."""
    with scratch() as directory:
        (directory / "data").mkdir()
        for number in range(5):
            (directory / "data" / f"s{number}").write_text(str(number))
        (directory / f"mine_{directory.name.replace('-', '_')}.py").write_text(
            OWN.replace("DIRECTORY", str(directory / "data"))
        )
        monkeypatch.chdir(directory)
        yield directory


@pytest.fixture
def state(place: Path) -> Path:
    module = next(place.glob("mine_*.py")).stem
    good(
        "client",
        "init",
        "--state-dir",
        place / "c",
        "--client",
        "ward",
        "--data",
        f"{module}:samples",
        "--out",
        "e.json",
    )
    return place / "c"


def on(state: Path, command: str, *options: str | Path) -> tuple[str | Path, ...]:
    return ("client", command, "--state-dir", state, *options)


def test_function_is_not_called_if_another_account_may_have_named_it(state: Path) -> None:
    identity = state / "client.toml"
    identity.chmod(0o666)
    error = refused(3, "invalid-input", *on(state, "sync", "--dry-run"))
    assert "another account" in error["message"]
    identity.chmod(0o600)
    assert good_json(*on(state, "sync", "--dry-run"))["vanished"] == []


def test_init_writes_the_enrolment(state: Path, place: Path) -> None:
    found = Enrolment.parsed((place / "e.json").read_bytes())
    status = good_json(*on(state, "status"))
    assert (status["client"], status["samples"], status["root"]) == ("ward", 5, found.root.hex())
    good(*on(state, "enrolment", "--out", place / "again.json"))
    assert (place / "again.json").read_bytes() == (place / "e.json").read_bytes()
    refused(3, "invalid-input", *on(state, "enrolment", "--out", state / "e.json"))
    refused(3, "invalid-input", *on(state, "init", "--client", "ward", "--data", "digits"))


def test_samples_are_listed(state: Path) -> None:
    assert good(*on(state, "samples")).out.split() == ["s0", "s1", "s2", "s3", "s4"]
    found = good_json(*on(state, "samples", "--limit", "2"))
    assert (found["client"], found["samples"], found["ids"]) == ("ward", 5, ["s0", "s1"])


def test_init_again_reads_the_samples_anew(state: Path, place: Path) -> None:
    before = good_json(*on(state, "status"))
    (place / "data" / "s0").write_text("7")
    again = on(state, "init", "--again", "--client", "ward", "--out", place / "again.json")
    now = good_json(*again)
    assert now["root"] != before["root"] == Enrolment.parsed((place / "e.json").read_bytes()).root.hex()
    assert now["commitment"] == before["commitment"]
    assert Enrolment.parsed((place / "again.json").read_bytes()).root.hex() == now["root"]
    assert good_json(*on(state, "sync", "--dry-run"))["changed"] == []
    refused(3, "invalid-input", *on(state, "init", "--again", "--client", "other"))


def test_own_data_are_found_from_another_directory(
    state: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert good_json(*on(state, "sync", "--dry-run"))["vanished"] == []


def test_init_on_digits_has_the_samples_of_a_run(place: Path) -> None:
    out = good_json("client", "init", "--state-dir", place / "d", "--client", "3", "--data", "digits", "--clients", "6")
    assert out["samples"] > 100
    assert good_json(*on(place / "d", "sync"))["vanished"] == []
    refused(3, "invalid-input", *on(place / "x", "init", "--client", "99", "--data", "digits", "--clients", "6"))
    refused(3, "invalid-input", *on(place / "x", "init", "--client", "3"))
    refused(3, "invalid-input", *on(place / "x", "init", "--client", "3", "--data", "nothing:here"))


def test_request_and_its_life(state: Path) -> None:
    receipt = good_json(*on(state, "forget", "--sample", "s1", "--sample", "s2", "--basis", "exogenous"))["receipts"]
    assert [(each["sample"], each["state"]) for each in receipt] == [("s1", "accepted"), ("s2", "accepted")]
    assert "nothing is forgotten yet" in good(*on(state, "forget", "--sample", "s1")).out
    refused(3, "unknown-target", *on(state, "forget", "--sample", "s9"))
    refused(3, "invalid-input", *on(state, "forget", "--sample", "s3", "--basis", "whim"))
    assert len(good_json(*on(state, "status"))["open_requests"]) == 2
    client = ClientState(state)
    ask(client, parcels.PLAN, plan=plan_file().encode().decode())
    with reading(state) as found:
        [(handle,), *_] = found.record.database.rows("SELECT handle FROM withdrawals")
    ask(client, parcels.REMOVE, 1, samples=[f"withdrawal:{handle}"])
    refused(3, "invalid-input", *on(state, "receipt", receipt[0]["id"]))
    ask(client, parcels.DONE, 1, handles=[handle], facts={"server_receipt": "r-1", "rounds_done": 2})
    signed = good_json(*on(state, "receipt", receipt[0]["id"], "--out", state.parent / "receipt.json"))
    assert json.loads((state.parent / "receipt.json").read_text()) == signed
    about = json.loads(base64.b64decode(signed["payload"]))["predicate"]
    assert about["server"] == {"server_receipt": "r-1", "rounds_done": 2}
    assert "purged" in good(*on(state, "receipt")).out


def test_sync_by_absence(state: Path, place: Path) -> None:
    (place / "data" / "s0").unlink()
    (place / "data" / "s3").write_text("33")
    (place / "data" / "s7").write_text("7")
    before = good_json(*on(state, "status"))
    found = good_json(*on(state, "sync", "--dry-run"))
    assert (found["vanished"], found["changed"], found["new"], found["of"]) == (["s0"], ["s3"], ["s7"], 5)
    assert good_json(*on(state, "status")) == before
    error = refused(3, "not-confirmed", *on(state, "sync"))
    assert "--confirm 2" in error["hint"]
    done = good_json(*on(state, "sync", "--confirm", "2", "--deadline", "2999-01-01", "--idempotency-key", "k"))
    assert [each["sample"] for each in done["receipts"]] == ["s0", "s3"]
    again = good(*on(state, "sync", "--confirm", "2", "--deadline", "2999-01-01", "--idempotency-key", "k")).out
    assert all(each["id"] in again for each in done["receipts"])
    assert "nothing to do" in good(*on(state, "sync")).out


def test_unmounted_source_erases_nothing(state: Path, place: Path) -> None:
    (place / "data").rename(place / "elsewhere")
    refused(3, "invalid-input", *on(state, "sync", "--confirm", "5"))
    (place / "data").mkdir()
    refused(3, "not-confirmed", *on(state, "sync"))
    assert good_json(*on(state, "status"))["open_requests"] == []


@pytest.mark.parametrize("command", ["status", "leave", "forget --sample s1", "receipt"])
def test_commands_that_compute_nothing_do_not_load_torch(state: Path, command: str) -> None:
    name, *options = command.split()
    program = "import sys\nfrom fedforget.cli import main\nmain(sys.argv[1:])"
    loaded = loaded_after(program, *map(str, on(state, name, *options)))
    assert not loaded & {"torch", "sklearn", "scipy"}


def test_leaving(state: Path) -> None:
    [receipt] = good_json(*on(state, "leave", "--basis", "exogenous"))["receipts"]
    assert (receipt["level"], receipt["state"]) == ("client", "accepted")


def test_audit_with_an_opening(state: Path, place: Path) -> None:
    status = good_json(*on(state, "status"))
    result = good(*on(state, "receipt", "--opening", place / "opening.json"))
    assert "reveals the seed" in result.err
    (place / "plan.toml").write_bytes(plan_file().encode())
    told = ("--commitment", status["commitment"], "--root", status["root"], "--plan", place / "plan.toml")
    audit = ("client", "audit", place / "opening.json", *told)
    found = good_json(*audit, "--sample", "s1", "--rounds", "1,2,3,4,5,6")
    assert (found["used"], found["client"]) == (True, "ward")
    assert good_json(*audit, "--sample", "s1", "--rounds", "")["first_step"] is None
    refused(3, "invalid-input", *audit, "--sample", "s1", "--rounds", "x")
    stranger = ("--sample", "never-there", "--rounds", "1,2,3,4,5,6")
    found = good_json(*audit, *stranger)
    assert (found["under_root"], found["used"], found["would_have_been_used"]) == (False, False, True)
    assert "is not under this root" in good(*audit, *stranger).out
    refused(13, "receipt-refused", *audit, "--sample", "s1", "--rounds", "1", "--root", "00" * 32)
    refused(3, "invalid-input", "client", "audit", place / "plan.toml", *told, "--sample", "s1", "--rounds", "1")


def test_audit_without_the_plan_file_names_it_as_unreadable(state: Path, place: Path) -> None:
    good(*on(state, "receipt", "--opening", place / "opening.json"))
    status = good_json(*on(state, "status"))
    told = ("--commitment", status["commitment"], "--root", status["root"], "--plan", place / "none.toml")
    error = refused(
        3, "invalid-input", "client", "audit", place / "opening.json", *told, "--sample", "1", "--rounds", "1"
    )
    assert error["message"].startswith(f"cannot read {place / 'none.toml'}: No such file")


@pytest.mark.parametrize("command", ["status", "leave", "sync", "receipt"])
def test_directory_of_no_client_is_refused(place: Path, command: str) -> None:
    refused(3, "no-such-run", *on(place, command))
    assert call(*on(place / "nowhere", command)).code == 3


def test_lost_seed_error_names_remedies(state: Path) -> None:
    (state / "client.book").unlink()
    error = refused(6, "run-damaged", *on(state, "status"))
    assert "restore the whole state directory" in error["hint"]


def test_superlink_purge_rewrites_a_database_that_is_in_use(place: Path) -> None:
    """It is made like that of a SuperLink: deleted objects stay in free pages and in the log until the purge."""
    path, secret = place / "state.db", b"an update of an erased client " * 20
    files = (path, path.with_name("state.db-wal"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as superlink:
        superlink.execute("PRAGMA journal_mode=WAL")
        superlink.execute("CREATE TABLE objects (object_id TEXT PRIMARY KEY, content BLOB)")
        superlink.executemany("INSERT INTO objects VALUES (?, ?)", [(str(n), secret) for n in range(50)])
        superlink.execute("DELETE FROM objects")
        assert any(secret in file.read_bytes() for file in files)
        purged = good_json("superlink-purge", path)
        assert purged["database"] == str(path)
        assert purged["bytes_after"] < purged["bytes_before"]
        assert not any(secret in file.read_bytes() for file in files if file.exists())
        assert superlink.execute("SELECT count(*) FROM objects").fetchone() == (0,)
    refused(3, "invalid-input", "superlink-purge", place / "nowhere.db")
