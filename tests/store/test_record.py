"""The record: a chain that reveals every alteration, forward-only stages, and no trace of erased ids."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedforget import Plan, Request, Run
from fedforget.algorithm.forget import Decision
from fedforget.disk.database import Database
from fedforget.errors import FedForgetError
from fedforget.requests.chain import content_digest
from fedforget.requests.intents import BatchFacts, Intent, Outcome, new_batch_id
from fedforget.requests.lifecycle import GUARANTEE_PATH, Basis, Stage, Submission, guarantee_of
from fedforget.requests.links import Linker
from fedforget.store import record as record_module
from fedforget.store import record_audit, run_directory
from fedforget.store.record import Record
from fedforget.store.seals import SEALED

STAGES = [stage for stage in Stage if stage not in (Stage.REJECTED, Stage.CANCELLED)]
OUTCOME = Outcome(5, "ab" * 32, "cd" * 32, "ef" * 32, "01" * 32, "0.0", mixed_environments=False)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    made = Record(Database(tmp_path / "record.db", record_module.SCHEMA, create=True))
    made.create("system", {"loss": "loss"})
    return made


def accept(record: Record, *requests: Request, reseed: str | None = None, basis: str = "unknown") -> Intent:
    decision = Decision(requests, tuple(3 for _ in requests), (), goal=5, rewind_to=1)
    guarantee = guarantee_of("system", record.book.tainted, basis, reseed is not None)
    submission = Submission.of(requests, basis)
    decision = replace(decision, batch_id=new_batch_id(), new_seeds=None if reseed is None else bytes.fromhex(reseed))
    intent = Intent(submission.ids, decision)
    with record.book.transaction():
        record.book.receive(submission, {})
        record.batches.enter(intent, BatchFacts(guarantee, recomputed_steps=8, steps_alone=(0,) * len(requests)))
        if guarantee == GUARANTEE_PATH:
            record.book.taint_unless_exogenous(basis)
    return intent


def finish(record: Record, intent: Intent) -> None:
    record.batches.removed(intent, 1)
    record.batches.recomputed(intent)
    record.trained(5, {"torch": "2"})
    record.batches.completed(intent, OUTCOME)
    record.batches.purged(intent)


def live(record: Record) -> None:
    """A life with two batches."""
    record.trained(5, {"torch": "2"})
    finish(record, accept(record, Request("anna"), Request("ben", "scan")))
    finish(record, accept(record, Request("carl")))


def test_request_moves_through_its_stages_only_forwards(record: Record) -> None:
    intent = accept(record, Request("anna"), Request("ben", "scan"))
    seen = [record.batches.stage(intent)]
    for step in (
        lambda: record.batches.removed(intent, 1),
        lambda: record.batches.recomputed(intent),
        lambda: record.batches.completed(intent, OUTCOME),
    ):
        step()
        seen.append(record.batches.stage(intent))
        assert record_audit.find_problem(record) is None
    record.batches.purged(intent)
    assert seen == STAGES[1:5]
    assert {receipt.state for receipt in record.book.receipts()} == {Stage.PURGED}
    assert record.batches.unfinished() == []
    for identifier in intent.ids:
        own = (identifier, intent.batch_id)
        told = [event["kind"] for event in record.events() if (event.get("request") or event.get("batch")) in own]
        assert told == [*STAGES[:2], "begun", *STAGES[2:]], (
            "received, accepted, removed, recomputed, completed, purged: each once, in order"
        )


def test_intent_survives_a_crash_at_any_stage(record: Record, tmp_path: Path) -> None:
    intent = accept(record, Request("anna"), Request("ben", 3), reseed="00" * 32)
    record.database.close()
    again = Record(Database(tmp_path / "record.db", record_module.SCHEMA, writable=True))
    assert again.batches.unfinished() == [intent]
    again.batches.removed(intent, 1)
    assert again.batches.unfinished() == [intent]
    assert again.batches.stage(intent) == Stage.REMOVED
    again.database.close()


def test_erased_target_is_found_by_its_pseudonym(record: Record) -> None:
    live(record)
    first, second, third = record.book.receipts()
    found = record.book.find(Request("anna"))
    assert found is not None
    assert (found.id, found.client) == (first.id, "anna")
    sample = record.book.find(Request("ben", "scan"))
    assert sample is not None
    assert sample.id == second.id
    assert record.book.find(Request("ben")) is None
    inside = record.book.find(Request("carl", "anything"))
    assert inside is not None
    assert inside.id == third.id
    assert record.book.find(Request("dora")) is None


@contextmanager
def undone(record: Record) -> Iterator[None]:
    """Try a change and take it back."""
    record.database.run("SAVEPOINT before")
    yield
    record.database.run("ROLLBACK TO before")
    record.database.run("RELEASE before")


EVENTS = 1 + 1 + (2 * 3 + 4 + 1) + (3 + 4 + 1)  # created, trained; two batches with a training each


def test_altering_any_event_is_a_problem(record: Record) -> None:
    live(record)
    assert record_audit.find_problem(record) is None
    count = len(record.events())
    assert count == EVENTS
    changes = [
        "time = '2020'",
        "kind = 'other'",
        "body = '{\"x\": 1}'",
        "hash = zeroblob(32)",
        "sequence = -5",
        "about = 'r-0'",
    ]
    for sequence in range(1, count + 1):
        for change in changes:
            with undone(record):
                record.database.run(f"UPDATE events SET {change} WHERE sequence = ?", (sequence,))
                assert record_audit.find_problem(record) is not None, f"{change} in event {sequence}"
    assert record_audit.find_problem(record) is None


def unsalted(record: Record) -> list[bytes]:
    """The hash of every event as an attacker guesses it."""
    linker = Linker()
    return [
        linker.append(content_digest(event.sequence, event.time, event.kind, json.dumps(event.body, sort_keys=True)))
        for event in record.chain.events()
    ]


def test_event_hashes_are_salted(record: Record) -> None:
    """An attacker who guesses every event, to the millisecond, still lacks the salts."""
    live(record)
    salts = {json.loads(body)["salt"] for (body,) in record.database.rows("SELECT body FROM events")}
    assert len(salts) == EVENTS
    assert {len(salt) for salt in salts} == {32}
    assert not any("salt" in event for event in record.events()), "salts are never shown"
    assert not {event.hash for event in record.chain.events()} & set(unsalted(record))


def test_removing_any_event_is_a_problem(record: Record) -> None:
    live(record)
    for sequence in range(1, len(record.events()) + 1):
        with undone(record):
            record.database.run("DELETE FROM events WHERE sequence = ?", (sequence,))
            assert record_audit.find_problem(record) is not None, f"event {sequence}"


def test_adding_any_event_is_a_problem(record: Record) -> None:
    live(record)
    last = len(record.events())
    for sequence in (0, last + 1, last + 2):
        with undone(record):
            record.database.run(
                "INSERT INTO events VALUES (?, '2024', 'trained', NULL, '{}', zeroblob(32))", (sequence,)
            )
            assert record_audit.find_problem(record) is not None, f"an event {sequence}"


def test_altering_a_request_is_a_problem(record: Record) -> None:
    live(record)
    for change in (
        "DELETE FROM requests WHERE place = 1",
        "UPDATE requests SET state = 'accepted' WHERE place = 1",
        "DELETE FROM events",
    ):
        with undone(record):
            record.database.run(change)
            assert record_audit.find_problem(record) is not None, change


@pytest.mark.parametrize("body", ["nonsense", "[]", '"text"', "null", "3"])
def test_event_body_that_is_not_an_object_is_a_problem(record: Record, body: str) -> None:
    live(record)
    record.database.run("UPDATE events SET body = ? WHERE sequence = 2", (body,))
    assert record_audit.find_problem(record) is not None


def test_unreadable_intent_raises_run_damaged(record: Record) -> None:
    accept(record, Request("anna"))
    record.database.run("UPDATE intents SET body = x'00'")
    with pytest.raises(FedForgetError):
        record.batches.unfinished()


def test_draw_informed_request_taints_and_reseed_clears(record: Record) -> None:
    finish(record, accept(record, Request("anna"), basis=Basis.EXOGENOUS))
    assert not record.book.tainted
    finish(record, accept(record, Request("ben"), basis=Basis.UNKNOWN))
    assert record.book.tainted
    finish(record, accept(record, Request("carl"), basis=Basis.EXOGENOUS))
    assert record.book.tainted
    finish(record, accept(record, Request("dora"), basis=Basis.MODEL_INFORMED, reseed="00" * 32))
    assert not record.book.tainted
    told = [receipt.guarantee for receipt in record.book.receipts()]
    assert sorted(told) == sorted(["law-and-path", "path", "path", "law-and-path"])


@pytest.mark.parametrize("origin", ["given", "system"])
@pytest.mark.parametrize("tainted", [True, False])
@pytest.mark.parametrize("basis", list(Basis))
@pytest.mark.parametrize("new_seed", [True, False])
def test_guarantee_follows_from_basis_and_seed_origin(origin: str, tainted: bool, basis: str, new_seed: bool) -> None:
    law = new_seed or (origin == "system" and not tainted and basis == "exogenous")
    assert guarantee_of(origin, tainted, basis, new_seed) == ("law-and-path" if law else "path")


# Nothing is left


def test_purge_leaves_no_trace_of_the_id(tmp_path: Path) -> None:
    """Random markers in every id: after forgetting, no file of the run holds the markers of what went."""
    chance = np.random.default_rng(1)
    clients = {f"ward-{secrets.token_hex(8)}": [f"patient-{secrets.token_hex(8)}" for _ in range(12)] for _ in range(5)}
    data = {
        client: {s: (chance.normal(size=4).astype(np.float32), np.int64(chance.integers(2))) for s in samples}
        for client, samples in clients.items()
    }
    plan = Plan(clients_per_round=3, batch_size=4, local_steps=2, rounds=6)
    run = Run(tmp_path / "run", plan, model=nn.Linear(4, 2), data=data, seed=3)
    run.train(until=4)
    leaving, staying = list(clients)[:2], list(clients)[2:]
    gone_samples = [(client, clients[client][0]) for client in staying]

    def files_with(marker: str) -> list[str]:
        inside = marker.encode()
        return [str(path) for path in (tmp_path / "run").rglob("*") if path.is_file() and inside in path.read_bytes()]

    assert files_with(leaving[0])
    assert files_with(gone_samples[0][1])
    run.forget([Request(leaving[0]), *(Request(client, sample) for client, sample in gone_samples)])
    run.forget(client=leaving[1], new_seed=True)
    run.train()
    markers = [*leaving, *(s for client in leaving for s in clients[client]), *(s for _, s in gone_samples)]
    assert {marker: files_with(marker) for marker in markers if files_with(marker)} == {}
    with run_directory.reading(run.path) as opened:
        book = opened.clients.books.path_of(staying[0]).name
    assert {Path(file).name for file in files_with(staying[0])} == {"server.db", "uses.db", book}
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *SEALED, "lock", "models", "plan.toml", "record.keys", "seals",
    }  # fmt: skip
    assert run.verify().ok
