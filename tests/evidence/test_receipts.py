"""Signed receipts: an altered field, a wrong key, a swapped seed, another plan or an old chain is refused."""

from __future__ import annotations

import base64
import copy
import json
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedforget import Request, Run
from fedforget.algorithm.ports import Trained
from fedforget.algorithm.seeds import Seed
from fedforget.disk.files import write_durably
from fedforget.errors import InvalidInput, ReceiptRefused, RunBusy, RunDamaged
from fedforget.evidence.receipts import receipt_key
from fedforget.evidence.receipts.check import ReceiptCheck, read_receipt
from fedforget.evidence.receipts.compare import _differing_paths
from fedforget.evidence.receipts.envelope import PAYLOAD_TYPE, seal, unseal
from fedforget.evidence.receipts.issue import issue
from fedforget.evidence.receipts.receipt_key import (
    MOST,
    get_or_create_key,
    is_public_key,
    key_id,
    private_pem,
    public_pem,
    read_public_key,
    signing_key,
)
from fedforget.health.doctor import examine
from fedforget.requests.chain import EventChain
from fedforget.session.engine import Engine
from fedforget.store import run_directory
from fedforget.store.names import BOOKS, PRIVATE_KEY, PUBLIC_KEY
from tests.helpers import take_off_seals
from tests.requests.world import opened
from tests.store.book_sql import edit_book
from tests.store.roster_sql import commitment_becomes
from tests.tally import tally


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has met two batches and cancelled and rejected a request."""
    run = opened(tmp_path_factory.mktemp("receipts") / "run")
    run.train()
    run.forget([Request(3), Request(1, 0)], basis="exogenous")
    run.cancel(run.forget(Request(2), defer=True)[0].id)
    run.forget(Request(4, 2))
    return run.path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Run:
    return opened(Path(shutil.copytree(made, tmp_path / "run")))


def ids(run: Run, state: str = "purged") -> list[str]:
    with run_directory.reading(run.path) as found:
        return [receipt.id for receipt in found.record.book.receipts() if receipt.state == state]


def written(path: Path, envelope: Any) -> Path:
    path.write_text(json.dumps(envelope))
    return path


def statement_of(envelope: dict[str, Any]) -> dict[str, Any]:
    return json.loads(base64.b64decode(envelope["payload"]))


def checked(run: Run, envelope: Any, **how: Any) -> ReceiptCheck:
    file = written(run.path.parent / "receipt.json", envelope)
    return run.check_receipt(read_receipt(file, run.path / PUBLIC_KEY), **how)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from leaves(inner, (*path, place))
    else:
        yield path


def altered(statement: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    changed = copy.deepcopy(statement)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    old = holder[path[-1]]
    holder[path[-1]] = (not old) if isinstance(old, bool) else old + 1 if isinstance(old, int) else f"{old or ''}x"
    return changed


@pytest.mark.parametrize("public", [True, False])
def test_every_receipt_of_a_run_verifies_offline_and_with_the_run(run: Run, public: bool) -> None:
    for identifier in [*ids(run), *ids(run, "cancelled")]:
        found = checked(run, run.signed_receipt(identifier, public=public))
        assert found.ok, found.problems
        assert found.run_ok
    assert stat.S_IMODE((run.path / PRIVATE_KEY).stat().st_mode) == 0o600


@pytest.mark.parametrize("public", [False, True])
def test_receipt_is_issued_without_reading_the_whole_record(
    run: Run, monkeypatch: pytest.MonkeyPatch, public: bool
) -> None:
    """Else a receipt costs the more, the more requests there were."""

    def refuse(*_: object) -> None:
        raise AssertionError("every event was read")

    monkeypatch.setattr(EventChain, "events", refuse)
    for identifier in ids(run):
        assert run.signed_receipt(identifier, public=public)["payload"]


def test_the_rounds_that_were_recomputed_are_replayed(run: Run) -> None:
    replayed = [checked(run, run.signed_receipt(identifier)) for identifier in ids(run)]
    assert any(found.rounds_replayed for found in replayed)
    for found in replayed:
        rounds = found.statement["predicate"]["recomputed_rounds"]
        assert found.rounds_replayed == rounds
        assert found.bitwise_equal is (True if rounds else None)
    some = checked(run, run.signed_receipt(ids(run)[0]), sample_rounds=2)
    assert some.ok
    assert some.rounds_replayed == min(2, some.statement["predicate"]["recomputed_rounds"])


def test_receipt_of_an_unfinished_request_is_refused(run: Run) -> None:
    (waits,) = run.forget(Request(2), defer=True)
    with pytest.raises(InvalidInput, match="no receipt yet"):
        run.signed_receipt(waits.id)


def test_receipts_of_others_are_issued_while_a_request_is_unfinished(run: Run) -> None:
    """Without proofs: the data are about to change."""

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    purged = ids(run)
    with run_directory.reading(run.path) as opened:
        drawn = next(iter(opened.server.first_rounds()))
    with pytest.raises(KeyboardInterrupt):
        run.forget(Request(drawn), on_round=interrupt)
    with run_directory.reading(run.path, only_idle=False) as opened:
        assert opened.record.batches.are_unfinished
    for identifier in purged:
        issued = issue(run.path, identifier)
        assert issued.superseded
        assert statement_of(issued.envelope)["predicate"]["absence"] is None
        assert statement_of(issued.envelope)["subject"] == []
    run.train()
    assert checked(run, run.signed_receipt(purged[0])).ok


def test_any_altered_byte_of_an_envelope_is_refused(run: Run) -> None:
    envelope = run.signed_receipt(ids(run)[0])
    key = signing_key(run.path).public_key()
    payload = bytearray(base64.b64decode(envelope["payload"]))
    for place in range(0, len(payload), 7):
        broken = bytearray(payload)
        broken[place] ^= 1
        with pytest.raises(ReceiptRefused, match="does not verify"):
            unseal({**envelope, "payload": base64.b64encode(broken).decode()}, key)
    changes: list[dict[str, Any]] = [
        {"payloadType": "text/plain"}, {"payload": "?"}, {"signatures": []}, {"signatures": [{"sig": "AA=="}]},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(ReceiptRefused):
            unseal({**envelope, **change}, key)
    nothings: list[Any] = [None, [], {}, "x", {"payload": 3}]
    for nothing in nothings:
        with pytest.raises(ReceiptRefused, match="not a DSSE envelope"):
            unseal(nothing, key)


@pytest.mark.parametrize("public", [True, False])
def test_every_altered_field_is_refused_with_its_reason(run: Run, public: bool) -> None:
    """Alter a field without the key, then with the key: in that case only the run can detect it."""
    for identifier in [ids(run)[-1], ids(run, "cancelled")[0]]:
        envelope = run.signed_receipt(identifier, public=public)
        statement, key = statement_of(envelope), signing_key(run.path)
        for path in leaves(statement):
            other = altered(statement, path)
            forged = {**envelope, "payload": base64.b64encode(json.dumps(other).encode()).decode()}
            with pytest.raises(ReceiptRefused, match="does not verify"):
                checked(run, forged)
            tally("receipts/altered, refused offline")
            try:
                found = checked(run, seal(other, key), sample_rounds=0)
            except ReceiptRefused as refusal:
                problems = [str(refusal)]
            else:
                assert not found.ok, f"{path}: {other}"
                problems = found.problems
            assert problems
            assert all(len(problem) > 20 for problem in problems)
            tally("receipts/altered by a holder of the key, refused by the run")


NAMED = {
    "level": "another level",
    "basis": "another basis",
    "pseudonym": "another pseudonym",
    "times": "other times",
    "commitments": "another set of commitments to seeds",
    "state_mac": "another keyed digest of the state",
    "seeds_tainted": "another account of tainted seeds",
    "recomputed_steps": "another number of recomputed steps",
    "model": "another model",
    "guarantee_covers": "another account of what the guarantee covers",
    "subject": "another state digest",
    "sequence": "another place in the event chain",
    "learner": "another learner",
    "rounds": "another number of rounds",
    "run": "another beginning",
    "data_root_mac": "another keyed digest of the data",
    "data_root_mac_before": "another keyed digest of the data before",
}


def test_every_problem_names_its_field(run: Run) -> None:
    statement = statement_of(run.signed_receipt(ids(run)[-1]))
    for name, words in NAMED.items():
        path = next(path for path in leaves(statement) if name in path and "previous" not in path)
        found = checked(run, seal(altered(statement, path), signing_key(run.path)), sample_rounds=0)
        assert found.problems[0] == f"the run's record has {words} for this request"


def test_a_wrong_key_is_refused(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path / "receipt.json", run.signed_receipt(ids(run)[0]))
    (tmp_path / "other.pem").write_bytes(public_pem(Ed25519PrivateKey.generate().public_key()))
    with pytest.raises(ReceiptRefused, match="another key"):
        read_receipt(file, tmp_path / "other.pem")
    for bad in ("", "nonsense", (run.path / PRIVATE_KEY).read_text()):
        (tmp_path / "bad.pem").write_text(bad)
        with pytest.raises(InvalidInput, match="no public key"):
            read_public_key(tmp_path / "bad.pem")


def test_public_receipts_do_not_tell_whether_anything_was_recomputed(run: Run) -> None:
    for identifier in ids(run):
        statement = statement_of(run.signed_receipt(identifier, public=True))
        for same_for_all in ("counterfactual", "destroyed_or_rewritten", "re_execute"):
            statement["predicate"].pop(same_for_all)
        text = json.dumps(statement)
        for word in ("step", "recomputed", "rounds", "model", "before", "removed", "completed"):
            assert word not in text
        times = statement_of(run.signed_receipt(identifier, public=True))["predicate"]["request"]["times"]
        assert set(times) == {"received", "purged"}
        assert all(len(time) == len("2027-01-31") for time in times.values())


def test_public_receipts_look_alike_whether_or_not_anything_was_recomputed(tmp_path: Path) -> None:
    shapes, recomputed = set(), set()
    for client in range(5):
        run = opened(tmp_path / str(client))
        run.train(1)
        (receipt,) = run.forget(Request(client))
        recomputed.add(bool(receipt.recomputed_steps))
        statement = statement_of(run.signed_receipt(receipt.id, public=True))
        statement["predicate"].pop("absence")  # as long as the tree is deep, whatever was recomputed
        shapes.add((len(json.dumps(statement)), *statement["predicate"]["chain"]))
    assert recomputed == {True, False}, "both kinds are among them"
    assert len(shapes) == 1


def forgeries(statement: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Claims that an attacker with the key could leave out, add or change."""
    predicate = statement["predicate"]
    request = predicate["request"]

    def saying(**changes: Any) -> dict[str, Any]:
        return {**statement, "predicate": {**predicate, **changes}}

    def about(**changes: Any) -> dict[str, Any]:
        return {**statement, "subject": [{**statement["subject"][0], **changes}]}

    return {
        "more about the subject": about(note="approved"),
        "more about the digest": about(digest={**statement["subject"][0]["digest"], "note": "approved"}),
        "another subject beside it": {**statement, "subject": [*statement["subject"], {"name": "note"}]},
        "a list of ids": saying(request={**request, "id": [request["id"]]}),
        "a dictionary of ids": saying(request={**request, "id": {request["id"]: 1}}),
        "no id": saying(request={**request, "id": None}),
        "no place in the chain": saying(chain=None),
        "a list for a chain": saying(chain=[predicate["chain"]["head"]]),
        "more about the chain": saying(chain={**predicate["chain"], "note": "approved"}),
        "a number for a truth": saying(superseded=0),
        "another number for a truth": saying(seeds_tainted=int(predicate["seeds_tainted"])),
        "a fraction for a number": saying(recomputed_steps=float(predicate["recomputed_steps"])),
        "a list for a time": saying(request={**request, "times": {name: [] for name in request["times"]}}),
        "a list for a pseudonym": saying(request={**request, "pseudonym": [request["pseudonym"]]}),
        "no times": saying(request={name: value for name, value in request.items() if name != "times"}),
        "empty times": saying(request={**request, "times": {}}),
        "cut times": saying(request={**request, "times": dict.fromkeys(request["times"], "2")}),
        "one time less": saying(request={**request, "times": dict(list(request["times"].items())[1:])}),
        "another form": saying(form="public"),
        "another form that says more": saying(form="public", recomputed_steps=0),
        "superseded": {**saying(superseded=True, model=None), "subject": []},
        "no model": saying(model=None),
        "more": saying(note="approved"),
        "more about the request": saying(request={**request, "note": "approved"}),
        "less": {**statement, "predicate": {name: v for name, v in predicate.items() if name != "version"}},
        "beside the predicate": {**statement, "note": "approved"},
    }


