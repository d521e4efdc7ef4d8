"""The API of a client: made once, its enrolment, its requests, its receipts, and the opening that an auditor checks."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedforget.algorithm.contents import one_by_one
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.seeds import SeedSource
from fedforget.algorithm.tree import labels_of
from fedforget.client_side import ClientState
from fedforget.client_side.directory import reading, writing
from fedforget.client_side.enrolment import Enrolment
from fedforget.client_side.enrolment_files import read_enrolments
from fedforget.client_side.identity import Identity
from fedforget.client_side.opening import OwnOpening
from fedforget.client_side.own_receipts import signed_receipt
from fedforget.client_side.sync import contents_of
from fedforget.disk.database import Database
from fedforget.errors import (
    FedForgetError,
    InvalidInput,
    NoSuchRun,
    ReceiptRefused,
    RunDamaged,
    RunTooNew,
    UnknownTarget,
)
from fedforget.evidence.receipts.envelope import unseal
from fedforget.federation import parcels
from fedforget.requests.lifecycle import Stage
from fedforget.store.books.books import Books
from tests.client_side.deployment import PLAN, Deployment, samples_of
from tests.helpers import World, scratch

WORLD: World = {"c": (0, 1, 2, 3, "x", "é"), 7: (1, 2)}


@pytest.fixture
def life() -> Iterator[Deployment]:
    with scratch() as place:
        yield Deployment(place, WORLD)


@pytest.fixture
def state(life: Deployment) -> ClientState:
    return life.clients["c"]


# --------------------------------------------------------------------------------------------------------------- made


def test_state_directory_is_private(state: ClientState) -> None:
    assert stat.S_IMODE(state.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in state.path.iterdir()} == {0o600}


def test_secrets_come_from_the_given_seed_or_from_the_system(tmp_path: Path) -> None:
    made = [
        ClientState.init(tmp_path / name, "c", samples_of([1, 2]), seed=seed)
        for name, seed in (("a", 7), ("b", 7), ("c", 8), ("d", None), ("e", None))
    ]
    a, b, c, d, e = [(each.status().commitment, each.status().root) for each in made]
    assert a == b
    assert len({a[0], c[0], d[0], e[0]}) == len({a[1], c[1], d[1], e[1]}) == 4
    assert [Identity.read(each.path).seed_origin for each in made] == ["given"] * 3 + ["system"] * 2


def test_state_directory_is_made_once(state: ClientState, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is already the state directory of a client"):
        ClientState.init(state.path, "c", samples_of([1]))
    (tmp_path / "letter.txt").write_text("dear")
    mode = tmp_path.stat().st_mode
    with pytest.raises(InvalidInput, match=r"holds letter\.txt"):
        ClientState.init(tmp_path, "c", samples_of([1]))
    assert ([path.name for path in tmp_path.iterdir()], tmp_path.stat().st_mode) == (["letter.txt"], mode)
    with pytest.raises(InvalidInput, match="client c has no samples"):
        ClientState.init(tmp_path / "empty", "c", {})
    with pytest.raises(NoSuchRun, match="is not the state directory of a client"):
        ClientState(tmp_path)


@pytest.mark.parametrize("client", [3, "03", "ward 7", "é😀", 'a"b\\c', "\x7f\x00\n", "[dataset]", "# x"])
def test_any_id_can_be_that_of_a_client(client: Id, tmp_path: Path) -> None:
    state = ClientState.init(tmp_path / "c", client, samples_of([1, 2, "é😀"]))
    assert ClientState(state.path).client == client
    assert Enrolment.parsed(state.enrolment()).client == client
    [receipt] = state.forget(["é😀"])
    assert receipt.client == client


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda text: text.replace("format = 1", "format = 2"), RunTooNew),
        (lambda text: text.replace("format = 1", "format = 0"), RunDamaged),
        (lambda text: text.replace('client = "c"', 'client = ["c"]'), RunDamaged),
        (lambda text: text.replace("sample_key", "key"), RunDamaged),
        (lambda text: text.replace('seed_origin = "given"', 'seed_origin = "me"'), RunDamaged),
        (lambda text: text[:60], RunDamaged),
        (lambda text: "\0", RunDamaged),
    ],
)
def test_altered_identity_is_refused(state: ClientState, change: Any, error: type[FedForgetError]) -> None:
    path = state.path / "client.toml"
    path.write_text(change(path.read_text()))
    with pytest.raises(error, match=r"client\.toml"):
        ClientState(state.path)


# ---------------------------------------------------------------------------------------------------------- enrolment


def test_enrolment_holds_public_fields_and_no_secret(state: ClientState) -> None:
    data = state.enrolment()
    found, opening = Enrolment.parsed(data), state.opening()
    assert (found.client, found.commitment, found.root) == ("c", opening.seed.commitment, opening.root())
    secrets = (opening.seed.value, opening.seed.nonce, opening.key)
    assert not any(secret in data or secret.hex().encode() in data for secret in secrets)
    assert b'"x"' not in data
    assert state.enrolment() == data


@pytest.mark.parametrize(
    "change",
    [
        {"client": "d"}, {"client": 1.5}, {"commitment": "00" * 32}, {"root": "00" * 32}, {"root": "00"}, {"format": 2},
        {"signature": "00"}, {"signature": 3}, {"public_key": "none"}, {"more": 1}, {"client": None},
    ],
)  # fmt: skip
def test_altered_enrolment_is_refused(state: ClientState, change: dict[str, Any]) -> None:
    raw = json.loads(state.enrolment()) | change
    with pytest.raises(InvalidInput, match="not an enrolment"):
        Enrolment.parsed(json.dumps(raw).encode())


def test_enrolment_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_bytes(b" " * (2**16 + 1))
    with pytest.raises(InvalidInput, match=r"e\.json is not an enrolment of a client: it has more than"):
        read_enrolments([tmp_path / "e.json"])


def test_enrolment_cannot_be_claimed_with_another_key(life: Deployment, state: ClientState) -> None:
    """A stranger cannot enter its own key for this client's commitment and keep the signature."""
    other = json.loads(life.clients[7].enrolment())
    raw = json.loads(state.enrolment()) | {"public_key": other["public_key"]}
    with pytest.raises(InvalidInput, match="signature does not verify"):
        Enrolment.parsed(json.dumps(raw).encode())


