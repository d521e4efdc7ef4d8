"""FATS over Flower: the states are those of one process, whatever the wire loses, repeats, delays or reorders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request, forget
from fedforget.algorithm.ids import IdSet
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import ForgetQuery, LocalRound, RemoveOrder, Trained, TrainTask
from fedforget.algorithm.seeds import SeedSource
from fedforget.errors import ClientUnreachable, FedForgetError, InvalidInput, NonFiniteLoss, TrainingFailed
from fedforget.federation.flower.records import pack, unpack
from fedforget.federation.parcels import Parcel
from tests.federation.flower_in_process import InFlower, OwnPart
from tests.helpers import (
    Erasure,
    HistoryIsTheModel,
    World,
    clients_view,
    erasures,
    prf_server,
    server_view,
    view,
    without,
)

NODE_GONE, APP_CRASHED, APP_RAISED = 5, 8, 2


class Life:
    """A server whose clients are nodes of an in-process Flower, and the memory that holds what the nodes hold."""

    def __init__(self, world: World, plan: Plan, seed: object) -> None:
        seeds = SeedSource(str(seed))
        samples = {client: IdSet(ids) for client, ids in world.items() if ids}
        pairs = {client: seeds.client(client) for client in samples}
        self.memory = ClientsInMemory(
            samples,
            {client: pair.value for client, pair in pairs.items()},
            {client: pair.commitment for client, pair in pairs.items()},
        )
        self.flower = InFlower(
            plan,
            self.memory,
            HistoryIsTheModel(),
            check=lambda *_: None,
            drawn_after=lambda round_: self.server.drawn_after(round_),  # noqa: PLW0108 (the server comes later)
        )
        model = HistoryIsTheModel()
        server_memory = ServerInMemory(plan, IdSet(samples), HistoryIsTheModel.initial())
        self.server = Server(plan, PrfPriorities(seeds.server().value), server_memory, self.flower.federation, model)

    def view(self) -> dict[str, Any]:
        return server_view(self.server.memory) | {"clients": clients_view(self.memory, self.server.memory.roster)}


class Faults:
    """Chooses what happens to each message: it arrives, gets lost, or its answer does."""

    def __init__(self, flower: InFlower, choose: Callable[[], str]) -> None:
        self._flower, self._choose, self._tries = flower, choose, Counter[str]()

    def __call__(self, message: Message) -> Message | Error | None:
        what = str(message.content.config_records["fedforget"]["body"])
        self._tries[what] += 1
        kind = self._choose() if self._tries[what] < 3 else "arrives"
        if kind == "answer lost":
            self._flower.grid.deliver(message)
        if kind in {"answer lost", "lost"}:
            return Error(NODE_GONE)
        return Error(APP_CRASHED) if kind == "crashed" else None if kind == "late" else message


def check(erasure: Erasure, choose: Callable[[], str]) -> None:
    """Live through an erasure over Flower and in one process, and compare everything at every step."""
    plan, left = erasure.plan, erasure.world
    life, inline = Life(left, plan, erasure.seed), prf_server(left, plan, erasure.seed)
    life.flower.grid.fault = Faults(life.flower, choose)
    for when, batch in erasure.arrivals:
        for server in (life.server, inline):
            learn(server, when)
        pending = [
            each for each in batch if each.client in left and (each.sample is None or each.sample in left[each.client])
        ]
        if pending:
            sent = list(life.flower.grid.delivered)
            for server in (life.server, inline):
                forget(server, pending)
            after = life.view()
            assert after == view(inline)
            for message in sent:  # every old message comes once more
                life.flower.grid.deliver(message)
            assert life.view() == after
        left = without(left, pending)
    for server in (life.server, inline):
        learn(server, plan.rounds)
    assert life.view() == view(inline)
    for message in list(life.flower.grid.delivered):  # also those of rounds that stand, each after all later ones
        life.flower.grid.deliver(message)
        assert life.view() == view(inline)


@settings(max_examples=10)
@given(erasures())
def test_states_are_those_of_one_process(erasure: Erasure) -> None:
    check(erasure, lambda: "arrives")


KINDS = st.sampled_from(["arrives", "arrives", "lost", "answer lost", "crashed", "late"])


@settings(max_examples=15)
@given(erasures(), st.data())
def test_states_are_the_same_if_messages_and_answers_get_lost(erasure: Erasure, data: st.DataObject) -> None:
    check(erasure, lambda: data.draw(KINDS))


@pytest.mark.slow
@settings(max_examples=400)
@given(erasures(), st.data())
def test_states_are_the_same_if_messages_and_answers_get_lost_at_length(erasure: Erasure, data: st.DataObject) -> None:
    check(erasure, lambda: data.draw(KINDS))


WORLD: World = {0: (0, 1, 2, 3), "ward-7": ("a", "b", 5), 7: (0,), "03": ("x", "y", "z", 1, 2)}
PLAN = Plan(clients_per_round=3, batch_size=2, local_steps=2, rounds=6)


@pytest.fixture
def life() -> Life:
    return Life(WORLD, PLAN, 4)


def test_answers_in_another_order_and_messages_that_come_twice_change_nothing(life: Life) -> None:
    life.flower.grid.newest_first = life.flower.grid.deliver_twice = True
    learn(life.server, 6)
    forget(life.server, [Request("03", "y"), Request(0)])
    inline = prf_server(WORLD, PLAN, 4)
    learn(inline, 6)
    forget(inline, [Request("03", "y"), Request(0)])
    assert life.view() == view(inline)


def test_late_messages_of_an_epoch_take_nothing_away(life: Life) -> None:
    """A round that was trained twice, with rounds after it, and a rewind with rounds after it."""
    learn(life.server, 4)
    forget(life.server, [Request("03", life.memory.samples("03").at(0))])
    learn(life.server, 6)
    before = life.view()
    for message in list(life.flower.grid.delivered):
        life.flower.grid.deliver(message)
        assert life.view() == before, message.content.config_records["fedforget"]["body"]


def test_client_that_is_killed_in_a_repeated_round_keeps_its_notes(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(life.server, 3)
    before = life.view()
    trained = [each for each in life.flower.grid.delivered if each.metadata.message_type == "train"]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(OwnPart, "note", killed)
    with pytest.raises(KeyboardInterrupt):
        life.flower.grid.deliver(trained[-1])
    assert life.view() == before


def test_a_late_message_of_a_round_that_was_rewound_is_refused(life: Life) -> None:
    learn(life.server, 6)
    client = next(iter(life.server.drawn_after(0)))
    old = [each for each in life.flower.grid.delivered if each.metadata.message_type == "train"]
    forget(life.server, [Request(client)])
    before = life.view()
    for message in old:
        answer = unpack(life.flower.grid.deliver(message).content)
        if "error" not in answer.body:  # its client was not drawn after the rewind: it repeats what it has noted
            continue
        assert "from before a later change" in answer.body["error"]["message"] or "left the run" in str(answer.body)
    assert life.view() == before


def test_clients_that_ignored_the_epoch_would_be_found() -> None:
    """They note late messages of rounds that no longer draw them, and the state is another one."""
    world: World = {client: (0, 1, 2) for client in range(8)}  # noqa: C420 (a World's ids may be words)
    different = 0
    for seed in range(5):
        life = Life(world, PLAN, seed)
        for party in life.flower.parties.values():
            party._epoch.now = lambda: 0  # type: ignore[method-assign]
        learn(life.server, 6)
        old = list(life.flower.grid.delivered)
        forget(life.server, [Request(life.server.slots(1)[0])])
        before = life.view()
        for message in old:
            life.flower.grid.deliver(message)
        different += life.view() != before
    assert different


def test_a_node_that_comes_back_under_another_number_is_found(life: Life) -> None:
    learn(life.server, 2)
    grid = life.flower.grid
    grid.apps = {node + 1000: app for node, app in grid.apps.items()}
    grid.fault = lambda message: Error(NODE_GONE) if message.metadata.dst_node_id < 1000 else message
    learn(life.server, 6)
    inline = prf_server(WORLD, PLAN, 4)
    learn(inline, 6)
    assert life.view() == view(inline)


def test_a_silent_client_is_named_and_its_round_goes_on_when_it_answers(life: Life) -> None:
    learn(life.server, 1)
    silent = next(iter(life.server.drawn_after(1)))
    node, before = life.flower.node_of(silent), life.view()
    life.flower.grid.fault = lambda message: None if message.metadata.dst_node_id == node else message
    with pytest.raises(ClientUnreachable, match=f"client {silent} has not answered for 60 s") as caught:
        learn(life.server, 6)
    assert "model-informed" in caught.value.hint
    assert life.view() == before  # also the others have dropped their notes
    life.flower.grid.fault = lambda message: message
    learn(life.server, 6)
    inline = prf_server(WORLD, PLAN, 4)
    learn(inline, 6)
    assert life.view() == view(inline)


def test_a_client_erased_while_it_is_away_is_told_when_it_is_back(life: Life) -> None:
    learn(life.server, 6)
    node = life.flower.node_of("03")
    life.flower.grid.fault = lambda message: None if message.metadata.dst_node_id == node else message
    forget(life.server, [Request("03")])
    inline = prf_server(WORLD, PLAN, 4)
    learn(inline, 6)
    forget(inline, [Request("03")])
    assert life.view() == view(inline)
    assert life.flower.federation.undelivered == {"03"}
    assert "03" in life.memory.commitments()
    life.flower.grid.fault = lambda message: message
    assert "03" not in {presence.client for presence in life.flower.federation.who_are_you()}
    assert "03" not in life.memory.commitments()
    assert life.flower.federation.undelivered == set()


def test_a_rewind_is_sent_to_clients_that_later_rounds_drew_and_to_no_other() -> None:
    world: World = {client: (0, 1, 2) for client in range(40)}  # noqa: C420 (a World's ids may be words)
    life = Life(world, Plan(clients_per_round=2, batch_size=1, local_steps=1, rounds=4), "few")
    learn(life.server, 4)
    drawn = life.server.drawn_after(0)
    client = min(drawn)
    asked = len(life.flower.grid.delivered)
    forget(life.server, [Request(client)])
    bodies = [unpack(message.content).body for message in life.flower.grid.delivered[asked:]]
    assert {body["client"] for body in bodies if body["kind"] == "rewind"} <= drawn
    assert len(drawn) < 10


# ---------------------------------------------------------------------------------------------- answers and messages


class Answers:
    """A learner whose local model is what a test wants."""

    def __init__(self, change: Callable[[dict[str, Any]], Any]) -> None:
        self.change = change

    def train(self, work: LocalRound) -> Trained:
        return Trained(self.change({name: tensor.copy() for name, tensor in work.model.items()}))


MODEL = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array(3, dtype=np.int64)}


def with_learner(learner: Any) -> tuple[InFlower, ClientsInMemory]:
    seeds = SeedSource("answers")
    memory = ClientsInMemory(
        {client: IdSet(samples) for client, samples in WORLD.items()},
        {client: seeds.client(client).value for client in WORLD},
        {client: seeds.client(client).commitment for client in WORLD},
    )
    return InFlower(PLAN, memory, learner), memory


def test_tensors_cross_the_wire_bit_by_bit() -> None:
    model = {
        "half": np.array([1.5, np.inf, -0.0], np.float16), "double": np.array([[5e-324, 1 / 3]]),
        "nothing": np.zeros((0, 3), np.float32), "flag": np.array(True), "byte": np.arange(256, dtype=np.uint8),
        "strided": np.arange(12, dtype=np.int32).reshape(3, 4).T, "nan": np.array([np.nan], np.float32),
    }  # fmt: skip
    found = unpack(pack(Parcel({"a": [1, "x", None]}, model)))
    assert found.body == {"a": [1, "x", None]}
    assert found.model is not None
    assert list(found.model) == list(model)
    for name, tensor in model.items():
        assert (found.model[name].dtype, found.model[name].shape) == (tensor.dtype, tensor.shape)
        assert found.model[name].tobytes() == tensor.tobytes()


@pytest.mark.parametrize(
    ("change", "message", "kind"),
    [
        (lambda m: m | {"weight": m["weight"] * np.nan}, "ward-7 sent a model that is not finite", NonFiniteLoss),
        (lambda m: m | {"weight": m["weight"][:1]}, "client ward-7 sent the tensor weight in another", TrainingFailed),
        (lambda m: m | {"weight": m["weight"].astype(float)}, "the tensor weight in another", TrainingFailed),
        (lambda m: {"weight": m["weight"]}, "client ward-7 sent a model with other tensors", TrainingFailed),
        (lambda m: m | {"more": m["weight"]}, "client ward-7 sent a model with other tensors", TrainingFailed),
        (lambda m: {}, "client ward-7 sent a model with other tensors", TrainingFailed),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_is_refused_and_nothing_is_noted(
    change: Any, message: str, kind: type[FedForgetError]
) -> None:
    flower, memory = with_learner(Answers(change))
    with pytest.raises(kind, match=message):
        flower.federation.train([TrainTask(1, "ward-7", MODEL), TrainTask(1, 0, MODEL)])
    assert all(memory.first_steps(client) == {} for client in WORLD)


def test_an_app_that_raises_is_named(life: Life) -> None:
    life.flower.grid.fault = lambda message: (
        Error(APP_RAISED, "ValueError: no disk") if message.metadata.message_type == "train" else message
    )
    with pytest.raises(TrainingFailed, match=r"client .* failed: its ClientApp raised ValueError: no disk"):
        learn(life.server, 6)


def answer_to(life: Life, changes: dict[str, Any]) -> dict[str, Any]:
    body = {"run": "a-run", "epoch": 0, "kind": "presence", "client": 0, **changes}
    answered = life.flower.parties[0].answer(Parcel(body))
    return dict(answered.body["error"]) if "error" in answered.body else dict(answered.body)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": "another"}, "takes part in another run"),
        ({"client": 7}, "this is client 0, not client 7"),
        ({"kind": "sing"}, "does not know the message 'sing'"),
        ({"kind": "train"}, "was sent no model"),
        ({"kind": "what-would-change", "samples": 3}, "cannot read a message"),
        ({"kind": "what-would-change", "samples": [99]}, "client 0 has no sample 99"),
        ({"kind": "rewind"}, "cannot read a message: KeyError"),
        ({"epoch": "soon"}, "from before a later change"),
    ],
)
def test_a_message_that_cannot_be_answered_is_answered_with_the_reason(
    life: Life, changes: dict[str, Any], message: str
) -> None:
    before = life.view()
    assert message in answer_to(life, changes)["message"]
    assert life.view() == before


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"fedforget": ConfigRecord({"body": "["})}),
        RecordDict({"fedforget": ConfigRecord({"body": "[1]"})}),
        RecordDict({"fedforget": ConfigRecord({"body": "[" * 100_000})}),
        RecordDict({"other": ConfigRecord({"body": "{}"})}),
    ],
)
def test_records_of_another_kind_are_refused(content: RecordDict) -> None:
    with pytest.raises(InvalidInput, match="a message of another kind"):
        unpack(content)


class Lies:
    """A wire whose only client answers what a test wants."""

    def __init__(self, flower: InFlower, body: dict[str, Any]) -> None:
        flower.federation._wire = self  # type: ignore[assignment]
        self._body = body

    def exchange(self, asked: Any) -> list[Parcel]:
        return [Parcel(self._body) for _ in asked]

    def everyone(self, asked: Parcel) -> list[Parcel]:
        return [Parcel(self._body)]


@pytest.mark.parametrize(
    "body",
    [
        {}, {"first_steps": [1], "now_empty": False}, {"first_steps": [1, 0], "now_empty": False},
        {"first_steps": [1, True], "now_empty": False}, {"first_steps": [1, "2"], "now_empty": False},
        {"first_steps": [1, None], "now_empty": 0}, {"first_steps": "12", "now_empty": False}, {"error": "no"},
    ],
)  # fmt: skip
def test_first_steps_that_no_client_gives_are_refused(body: dict[str, Any]) -> None:
    flower, _ = with_learner(HistoryIsTheModel())
    Lies(flower, body)
    with pytest.raises(TrainingFailed, match="client 0 sent"):
        flower.federation.what_would_change([ForgetQuery(0, (0, 1))])


def test_an_error_of_a_client_keeps_its_kind_and_its_hint(life: Life) -> None:
    with pytest.raises(FedForgetError, match="client 0 has no sample 99") as caught:
        life.flower.federation.what_would_change([ForgetQuery(0, (99,))])
    assert caught.value.code == "unknown-target"
    assert "fedforget clients" in caught.value.hint


def test_a_removal_that_a_client_refuses_is_an_error(life: Life) -> None:
    life.flower.parties[7]._run = "another"
    with pytest.raises(InvalidInput, match="client 7 takes part in another run"):
        life.flower.federation.remove([RemoveOrder(7, (0,))])