def test_receipt_with_added_or_missing_claims_is_refused_by_the_run(run: Run) -> None:
    statement = statement_of(run.signed_receipt(ids(run)[-1]))
    assert checked(run, seal(statement, signing_key(run.path)), sample_rounds=0).ok
    for what, forged in forgeries(statement).items():
        try:
            found = checked(run, seal(forged, signing_key(run.path)), sample_rounds=0)
        except ReceiptRefused:
            continue
        assert not found.ok, what
        tally("receipts/altered by a holder of the key, refused by the run")


def test_receipt_of_an_earlier_format_is_refused_with_its_reason(run: Run) -> None:
    statement = {**statement_of(run.signed_receipt(ids(run)[-1])), "predicateType": "urn:fedforget:receipt:1"}
    with pytest.raises(ReceiptRefused, match="earlier format") as refusal:
        checked(run, seal(statement, signing_key(run.path)))
    assert "the version of FedForget that it names" in refusal.value.hint


def test_ambiguous_payload_is_refused(run: Run) -> None:
    """Two fields of one name: one reader takes the first, another the last."""
    statement = statement_of(run.signed_receipt(ids(run)[-1]))
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).replace('{"_type"', '{"_type":1,"_type"', 1)
    message = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload.encode())
    signature = base64.b64encode(signing_key(run.path).sign(message)).decode()
    envelope = {"payloadType": PAYLOAD_TYPE, "payload": base64.b64encode(payload.encode()).decode()}
    with pytest.raises(ReceiptRefused, match="a key is given twice"):
        unseal({**envelope, "signatures": [{"keyid": "", "sig": signature}]}, read_public_key(run.path / PUBLIC_KEY))


