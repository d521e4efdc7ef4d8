"""The commands about requests and receipts, as a person or a script calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedforget.disk.lock import RunLock
from tests.cli.commandline import PLAN, call, copy, function_of, good, good_json, refused, requests_file, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("requests") / "run"
    good("train", *PLAN, "--out", run)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return copy(trained, tmp_path / "run")


def test_deferred_requests_are_cancelled_or_carried_out_exactly(run: Path, tmp_path: Path) -> None:
    (first,) = good_json("forget", run, "--client", "1", "--defer", "--deadline", "2999-01-31")["receipts"]
    (second,) = good_json("forget", run, "--client", "2", "--defer", "--idempotency-key", "a")["receipts"]
    assert (first["state"], first["batch_id"], first["guarantee"]) == ("accepted", None, None)
    assert first["deadline"].startswith("2999-01-31")
    assert "nothing is forgotten yet" in good("forget", run, "--client", "1", "--defer").out
    shown = good_json("status", run)["open_requests"]
    assert {(each["id"], each["state"]) for each in shown} == {(first["id"], "accepted"), (second["id"], "accepted")}
    assert all(each["days_left"] > 27 for each in shown)
    for command in ("status", "train"):
        shown_to_people = good(command, run).out
        assert re.search(r"^open_requests +2$", shown_to_people, re.MULTILINE)
        assert re.search(
            rf"^{first['id']} +client +accepted +{re.escape(first['deadline'])} ", shown_to_people, re.MULTILINE
        )
    assert good_json("cancel", run, second["id"])["receipt"]["state"] == "cancelled"
    assert good_json("cancel", run, second["id"])["receipt"]["state"] == "cancelled"  # the same command again
    met = good_json("run-pending", run)
    assert [receipt["id"] for receipt in met["receipts"]] == [first["id"]]
    assert met["steps_saved"] == met["steps_one_by_one"] - met["recomputed_steps"] >= 0
    assert "no pending requests" in good("run-pending", run).out
    without = requests_file(tmp_path / "without.jsonl", [(1, None)])
    good("train", *PLAN, "--without", without, "--out", tmp_path / "never")
    assert function_of(run) == function_of(tmp_path / "never")


def test_status_shows_requests_in_the_inbox(run: Path) -> None:
    """Handed in while another process works: the record does not have it yet, and people must see it."""
    assert "open_requests" not in good("status", run).out
    assert "[]" not in good("train", run).out
    assert good_json("train", run)["open_requests"] == []
    with RunLock(run):
        (receipt,) = good_json("forget", run, "--client", "1", "--defer")["receipts"]
        told = good("status", run).out
    assert re.search(r"^requests +0$", told, re.MULTILINE)
    assert re.search(r"^open_requests +1$", told, re.MULTILINE)
    row = rf"^{receipt['id']} +client +received +{re.escape(receipt['deadline'])} +[\d.]+$"
    assert re.search(row, told, re.MULTILINE)


def test_erased_client_is_added_again_only_with_returning(run: Path, trained: Path, tmp_path: Path) -> None:
    targets = requests_file(tmp_path / "targets.jsonl", [(1, None)])
    good("forget", run, "--client", "1")
    assert "was erased" in refused(3, "invalid-input", "add", run, "--from", targets)["message"]
    good("add", run, "--from", targets, "--returning", "--seed", "7")
    assert function_of(run) == function_of(trained)
    nobody = requests_file(tmp_path / "nobody.jsonl", [(77, None)])
    assert "have no client 77" in refused(3, "unknown-target", "add", run, "--from", nobody)["message"]


def test_batch_policy_defers_requests_until_run_pending_all(run: Path) -> None:
    assert good_json("policy", run)["policy"] == "immediate"
    assert good_json("policy", run, "batch", "--window", "7") == {"policy": "batch", "window_days": 7.0}
    assert good_json("forget", run, "--client", "1")["receipts"][0]["state"] == "accepted"
    assert "not due yet" in good("run-pending", run).out
    assert good_json("run-pending", run, "--all")["receipts"][0]["state"] == "purged"
    for wrong in (("batch",), ("immediate", "--window", "2"), ("sometimes",)):
        refused(3, "invalid-input", "policy", run, *wrong)


def test_issued_receipt_verifies_and_an_altered_one_is_refused(run: Path, tmp_path: Path) -> None:
    (receipt,) = good_json("forget", run, "--client", "3")["receipts"]
    file, key = tmp_path / "receipt.json", run / "receipt-key.pub.pem"
    for form in ((), ("--public",)):
        good("receipt", "show", run, receipt["id"], "--out", file, *form)
        assert json.loads(good("receipt", "show", run, receipt["id"], *form).out)["payload"]
        assert good_json("receipt", "verify", file, "--key", key)["signature_ok"]
        found = good_json("receipt", "verify", file, "--key", key, "--run", run, "--sample-rounds", "1")
        assert (found["ok"], found["run_ok"]) == (True, True)
    envelope = json.loads(file.read_text())
    envelope["payload"] = envelope["payload"][:-8] + "AAAAAAA="
    file.write_text(json.dumps(envelope))
    assert "does not verify" in refused(13, "receipt-refused", "receipt", "verify", file, "--key", key)["message"]
    inside = refused(3, "invalid-input", "receipt", "show", run, receipt["id"], "--out", run / "r.json")
    assert "inside the run" in inside["message"]
    refused(3, "unknown-target", "receipt", "show", run, "r-nobody")


def test_receipt_verify_reports_the_guarantee(tmp_path: Path) -> None:
    """The guarantee at the time of the receipt, and after a later model-informed request."""
    run, file = tmp_path / "run", tmp_path / "receipt.json"
    good("train", *(word for word in PLAN if word not in ("--seed", "7")), "--out", run)
    (receipt,) = good_json("forget", run, "--client", "3", "--basis", "exogenous")["receipts"]
    key, verify = ("--key", run / "receipt-key.pub.pem"), ("receipt", "verify", file)
    for form in ((), ("--public",)):
        assert "note:" not in good("receipt", "show", run, receipt["id"], "--out", file, *form).err
        for against in ((), ("--run", run)):
            told = good_json(*verify, *key, *against)
            assert (told["guarantee"], told["seeds_tainted"]) == ("law-and-path", False)
            assert told["seeds_tainted_now"] is (False if against else None)
            text = good(*verify, *key, *against).out
            assert re.search(r"^guarantee +law-and-path$", text, re.MULTILINE)
            assert re.search(r"^seeds_tainted +no$", text, re.MULTILINE)
            assert "note:" not in text
    good("forget", run, "--client", "2", "--basis", "model-informed")
    told, text = good_json(*verify, *key, "--run", run), good(*verify, *key, "--run", run).out
    assert (told["ok"], told["seeds_tainted"], told["seeds_tainted_now"]) == (True, False, True)
    over = "receipts claim `path` until --new-seed"
    assert f"note: {told['note']}" in text.splitlines()
    assert told["note"].startswith("a later request was model-informed or of unknown basis")
    assert over in told["note"]
    shown = good("receipt", "show", run, receipt["id"])
    assert json.loads(shown.out)["payload"]
    superseded, tainted = shown.err.splitlines()
    assert superseded.startswith("note: later requests changed the data: this receipt holds no proof of absence")
    assert tainted.startswith("note: a request was model-informed or of unknown basis")
    assert over in tainted


def test_receipt_is_opened_and_its_series_checked_on_the_command_line(tmp_path: Path) -> None:
    run, key = tmp_path / "run", tmp_path / "run" / "receipt-key.pub.pem"
    train(run)
    files, opening, links = (
        [tmp_path / f"{number}.json" for number in range(3)],
        tmp_path / "o.json",
        tmp_path / "l.json",
    )
    receipt: dict[str, str] = {}
    for file, client in zip(files, ("3", "2", "1"), strict=True):
        (receipt,) = good_json("forget", run, "--client", client, "--basis", "exogenous")["receipts"]
        good("receipt", "show", run, receipt["id"], "--out", file)
        told = good("receipt", "show", run, receipt["id"], "--opening", client, "--out", opening)
        assert "which client or sample the receipt is about" in told.err
        told = good_json("receipt", "verify", file, "--key", key, "--opening", opening)
        assert (told["absence_shown"], told["presence_shown"], told["opened"]) == (True, True, True)
        assert "not shown: that the same record" in good("receipt", "verify", file, "--key", key).out
    error = refused(13, "receipt-refused", "receipt", "verify", files[0], "--key", key, "--opening", opening)
    assert "belongs to request" in error["message"]
    error = refused(3, "invalid-input", "receipt", "show", run, receipt["id"], "--opening", "4")
    assert "was not for client 4" in error["message"]
    refused(3, "invalid-input", "receipt", "show", run, receipt["id"], "--sample", "4")
    refused(3, "invalid-input", "receipt", "show", run, receipt["id"], "--opening", "1", "--public")
    assert good_json("receipt", "verify-series", *files, "--key", key)["ok"]
    gap = (files[0], files[2])
    result = call("receipt", "verify-series", *gap, "--key", key)
    assert result.code == 13
    assert "problem: it is not shown" in result.out
    good("receipt", "link", run, *gap, "--key", key, "--out", links)
    assert good_json("receipt", "verify-series", *gap, "--key", key, "--links", links)["links_used"] == 1


def test_forgetting_the_record_needs_a_yes(run: Path) -> None:
    (receipt,) = good_json("forget", run, "--client", "3")["receipts"]
    refused(3, "invalid-input", "forget-record", run)
    assert good_json("forget", run, "--client", "3")["receipts"][0]["id"] == receipt["id"]
    assert good_json("forget-record", run, "--yes") == {"record_forgotten": True}
    refused(3, "unknown-target", "forget", run, "--client", "3")
    assert good_json("verify", run)["ok"]
