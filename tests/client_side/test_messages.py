"""A client with a state directory answers the server: once and again the same, and nothing that it must not tell."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedforget.algorithm.plan import Plan
from fedforget.client_side import ClientState, open_client
from fedforget.client_side.directory import reading, writing
from fedforget.client_side.opened import Learning, OpenClient
from fedforget.errors import FedForgetError, InvalidInput, RunBusy, RunDamaged, SignatureRefused, UnknownTarget
from fedforget.federation import parcels
from fedforget.federation.parcels import Parcel
from fedforget.federation.signing import verified
from fedforget.federation.standing import standing_in
from fedforget.requests.lifecycle import Stage
from tests.client_side.deployment import HERE, PLAN, RUN, Deployment, answer, ask, learning, plan_file, samples_of
from tests.helpers import HistoryIsTheModel, World, scratch

WORLD: World = {"c": (0, 1, 2, 3, "x"), "d": (1, 2)}
MODEL = {"history": np.frombuffer(b"[]", np.uint8)}


@pytest.fixture
def life() -> Iterator[Deployment]:
    with scratch() as place:
        yield Deployment(place, WORLD)


@pytest.fixture
def state(life: Deployment) -> ClientState:
    return life.clients["c"]


def error_of(answered: Parcel) -> FedForgetError:
    found = parcels.error_in(answered, "c")
    assert found is not None
    return found


def files(state: ClientState) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in state.path.iterdir() if path.is_file()}


def train(state: ClientState, round_: int, epoch: int = 0, **changes: str) -> Parcel:
    asked = parcels.request(RUN, epoch, parcels.TRAIN, state.client, MODEL, round=round_)
    return answer(state, asked, lambda _: learning(None, **changes))


# --------------------------------------------------------------------------------------------- again, late, elsewhere


def test_repeated_round_has_the_same_answer_and_notes(state: ClientState) -> None:
    first = train(state, 1)
    before = files(state)
    again = train(state, 1)
    assert first.model is not None
    assert again.model is not None
    assert again.model["history"].tobytes() == first.model["history"].tobytes()
    assert again.body["now"] == first.body["now"]
    assert {name: files(state)[name] for name in ("client.book", "uses.db")} == {
        name: before[name] for name in ("client.book", "uses.db")
    }


def test_message_of_an_earlier_epoch_is_refused_after_a_restart(state: ClientState) -> None:
    ask(state, parcels.REWIND, 5, rounds_done=0)
    before = files(state)
    assert "from before a later change" in error_of(train(state, 1, 4)).message
    assert files(state) == before
    assert state.status().epoch == 5


def test_late_messages_of_an_epoch_change_nothing_after_a_restart(state: ClientState) -> None:
    train(state, 1)
    train(state, 2)
    before = files(state)
    assert "refuses a round from before the last one" in error_of(train(state, 1)).message
    ask(state, parcels.REWIND, 0, rounds_done=0)  # it was sent before round 1
    assert files(state) == before
    ask(state, parcels.REWIND, 1, rounds_done=0)
    assert files(state)["uses.db"] != before["uses.db"]
    assert "error" not in train(state, 1, 1).body


def test_repeated_removal_changes_nothing(life: Deployment, state: ClientState) -> None:
    life.learn(6)
    state.forget([1])
    asked = parcels.request(RUN, life.epoch.now(), parcels.REMOVE, "c", samples=[_withdrawal(state)])
    first = answer(state, asked)
    before = files(state)
    assert answer(state, asked).body["now"] == first.body["now"]
    assert files(state) == before


def _withdrawal(state: ClientState) -> str:
    found = standing_in(ask(state, parcels.PRESENCE), "c").withdrawals
    return f"withdrawal:{found[-1].handle}"


def test_finished_request_is_not_finished_twice(life: Deployment, state: ClientState) -> None:
    state.forget([1])
    life.meet()
    [receipt] = state.receipts()
    with reading(state.path) as found:
        handles = [handle for (handle,) in found.record.database.rows("SELECT handle FROM withdrawals")]
    ask(state, parcels.DONE, 99, handles=handles, facts={"server_receipt": "another"})
    assert state.receipts() == [receipt]
    assert receipt.state == Stage.PURGED


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (parcels.WOULD_CHANGE, {"samples": [1]}),
        (parcels.REMOVE, {"samples": [1]}),
        (parcels.WOULD_JOIN, {"samples": ["new"], "rounds": [1]}),
        (parcels.JOIN, {"samples": [["new", "00" * 16]]}),
        (parcels.REPEAT, {"round": 1, "leaving": [1], "bitwise": True, "model": MODEL}),
        (parcels.REMOVE, {"samples": ["withdrawal:" + "0" * 32]}),
    ],
)
def test_server_cannot_name_samples(state: ClientState, kind: str, fields: dict[str, Any]) -> None:
    """Else it could test guesses of ids, or erase another party's data."""
    before = files(state)
    found = error_of(ask(state, kind, **fields))
    assert isinstance(found, UnknownTarget)
    assert "made no request" in found.message
    assert files(state) == before