# ----------------------------------------------------------------------------------------------------------- requests


def test_request_is_durable_and_idempotent(state: ClientState) -> None:
    [first] = state.forget([1], basis="exogenous", deadline="2999-01-31", idempotency_key="k")
    [again] = state.forget([1], basis="exogenous", idempotency_key="k")
    [third] = state.forget(["1"])
    assert (first.id, first.state, first.sample) == (again.id, Stage.ACCEPTED, 1)
    assert third.id == first.id
    with pytest.raises(InvalidInput, match="was used for other requests"):
        state.forget([2], idempotency_key="k")
    [waiting] = state.status().open_requests
    assert (waiting.basis, waiting.deadline) == ("unknown", "2999-01-31T23:59:59.999+00:00")


def test_unknown_sample_refuses_all_and_hints_at_the_list(state: ClientState) -> None:
    with pytest.raises(UnknownTarget, match="there is no sample 99 of client c") as caught:
        state.forget([1, 99])
    assert "fedforget client samples" in caught.value.hint
    assert state.status().open_requests == ()
    assert not list(state.path.glob("*-wal"))
    with pytest.raises(InvalidInput, match="no sample is named"):
        state.forget([])


def test_erased_sample_finds_its_receipt(life: Deployment, state: ClientState) -> None:
    [first] = state.forget([1])
    life.meet()
    [again] = state.forget([1])
    assert (again.id, again.state) == (first.id, Stage.PURGED)


def test_requests_of_one_call_have_one_handle_and_the_server_sees_no_more(life: Deployment, state: ClientState) -> None:
    state.forget([1, 2, 3], basis="exogenous", deadline="2999-01-31")
    state.forget(["x"], basis="model-informed")
    life.say("c", parcels.PRESENCE)
    one, two = life.nodes.standing["c"].withdrawals
    assert {(each.basis, each.whole) for each in (one, two)} == {("exogenous", False), ("model-informed", False)}
    assert {each.deadline for each in (one, two)} >= {"2999-01-31T23:59:59.999+00:00"}


# ----------------------------------------------------------------------------------------------------------- receipts


def read(envelope: dict[str, Any], state: ClientState) -> dict[str, Any]:
    with reading(state.path) as found:
        return unseal(envelope, found.key().public_key())


def test_receipt_is_signed_by_the_client_and_names_no_sample(life: Deployment, state: ClientState) -> None:
    life.learn(6)
    [first] = state.forget(["x"])
    with pytest.raises(InvalidInput, match=r"is accepted: it has no receipt yet"):
        state.signed_receipt(first.id)
    life.meet()
    statement = read(state.signed_receipt(first.id), state)
    found = statement["predicate"]
    assert statement["predicateType"] == "urn:fedforget:client-receipt:1"
    assert found["root"] == state.status().root
    assert found["commitment"] == state.status().commitment
    assert found["server"] == {"rounds_done": 6, "server_receipt": "r-1"}
    assert (found["client"], found["request"]["state"], found["superseded"]) == ("c", "purged", False)
    assert '"x"' not in json.dumps(statement)


def test_receipt_is_superseded_by_the_next_erasure_and_earlier_roots_stay_as_macs(
    life: Deployment, state: ClientState
) -> None:
    [first] = state.forget(["x"])
    life.meet()
    root = state.status().root
    state.forget([1])
    life.meet()
    found = read(state.signed_receipt(first.id), state)
    assert (found["predicate"]["superseded"], found["predicate"]["root"], found["subject"]) == (True, None, [])
    assert root is not None
    assert not any(root.encode() in path.read_bytes() or bytes.fromhex(root) in path.read_bytes()
                   for path in state.path.iterdir() if path.is_file())  # fmt: skip
    with reading(state.path) as opened:
        assert found["predicate"]["root_mac"] == opened.record.pseudonyms.mac("data root", bytes.fromhex(root)).hex()