def test_deeply_nested_file_is_refused(run: Run, tmp_path: Path) -> None:
    run.signed_receipt(ids(run)[-1])
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ReceiptRefused, match="not a signed receipt"):
        read_receipt(tmp_path / "deep.json", run.path / PUBLIC_KEY)


def test_lost_key_is_replaced_only_with_new_key(run: Run) -> None:
    before = run.signed_receipt(ids(run)[-1])
    kept = read_public_key(run.path / PUBLIC_KEY)
    (run.path / PRIVATE_KEY).unlink()
    (run.path / PUBLIC_KEY).unlink()
    with pytest.raises(RunDamaged, match=f"{PRIVATE_KEY} is missing"):
        run.signed_receipt(ids(run)[-1])
    assert next(check.name for check in examine(run.path) if not check.ok) == PRIVATE_KEY
    after = run.signed_receipt(ids(run)[-1], new_key=True)
    assert unseal(before, kept) == unseal(after, read_public_key(run.path / PUBLIC_KEY))
    with pytest.raises(ReceiptRefused, match="another key"):
        unseal(before, read_public_key(run.path / PUBLIC_KEY))
    assert run.signed_receipt(ids(run)[-1], new_key=True) == after, "the same command again, as after a kill"
    run.cancel(run.forget(Request(2), defer=True)[0].id)
    with pytest.raises(InvalidInput, match="is not lost"):
        run.signed_receipt(ids(run)[-1], new_key=True)
    assert run.verify().ok