def test_server_cannot_choose_the_seed(state: ClientState) -> None:
    body: dict[str, Any] = {"seed": "00" * 32, "nonce": "00" * 32}
    assert isinstance(error_of(ask(state, parcels.RESEED, **body)), InvalidInput)
    assert state.opening().seed.value != bytes(32)


def test_new_seed_is_drawn_once_for_a_reason(state: ClientState) -> None:
    before = state.status().commitment
    first = ask(state, parcels.RESEED, key="b-1").body["commitment"]
    again = ask(state, parcels.RESEED, key="b-1").body["commitment"]
    other = ask(state, parcels.RESEED, key="b-2").body["commitment"]
    assert before != first == again != other == state.status().commitment


def test_messages_of_another_run_and_another_plan_are_refused(state: ClientState) -> None:
    found = error_of(answer(state, parcels.request("run-2", 0, parcels.PRESENCE, "c")))
    assert "takes part in another run" in found.message
    other = plan_file(Plan(clients_per_round=9, batch_size=2, local_steps=2, rounds=6)).encode().decode()
    assert "under another plan" in error_of(ask(state, parcels.PLAN, plan=other)).message
    assert "a plan that cannot be read" in error_of(ask(state, parcels.PLAN, plan="x = 1")).message
    with open_client(state.path) as client:
        assert client.plan_file == plan_file()


def test_plan_with_another_commitment_of_the_server_is_kept(state: ClientState) -> None:
    text = plan_file().encode().decode().replace("00" * 32, "11" * 32)
    assert ask(state, parcels.PLAN, plan=text).body["plan"] == ask(state, parcels.PRESENCE).body["plan"]
    with open_client(state.path) as client:
        assert client.plan_file is not None
        assert client.plan_file.server_commitment == bytes.fromhex("11" * 32)


def test_client_without_plan_refuses_and_joins_the_first_run(tmp_path: Path) -> None:
    state = ClientState.init(tmp_path / "c", "c", samples_of([1, 2]))
    asked = parcels.request("other", 7, parcels.PRESENCE, None)
    assert answer(state, asked).body["plan"] is None
    assert "has no plan yet" in error_of(train(state, 1)).message
    assert state.status().epoch == 0  # a run that it doesn't take part in raises nothing
    ask(state, parcels.PLAN, plan=plan_file().encode().decode())
    assert "takes part in another run" in error_of(answer(state, asked)).message
    assert "error" not in train(state, 1).body


def test_erased_client_still_answers_presence_and_done(life: Deployment, state: ClientState) -> None:
    state.leave()
    life.meet()
    assert ask(state, parcels.PRESENCE, 99).body["gone"] is True
    assert "has left the run" in error_of(train(state, 1, 99)).message
    assert "error" not in ask(state, parcels.REMOVE, 99, samples=None).body
    assert "error" not in ask(state, parcels.JOIN, 99, samples=[]).body
    assert len(state.receipts()) == 1


def test_erasure_of_the_client_by_the_server_has_a_record_here(life: Deployment, state: ClientState) -> None:
    life.learn(3)
    ask(state, parcels.REMOVE, 9, samples=None)
    assert [(each.level, each.state) for each in state.receipts()] == [("client", Stage.REMOVED)]
    ask(state, parcels.DONE, 9, handles=[], facts={"rounds_done": 3})
    assert [each.state for each in state.receipts()] == [Stage.PURGED]