def test_receipt_reads_as_many_rows_however_long_the_history(
    life: Deployment, state: ClientState, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = state.forget(["x"])
    life.meet()
    read_rows, rows = [], Database.rows

    def counted(self: Database, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found = rows(self, sql, values)
        read_rows.append(len(found))
        return found

    def rows_for_the_receipt() -> int:
        with reading(state.path) as opened, monkeypatch.context() as patch:
            patch.setattr(Database, "rows", counted)
            read_rows.clear()
            signed_receipt(opened, first.id)
        return sum(read_rows)

    before = rows_for_the_receipt()
    with writing(state.path) as opened:
        for number in range(100):
            opened.begin_writing()
            opened.record.note(("learner renamed", {"compared": number}))
    assert rows_for_the_receipt() == before


def test_altered_receipt_does_not_verify(life: Deployment, state: ClientState) -> None:
    [first] = state.forget(["x"])
    life.meet()
    envelope = state.signed_receipt(first.id)
    payload = base64.b64decode(envelope["payload"]).replace(b'"purged"', b'"reject"')
    with pytest.raises(ReceiptRefused):
        read({**envelope, "payload": base64.b64encode(payload).decode()}, state)


# ----------------------------------------------------------------------------------------------------------- openings


def rounds_of(life: Deployment, client: Id) -> list[int]:
    return [round_ for round_ in range(1, 7) if client in life.server.slots(round_)]


def test_opening_shows_when_each_sample_was_first_used(life: Deployment, state: ClientState) -> None:
    life.learn(6)
    opening = OwnOpening.parsed(state.opening().encode())
    opening.require(bytes.fromhex(state.status().commitment or ""), bytes.fromhex(state.status().root or ""))
    with reading(state.path) as found:
        used = found.memory.first_steps("c")
        for sample in found.book.samples:
            assert opening.first_use(PLAN, rounds_of(life, "c"), sample) == used.get(sample)


def test_never_used_is_checked_after_the_erasure_with_the_root_of_before(life: Deployment, state: ClientState) -> None:
    life.learn(1)
    with reading(state.path) as found:
        used = found.memory.first_steps("c")
        never = next(sample for sample in found.book.samples if sample not in used)
        content = found.book.contents()[never]
    before, rounds = bytes.fromhex(state.status().root or ""), rounds_of(life, "c")[:1]
    commitment = bytes.fromhex(state.status().commitment or "")
    state.forget([never])
    life.meet()
    opening = state.opening()
    opening.require(commitment, before, {never: content})
    assert opening.first_use(PLAN, [each for each in rounds if each == 1], never) is None
    with pytest.raises(ReceiptRefused, match="do not have this root"):
        opening.require(commitment, before)
    with pytest.raises(ReceiptRefused, match="do not have this root"):
        opening.require(commitment, before, {never: bytes(16)})
    with pytest.raises(ReceiptRefused, match="committed"):
        opening.require(bytes(32), before, {never: content})


@pytest.mark.parametrize(
    "change", [{"seed": "00"}, {"samples": [["x", "00"]]}, {"samples": 3}, {"more": 1}, {"format": 9}]
)
def test_altered_opening_is_refused(state: ClientState, change: dict[str, Any]) -> None:
    raw = json.loads(state.opening().encode()) | change
    with pytest.raises(InvalidInput, match="not the opening of a client"):
        OwnOpening.parsed(json.dumps(raw).encode())


def test_root_is_that_of_a_run_in_one_process_with_the_same_seed(tmp_path: Path) -> None:
    state = ClientState.init(tmp_path / "c", "c", samples_of([1, "x"]), seed=7)
    seeds, contents = SeedSource(7), contents_of("c", samples_of([1, "x"]))
    ids = IdSet(contents)
    books = Books(tmp_path, seeds.tree_key())
    digests = b"".join(contents[each] for each in ids)
    books.create({"c": seeds.client("c")}, one_by_one(lambda _: (ids, digests)))
    [label] = labels_of(seeds.tree_key(), IdSet(["c"]))
    _, value = books.leaf_of("c", label)
    assert value == bytes.fromhex(state.status().commitment or "") + bytes.fromhex(state.status().root or "")
    books.close()


def test_contents_are_those_of_a_run() -> None:
    """A client and an ordinary run on the same samples hold the same digests."""
    from fedforget.data.federated import FederatedData  # noqa: PLC0415

    data = {"c": samples_of([1, "x"])}
    assert contents_of("c", data["c"]) == dict(FederatedData(data).contents("c", [1, "x"]))