def exchange(run: Run, *names: str) -> None:
    """Files of another key in the place of the run's."""
    other = Ed25519PrivateKey.generate()
    for name in names:
        (run.path / name).write_bytes(private_pem(other) if name == PRIVATE_KEY else public_pem(other.public_key()))


@pytest.mark.parametrize("names", [(PRIVATE_KEY,), (PUBLIC_KEY,), (PRIVATE_KEY, PUBLIC_KEY)])
def test_new_key_replaces_a_wrong_key(run: Run, names: tuple[str, ...]) -> None:
    """Also where the two halves don't belong together: the record knows which key it was, and which it is now."""
    run.signed_receipt(ids(run)[-1])
    run.cancel(run.forget(Request(2), defer=True)[0].id)
    exchange(run, *names)
    with pytest.raises(RunDamaged) as refusal:
        run.signed_receipt(ids(run)[-1])
    assert "--new-key" in refusal.value.hint
    assert all("--new-key" in each.remedy for each in examine(run.path) if not each.ok)
    assert checked(run, run.signed_receipt(ids(run)[-1], new_key=True), sample_rounds=0).ok
    assert checked(run, run.signed_receipt(ids(run)[-1]), sample_rounds=0).ok
    assert all(each.ok for each in examine(run.path))


def test_receipt_while_a_key_is_created_raises_run_busy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second caller gets RunBusy while the key is created, and then uses that key."""
    refusals: list[RunBusy] = []

    def write_late(path: Path, data: bytes, **how: Any) -> None:
        try:
            run.signed_receipt(ids_known[-1])
        except RunBusy as refusal:
            refusals.append(refusal)
        write_durably(path, data, **how)

    ids_known = ids(run)
    monkeypatch.setattr(receipt_key, "write_durably", write_late)
    first = run.signed_receipt(ids_known[-1])
    assert refusals
    assert run.signed_receipt(ids_known[-1]) == first
    assert all(each.ok for each in examine(run.path))


@pytest.mark.parametrize("new_key", [False, True])
def test_second_process_uses_the_key_of_the_first(run: Run, monkeypatch: pytest.MonkeyPatch, new_key: bool) -> None:
    """Both saw that there was none; the other one was faster."""
    writing, identifier, firsts = run_directory.writing, ids(run)[-1], []

    def writing_late(path: Path) -> Any:
        monkeypatch.undo()
        firsts.append(run.signed_receipt(identifier, new_key=new_key))
        return writing(path)

    monkeypatch.setattr(run_directory, "writing", writing_late)
    assert [run.signed_receipt(identifier, new_key=new_key)] == firsts
    with run_directory.reading(run.path) as found:
        assert found.record.receipt_key == key_id(read_public_key(run.path / PUBLIC_KEY))
        assert [event["kind"] for event in found.record.events()].count("receipt key") == 1


def test_check_notes_a_later_draw_informed_request(run: Run) -> None:
    """A receipt states the guarantee at its time; a check against the run also reports the current one."""
    first, last = ids(run)[0], ids(run)[-1]
    before = checked(run, run.signed_receipt(first), sample_rounds=0)
    assert (before.guarantee, before.seeds_tainted, before.seeds_tainted_now) == ("path", False, True)
    assert "a later request was model-informed" in (before.note or "")
    assert before.as_dict()["note"] == before.note
    after = checked(run, run.signed_receipt(last), sample_rounds=0)
    assert (after.seeds_tainted, after.seeds_tainted_now) == (True, True)
    assert "a request was model-informed" in (after.note or "")
    offline = read_receipt(run.path.parent / "receipt.json", run.path / PUBLIC_KEY).as_dict()
    assert (offline["guarantee"], offline["seeds_tainted"]) == ("path", True)
    assert (offline["seeds_tainted_now"], offline["note"]) == (None, None)
    run.forget(Request(2, 3), new_seed=True)
    renewed = checked(run, run.signed_receipt(last), sample_rounds=0)
    assert (renewed.seeds_tainted_now, renewed.note) == (False, None)


def test_a_key_that_was_swapped_is_noticed(run: Run, tmp_path: Path) -> None:
    run.signed_receipt(ids(run)[-1])
    other = opened(tmp_path / "other", seed=2)
    other.train()
    (receipt,) = other.forget(Request(3))
    other.signed_receipt(receipt.id)
    for name in (PRIVATE_KEY, PUBLIC_KEY):
        shutil.copy(other.path / name, run.path / name)
    with pytest.raises(RunDamaged, match="not the key of this run"):
        run.signed_receipt(ids(run)[-1])


def tamper(run: Run, file: str, sql: str) -> None:
    """Change a database and delete the seals, as an informed attacker would."""
    take_off_seals(run.path)
    if file in BOOKS:
        assert edit_book(run.path / file, sql)
        return
    with closing(sqlite3.connect(run.path / file)) as database:
        assert database.execute(sql).rowcount
        database.commit()


def test_a_swapped_seed_is_noticed(run: Run) -> None:
    """Also if the commitment was swapped with it, so that the run by itself looks sound."""
    envelope = run.signed_receipt(ids(run)[-1])
    with run_directory.reading(run.path) as whole:
        book = whole.clients.books.path_of(2).name
    tamper(run, book, "UPDATE clients SET seed = zeroblob(32), nonce = zeroblob(32) WHERE client = 2")
    with pytest.raises(RunDamaged, match="seed of client 2"):
        checked(run, envelope)
    commitment = Seed(bytes(32), bytes(32)).commitment.hex()
    tamper(run, "server.db", commitment_becomes(2, f"x'{commitment}'"))
    found = checked(run, envelope)
    assert not found.ok
    assert any("a seed was replaced" in problem for problem in found.problems)


def test_another_run_and_another_plan_are_noticed(run: Run, tmp_path: Path) -> None:
    envelope = run.signed_receipt(ids(run)[-1])
    other = opened(tmp_path / "other", seed=2)
    other.train()
    other.forget(Request(3))
    found = other.check_receipt(read_receipt(written(tmp_path / "receipt.json", envelope), run.path / PUBLIC_KEY))
    assert not found.ok
    assert "another run" in found.problems[0]
    statement = statement_of(envelope)
    statement["predicate"]["counterfactual"]["plan"] = "00" * 32
    found = checked(run, seal(statement, signing_key(run.path)))
    assert any("another plan" in problem for problem in found.problems)


def test_a_record_that_was_rolled_back_is_noticed(run: Run, tmp_path: Path) -> None:
    earlier = shutil.copytree(run.path, tmp_path / "earlier")
    (receipt,) = run.forget(Request(2, 1))
    envelope = run.signed_receipt(receipt.id)
    file = written(tmp_path / "receipt.json", envelope)
    found = opened(Path(earlier)).check_receipt(read_receipt(file, run.path / PUBLIC_KEY))
    assert not found.ok
    assert "record was cut off" in found.problems[0]


def test_an_old_chain_head_is_noticed(run: Run) -> None:
    first, last = statement_of(run.signed_receipt(ids(run)[0])), statement_of(run.signed_receipt(ids(run)[-1]))
    last["predicate"]["chain"] = first["predicate"]["chain"]
    found = checked(run, seal(last, signing_key(run.path)))
    assert any("an older head was inserted" in problem for problem in found.problems)


def test_receipts_issued_before_later_erasures_still_verify(run: Run) -> None:
    """They name a state that is superseded: in the clear for who holds one, only as a MAC in the run."""
    before = {identifier: run.signed_receipt(identifier) for identifier in ids(run)}
    digest = statement_of(before[ids(run)[-1]])["subject"][0]["digest"]["blake2b-256"]
    run.forget([Request(2, 3), Request(4, 1)])
    for envelope in before.values():
        assert checked(run, envelope, sample_rounds=0).ok
    assert digest.encode() not in (run.path / "record.db").read_bytes()
    late = statement_of(run.signed_receipt(list(before)[-1]))
    assert late["subject"] == []
    assert late["predicate"]["superseded"]
    assert checked(run, run.signed_receipt(list(before)[-1]), sample_rounds=0).ok


def test_forgotten_record_keeps_receipts_without_names(run: Run) -> None:
    envelope = run.signed_receipt(ids(run)[-1])
    pseudonym = statement_of(envelope)["predicate"]["request"]["pseudonym"]
    run.forget_record()
    assert checked(run, envelope, sample_rounds=0).ok
    assert statement_of(run.signed_receipt(ids(run)[-1]))["predicate"]["request"]["pseudonym"] is None
    assert bytes.fromhex(pseudonym) not in (run.path / "record.db").read_bytes()
    with pytest.raises(InvalidInput):
        run.forget(Request(3))  # the record cannot link it any more
    run.forget(Request(2, 1))
    assert run.verify().ok


# -------------------------------------------------------------------------------------------------------- one by one


def test_receipt_names_the_state_before_its_batch(run: Run) -> None:
    """The state before a batch is that after the one before it, as long as nothing is trained in between."""
    first, second, later = (statement_of(run.signed_receipt(each))["predicate"] for each in ids(run))
    assert first["state_mac_before"] == second["state_mac_before"] != first["state_mac"]
    assert later["state_mac_before"] == second["state_mac"] == first["state_mac"]


def test_key_that_the_record_does_not_know_yet_is_used(tmp_path: Path) -> None:
    """A process was killed after it made the key and before it recorded it."""
    made = get_or_create_key(tmp_path, None)
    assert get_or_create_key(tmp_path, None).private_bytes_raw() == made.private_bytes_raw()
    (tmp_path / PUBLIC_KEY).unlink()
    assert get_or_create_key(tmp_path, None).private_bytes_raw() == made.private_bytes_raw()
    assert read_public_key(tmp_path / PUBLIC_KEY) == made.public_key()


def test_lone_public_half_is_a_lost_key(tmp_path: Path) -> None:
    known = key_id(get_or_create_key(tmp_path, None).public_key())
    (tmp_path / PRIVATE_KEY).unlink()
    for record in (None, known):
        with pytest.raises(RunDamaged, match="is missing"):
            get_or_create_key(tmp_path, record)
    (tmp_path / PUBLIC_KEY).unlink()
    with pytest.raises(RunDamaged, match="is missing"):
        get_or_create_key(tmp_path, known)


@pytest.mark.parametrize(
    ("given", "expected", "paths"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}, []),
        ({"a": 1}, {"a": True}, [("a",)]),
        ({"a": 8}, {"a": 8.0}, [("a",)]),
        ({"a": {}}, {"a": 1}, [("a",)]),
        ({"a": 1}, {"a": {}}, [("a",)]),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, [("a", "c"), ("a", "b")]),
        ({"a": 1}, {}, [("a",)]),
        ({}, {"a": None}, [("a",)]),
    ],
)
def test_every_differing_field_is_found(given: Any, expected: Any, paths: list[tuple[str, ...]]) -> None:
    assert list(_differing_paths(given, expected)) == paths


@pytest.mark.parametrize(("size", "valid"), [(MOST, True), (MOST + 1, False), (0, False)])
def test_public_half_has_a_greatest_size(tmp_path: Path, size: int, valid: bool) -> None:
    get_or_create_key(tmp_path, None)
    data = (tmp_path / PUBLIC_KEY).read_bytes()
    (tmp_path / PUBLIC_KEY).write_bytes(data + b"\n" * (size - len(data)) if size else b"")
    assert is_public_key(tmp_path) is valid


@pytest.mark.parametrize("name", ["state", "model"])
def test_every_forged_digest_of_a_superseded_state_is_noticed(run: Run, name: str) -> None:
    """Only a MAC is left of it in the record; that of a forged digest may be larger or smaller."""
    envelope = run.signed_receipt(ids(run)[-1])
    run.forget(Request(2, 3))
    for number in range(6):
        forged = statement_of(envelope)
        if name == "state":
            forged["subject"][0]["digest"]["blake2b-256"] = f"{number:064x}"
        else:
            forged["predicate"]["model"] = f"{number:064x}"
        assert checked(run, seal(forged, signing_key(run.path)), sample_rounds=0).problems


def test_round_that_replays_to_another_model_is_noticed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    identifier = next(each for each in ids(run) if rounds_of(run, each))
    envelope, real = run.signed_receipt(identifier), Engine.learner

    def nudged(self: Engine) -> object:
        learner = real(self)
        train = learner.train
        learner.train = lambda work: Trained(  # type: ignore[method-assign]
            {name: tensor + 1 for name, tensor in train(work).model.items()}, None
        )
        return learner

    assert checked(run, envelope).ok
    monkeypatch.setattr(Engine, "learner", nudged)
    found = checked(run, envelope)
    assert not found.ok
    assert found.bitwise_equal is False
    assert any("is not what replaying from round" in problem for problem in found.problems)


def rounds_of(run: Run, identifier: str) -> int:
    return int(statement_of(run.signed_receipt(identifier))["predicate"]["recomputed_rounds"])
