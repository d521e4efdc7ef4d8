"""What the operator sees: overdue and unfinished requests, a lowered guarantee, and usable hints."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedforget import Request, Run
from fedforget.disk.lock import RunLock
from fedforget.errors import shown
from fedforget.requests import lifecycle
from fedforget.store import run_directory
from tests.cli.commandline import call, good, good_json, refused, train
from tests.requests.world import opened


class Clock(datetime):
    """A clock that a test turns on."""

    ahead = timedelta(0)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + cls.ahead


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Turns the clock on for everything that looks at deadlines."""
    monkeypatch.setattr(Clock, "ahead", timedelta(0))
    monkeypatch.setattr(lifecycle, "datetime", Clock)
    return lambda ahead: monkeypatch.setattr(Clock, "ahead", ahead)


@pytest.fixture
def own(tmp_path: Path) -> Run:
    made = opened(tmp_path / "own", seed=None)
    made.train()
    return made


# Overdue


def test_open_requests_are_all_counted_where_only_the_next_are_named(
    trained: Path, later: Callable[[timedelta], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedforget.session.status.MOST_OPEN", 2)
    moments = [(datetime.now(UTC) + timedelta(days=days)).isoformat() for days in (9, 3, 4, 1)]
    for client, moment in enumerate(moments[:3]):
        good("forget", trained, "--client", str(client), "--defer", "--deadline", moment)
    with RunLock(trained):
        good("forget", trained, "--client", "3", "--defer", "--deadline", moments[3])
    found = good_json("status", trained)
    assert found["open_count"] == 4
    assert {each["deadline"][:10] for each in found["open_requests"]} == {moments[1][:10], moments[3][:10]}
    assert "open_requests" in good("status", trained).out
    good("policy", trained, "batch", "--window", "30")
    later(timedelta(days=3, seconds=60))
    assert "at least 2 of 4 open requests" in call("status", trained, "--check").err


@pytest.mark.parametrize("where", ["record", "inbox"])
def test_an_overdue_request_is_shown_by_status_and_doctor(
    trained: Path, later: Callable[[timedelta], None], where: str
) -> None:
    deadline = datetime.now(UTC) + timedelta(days=3)
    asked = ("forget", trained, "--client", "1", "--defer", "--deadline", deadline.isoformat())
    if where == "inbox":
        with RunLock(trained):
            (receipt,) = good_json(*asked)["receipts"]
    else:
        (receipt,) = good_json(*asked)["receipts"]
    good("forget", trained, "--client", "2", "--defer")
    before = good_json("status", trained, "--check")
    assert (before["overdue"], [each["overdue"] for each in before["open_requests"]]) == ([], [False, False])
    assert "overdue since" not in good("status", trained).out
    assert "none overdue" in good("doctor", trained).out
    later(timedelta(days=3, seconds=60))
    after = good_json("status", trained)
    assert after["overdue"] == [receipt["id"]]
    assert {each["id"]: each["overdue"] for each in after["open_requests"]}[receipt["id"]] is True
    told = good("status", trained).out
    assert f"overdue since {receipt['deadline']}" in told
    assert "-0.0" not in told
    checked = call("status", trained, "--check", "--json")
    assert (checked.code, checked.error["code"], checked.json["overdue"]) == (17, "attention-needed", [receipt["id"]])
    assert "run-pending" in checked.error["hint"]
    assert call("status", trained, "--check").out == told
    sick = call("doctor", trained)
    assert sick.code == 1
    assert "1 overdue" in sick.out
    assert "none pending" not in sick.out
    good("run-pending", trained, "--all")
    assert good_json("status", trained, "--check")["overdue"] == []


def test_overdue_request_in_the_inbox_is_seen_beside_many_in_the_record(
    trained: Path, later: Callable[[timedelta], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status names the requests with the next deadlines, wherever they are."""
    monkeypatch.setattr("fedforget.session.status.MOST_OPEN", 2)
    for client in "123":
        good("forget", trained, "--client", client, "--defer")
    with RunLock(trained):
        soon = (datetime.now(UTC) + timedelta(days=3)).isoformat()
        (receipt,) = good_json("forget", trained, "--client", "4", "--defer", "--deadline", soon)["receipts"]
    assert good_json("status", trained)["open_requests"][0]["id"] == receipt["id"]
    later(timedelta(days=4))
    checked = call("status", trained, "--check", "--json")
    assert (checked.code, checked.json["overdue"]) == (17, [receipt["id"]])


def test_unfinished_request_needs_attention_unless_the_run_is_busy(own: Run) -> None:
    seen: list[int] = []

    def interrupt(_: int) -> None:
        seen.append(call("status", own.path, "--check").code)
        raise KeyboardInterrupt

    with run_directory.reading(own.path) as run:
        drawn = next(iter(run.server.first_rounds()))
    with pytest.raises(KeyboardInterrupt):
        own.forget(Request(drawn), on_round=interrupt)
    assert seen == [0], "under way"
    result = call("status", own.path, "--check", "--json")
    assert (result.code, result.error["code"], result.json["pending"]) == (17, "attention-needed", True)
    assert ".train()` in Python" in result.error["hint"]
    own.train()
    assert call("status", own.path, "--check").code == 0


# The guarantee


def test_forget_without_basis_warns_that_the_guarantee_drops(tmp_path: Path) -> None:
    run, told = tmp_path / "run", "the guarantee drops to `path`"
    good("train", *(word for word in PLAN), "--out", run)
    assert told not in good("forget", run, "--client", "1", "--dry-run").err
    assert told not in good("forget", run, "--client", "1", "--basis", "exogenous").err
    assert told not in good("forget", run, "--client", "1").err, "gone already: nothing is lost"
    assert told not in good("forget", run, "--client", "2", "--new-seed").err
    (receipt,) = good_json("forget", run, "--client", "3", "--defer", "--basis", "exogenous")["receipts"]
    first = call("forget", run, "--client", "3", "--json")
    assert first.json["receipts"][0]["id"] == receipt["id"]
    assert first.json["receipts"][0]["guarantee"] == "path"
    (line,) = first.err.splitlines()
    assert told in line
    assert "--basis exogenous" in line
    assert "--new-seed" in line
    assert told not in good("forget", run, "--client", "4").err, "it has dropped already"


PLAN = ("--clients", "6", "--clients-per-round", "2", "--batch-size", "3", "--local-steps", "2", "--rounds", "2")


def test_forget_on_a_run_with_given_seed_does_not_warn(tmp_path: Path) -> None:
    train(tmp_path / "run")
    assert "guarantee drops" not in good("forget", tmp_path / "run", "--client", "1").err


def test_deferred_request_without_basis_warns(own: Run) -> None:
    assert "guarantee drops" in good("forget", own.path, "--client", "1", "--defer").err


# Own data


def test_requests_on_own_data_are_deferred_and_cancelled_by_command(own: Run) -> None:
    (kept,) = good_json("forget", own.path, "--client", "1", "--defer")["receipts"]
    (taken_back,) = good_json("forget", own.path, "--client", "2", "--sample", "1", "--defer")["receipts"]
    assert (kept["state"], taken_back["state"]) == ("accepted", "accepted")
    good("cancel", own.path, taken_back["id"])
    assert [each["id"] for each in good_json("status", own.path)["open_requests"]] == [kept["id"]]
    said = good("forget", own.path, "--client", "1", "--defer").out
    assert "run_pending()` in Python, or with `flwr run` of its Flower app" in said
    assert [(r.id, r.state) for r in own.run_pending()] == [(kept["id"], "purged")]
    good("receipt", "show", own.path, kept["id"])
    good("clients", own.path)
    good("forget-record", own.path, "--yes")
    assert own.verify().ok


def test_the_policy_of_own_data_is_set_without_model_or_data(own: Run) -> None:
    good("policy", own.path, "batch", "--window", "7")
    assert good_json("policy", own.path)["policy"] == "batch"
    (collected,) = good_json("forget", own.path, "--client", "1")["receipts"]
    assert collected["state"] == "accepted"
    good("policy", own.path, "immediate")
    error = refused(3, "invalid-input", "forget-record", own.path, "--yes")
    assert "run_pending(everything=True)` in Python" in error["hint"]


def test_forget_and_run_pending_on_own_data_are_refused_with_a_remedy(own: Run) -> None:
    before = own.state_digest()
    error = refused(3, "invalid-input", "forget", own.path, "--client", "1")
    assert f"`fedforget forget {own.path} --defer --client 1`" in error["hint"]
    told = ("--basis", "exogenous", "--deadline", "2100-01-01T00:00:00.000+00:00", "--idempotency-key", "a key")
    error = refused(3, "invalid-input", "forget", own.path, "--client", "1", *told)
    assert f"--defer --client 1 {shlex.join(told)}`" in error["hint"], "following the hint keeps what was asked for"
    sample = refused(3, "invalid-input", "forget", own.path, "--client", "1", "--sample", "a b")
    assert "--client 1 --sample 'a b'`" in sample["hint"]
    assert "--defer" not in refused(3, "invalid-input", "forget", own.path, "--new-seed")["hint"]
    assert ".run_pending()` in Python" in error["hint"]
    assert ".run_pending()` in Python" in refused(3, "invalid-input", "run-pending", own.path)["hint"]
    assert own.state_digest() == before
    assert own.receipts() == []


def test_lost_model_of_own_data_names_the_python_call(own: Run) -> None:
    (own.path / "models" / f"{own.status().model_digest}.safetensors").unlink()
    for command in (("doctor", own.path), ("doctor", own.path, "--rebuild")):
        result = call(*command)
        assert result.code in (1, 3)
        assert "--rebuild`" not in result.out + result.err
        assert ".rebuild()` in Python" in result.err


def test_request_deferred_during_an_interrupted_batch_stays_in_the_inbox(
    own: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("fedforget.algorithm.forget.apply", stop)
        with pytest.raises(KeyboardInterrupt):
            own.forget(Request(4))
    (receipt,) = good_json("forget", own.path, "--client", "3", "--defer")["receipts"]
    assert receipt["state"] == "received"
    error = refused(12, "unfinished-request", "cancel", own.path, receipt["id"])
    assert ".train()` in Python" in error["hint"]
    own.run_pending()
    assert {r.state for r in own.receipts()} == {"purged"}
    assert set(own.clients()) == {0, 1, 2}
    assert own.verify().ok


# Ids in messages


@pytest.mark.parametrize("identifier", ["x" * 10**6, "red \x1b[31m", "two\nlines", "\u202eback", "bell\a", "\u2066in"])
def test_an_id_in_a_message_is_short_and_harmless(own: Run, identifier: str) -> None:
    for arguments in (
        ("forget", own.path, "--client", identifier, "--defer"),
        ("forget", own.path, "--client", "1", "--sample", identifier, "--defer"),
        ("clients", own.path, "--client", identifier),
        ("cancel", own.path, identifier),
        ("receipt", "show", own.path, identifier),
        ("forget", own.path, "--client", "1", "--basis", identifier),
        ("forget", own.path, "--client", "1", "--deadline", identifier),
    ):
        result = call(*arguments)
        (line,) = result.err.splitlines()
        assert result.code == 3
        assert len(line) < 1500
        assert line.isprintable()
    for text in (str(Request(identifier, identifier)), shown(identifier)):
        assert text.isprintable()
        assert len(text) < 200


def test_request_with_unprintable_id_raises_invalid_id() -> None:
    from fedforget.errors import InvalidId  # noqa: PLC0415

    for wrong in (10**5000, -1, object()):
        with pytest.raises(InvalidId, match="cannot be the id"):
            Request(wrong)  # type: ignore[arg-type]


# Places that cannot be


@pytest.mark.parametrize("place", ["/dev/null", "file", "file/below", "n" * 300])
def test_unwritable_output_path_is_refused(trained: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / place
    (receipt,) = good_json("forget", trained, "--client", "1")["receipts"]
    commands: list[tuple[str | Path, ...]] = [("demo", "--out", target), ("train", *PLAN, "--out", target)]
    if place != "file":
        commands += [("export", trained, target), ("receipt", "show", trained, receipt["id"], "--out", target)]
    if place != "/dev/null":
        commands += [
            ("demo", "--plot", tmp_path / place / "x.png"),
            ("plan", *PLAN, "--plot", tmp_path / place / "x.png"),
        ]
    for command in commands:
        result = call(*command)
        assert result.code in (3, 10), (command, result)
        assert result.out == "" or command[0] == "plan"
    assert (tmp_path / "file").read_text() == ""
    if place in ("/dev/null", "file"):
        refused(3, "invalid-input", "demo", "--out", target)


@pytest.mark.parametrize("basis", [(), ("--basis", "exogenous")])
def test_cancel_without_basis_warns_that_it_costs_the_law(own: Run, basis: tuple[str, ...]) -> None:
    (pending,) = own.forget(client=1, defer=True, basis="exogenous")
    told = good("cancel", own.path, pending.id, *basis)
    assert ("the guarantee drops to `path`" in told.err) == (basis == ())
    assert own.status().tainted == (basis == ())


@pytest.mark.parametrize("basis", [(), ("--basis", "exogenous")])
def test_add_without_basis_warns_that_it_costs_the_law(tmp_path: Path, basis: tuple[str, ...]) -> None:
    left_out = tmp_path / "left-out.jsonl"
    left_out.write_text('{"client": 1}\n')
    world = ("--clients", "6", "--clients-per-round", "2", "--batch-size", "3", "--local-steps", "2", "--rounds", "2")
    good("train", *world, "--out", tmp_path / "run", "--without", left_out)
    told = good("add", tmp_path / "run", "--from", left_out, *basis)
    assert ("the guarantee drops to `path`" in told.err) == (basis == ())