def test_erasure_of_the_client_covers_pending_requests(life: Deployment, state: ClientState) -> None:
    state.forget([1])
    state.sync({**samples_of([0, 1, 2, 3, "x"]), **samples_of(["new"])})
    ask(state, parcels.REMOVE, 9, samples=None)
    ask(state, parcels.DONE, 9, handles=[], facts={})
    assert [each.state for each in state.receipts()] == [Stage.PURGED]
    assert state.status().arriving == 0


def test_erased_client_has_nothing_unfinished(life: Deployment, state: ClientState) -> None:
    """Also not a withdrawal that was removed and never called done."""
    state.forget([1])
    ask(state, parcels.REMOVE, 9, samples=[_withdrawal(state)])
    ask(state, parcels.REMOVE, 10, samples=None)
    assert {each.state for each in state.receipts()} == {Stage.REMOVED}
    ask(state, parcels.DONE, 10, handles=[], facts={})
    assert [(each.level, each.state) for each in state.receipts()] == [
        ("sample", Stage.PURGED),
        ("client", Stage.PURGED),
    ]
    with pytest.raises(UnknownTarget, match="client c has left the run"):
        state.opening()


# --------------------------------------------------------------------------------------------------- two processes


def test_second_process_is_refused_and_its_request_goes_to_the_inbox(state: ClientState) -> None:
    inside, outside = os.pipe()
    pid = os.fork()
    if not pid:  # an orphaned ClientApp that still works
        with writing(state.path):
            os.write(outside, b"x")
            time.sleep(60)
        os._exit(0)
    try:
        os.read(inside, 1)
        with pytest.raises(RunBusy, match=f"in use by process {pid}"), open_client(state.path):
            pass
        [receipt] = state.forget([1])
        assert receipt.state == Stage.RECEIVED
        assert [each.id for each in state.status().open_requests] == [receipt.id]
        with pytest.raises(UnknownTarget):
            state.forget(["unknown"])
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(inside)
        os.close(outside)
    withdrawals = standing_in(ask(state, parcels.PRESENCE), "c").withdrawals
    assert len(withdrawals) == 1
    assert [(each.id, each.state) for each in state.receipts()] == [(receipt.id, Stage.ACCEPTED)]
    assert not (state.path / "inbox").exists()


# ------------------------------------------------------------------------------------------- lost and damaged state


def test_lost_book_error_names_both_remedies(state: ClientState) -> None:
    (state.path / "client.book").unlink()
    for found in (error_of(train(state, 1)), error_of(ask(state, parcels.PRESENCE, 0))):
        assert (found.code, "the seed of client c is lost" in found.message) == ("run-damaged", True)
        assert "restore the whole state directory" in found.hint
        assert "fedforget forget RUN --client c --basis model-informed" in found.hint


@pytest.mark.parametrize("place", [4, 20, 40, 60, 100, 150, -1])
def test_altered_book_is_refused(state: ClientState, place: int) -> None:
    path = state.path / "client.book"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    found = error_of(train(state, 1))
    assert found.code in {"run-damaged", "run-too-old"}
    assert "client.book" in found.message


def test_book_of_another_client_is_refused(life: Deployment, state: ClientState) -> None:
    shutil.copy(life.clients["d"].path / "client.book", state.path / "client.book")
    assert "is that of another client" in error_of(train(state, 1)).message


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "hole"])
@pytest.mark.parametrize("name", ["client.toml", "client.book", "uses.db", "record.db", "record.keys", "plan.toml"])
def test_file_of_another_kind_is_refused(state: ClientState, name: str, kind: str) -> None:
    path = state.path / name
    path.rename(state.path.parent / name)
    if kind == "link":
        path.symlink_to(state.path.parent / name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 2**40)
    with pytest.raises(FedForgetError) as caught:
        state.status()
    assert caught.value.code in {"run-damaged", "run-too-old", "no-such-run", "storage-failed"}


@pytest.mark.parametrize("name", ["record.keys", "record.db", "uses.db", "receipt-key.pem"])
def test_missing_file_is_named(state: ClientState, name: str) -> None:
    (state.path / name).unlink()
    with pytest.raises(RunDamaged, match=name):
        train(state, 1)


def test_answers_of_a_directory_that_was_made_anew_do_not_verify(state: ClientState, tmp_path: Path) -> None:
    """Its client has another seed and another key than the one that enrolled."""
    with reading(state.path) as found:
        enrolled = found.key().public_key()
    ClientState.init(tmp_path / "again", "c", samples_of(WORLD["c"]))
    asked = parcels.request(RUN, 0, parcels.PRESENCE, "c")
    with open_client(tmp_path / "again") as client:
        answered = client.answer(asked, learning)
    with pytest.raises(SignatureRefused):
        verified(enrolled, asked, answered)


# --------------------------------------------------------------------------------------- learner, environment, content


def test_round_in_another_environment_is_refused_unless_the_server_accepts_a_mixture(state: ClientState) -> None:
    assert standing_in(train(state, 1), "c").environment == HERE
    before = files(state)["uses.db"]
    found = error_of(train(state, 2, torch="3"))
    assert found.code == "environment-differs"
    assert "torch: 2 then, 3 now" in found.message
    assert files(state)["uses.db"] == before
    asked = parcels.request(RUN, 0, parcels.TRAIN, "c", MODEL, round=2, mixed=True)
    assert "error" not in answer(state, asked, lambda _: learning(torch="3")).body


def test_environment_is_dropped_with_its_rounds(state: ClientState) -> None:
    train(state, 1)
    ask(state, parcels.REWIND, 1, rounds_done=0)
    assert standing_in(train(state, 3, 1, torch="3"), "c").environment["torch"] == "3"


def test_witness_of_another_environment_is_not_compared_bit_by_bit(state: ClientState) -> None:
    train(state, 1)

    def repeat(how: Any, *, bitwise: bool) -> Parcel:
        fields = {"round": 1, "leaving": [], "bitwise": bitwise}
        return answer(state, parcels.request(RUN, 0, parcels.REPEAT, "c", MODEL, **fields), how)

    assert repeat(learning, bitwise=True).body["agrees"] is True
    elsewhere = lambda _: learning(torch="3")  # noqa: E731
    assert error_of(repeat(elsewhere, bitwise=True)).code == "environment-differs"
    assert repeat(elsewhere, bitwise=False).body["agrees"] is True


def test_renamed_learner_trains_only_after_it_repeated_an_earlier_round(state: ClientState) -> None:
    def renamed(_: OpenClient) -> Learning:
        return Learning(HistoryIsTheModel(), {"loss": "another"}, lambda: HERE)

    train(state, 1)
    second = parcels.request(RUN, 0, parcels.TRAIN, "c", MODEL, round=2)
    assert error_of(answer(state, second, renamed)).code == "learner-differs"
    repeat = parcels.request(RUN, 0, parcels.REPEAT, "c", MODEL, round=1, leaving=[], bitwise=True)
    assert answer(state, repeat, renamed).body["agrees"] is True
    assert "error" not in answer(state, second, renamed).body


def test_sample_of_other_content_is_not_trained_on(state: ClientState) -> None:
    with open_client(state.path) as client:
        samples = client.checked({**samples_of([0, 1, 2, 3]), **samples_of(["x"], version=1)})
        assert samples.sample("c", 0)[1] == 1
        for wrong in (("c", "x"), ("c", "unknown"), ("d", 0)):
            with pytest.raises(FedForgetError) as caught:
                samples.sample(*wrong)
            assert caught.value.code == "data-changed"
            assert "sample x" not in caught.value.message, "the server reads it"


def test_learner_is_built_only_to_compute(state: ClientState) -> None:
    def never(_: OpenClient) -> Learning:
        raise AssertionError("it was built")

    messages: dict[str, dict[str, Any]] = {parcels.PRESENCE: {}, parcels.REWIND: {"rounds_done": 0}}
    for kind, fields in messages.items():
        assert "error" not in answer(state, parcels.request(RUN, 0, kind, "c", **fields), never).body


def test_party_works_without_a_server(state: ClientState) -> None:
    with open_client(state.path) as client:
        found = client.party(learning(), RUN, PLAN).answer(parcels.request(RUN, 0, parcels.TRAIN, "c", MODEL, round=1))
    assert found.model is not None
