"""Rounds on Flower's nodes: the states of one process, whatever order nodes answer in and whatever gets lost."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fedforget import LocalOptimizer, Request, Run
from fedforget.algorithm.forget import forget
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import LocalRound, Trained
from fedforget.errors import (
    DataChanged,
    EnvironmentDiffers,
    InvalidInput,
    LearnerDiffers,
    NonFiniteLoss,
    TrainingFailed,
)
from fedforget.federation import local_rounds
from fedforget.federation.flower import records, relay
from fedforget.federation.flower.client import client_app_of
from fedforget.federation.flower.post import GridPost
from fedforget.federation.flower.simulation import Simulation
from fedforget.federation.flower.trainer import MOST_NODES, FlowerTrainer
from fedforget.federation.local import LocalFederation
from fedforget.federation.parcels import Parcel
from fedforget.federation.traffic import Traffic, size_of
from fedforget.session.engine import Model
from fedforget.session.node_work import Built, NodeWorker, OwnSamples
from fedforget.session.workforce import FLOWER_APP, FLOWER_SIMULATION, Workforce
from tests.federation import test_pool
from tests.federation.flower_in_process import InNodes, computing
from tests.federation.test_flower import PLAN, WORLD
from tests.helpers import Erasure, HistoryIsTheModel, World, erasures, prf_server, view, without

NODE_GONE, APP_CRASHED, APP_RAISED, UNKNOWN = 5, 8, 2, 0


def on_nodes(world: World, plan: Plan, seed: object, **others: Any) -> tuple[Server, InNodes]:
    """A production server in memory whose clients are trained by nodes."""
    nodes = InNodes(computing(HistoryIsTheModel()), **others)
    server = prf_server(world, plan, seed)
    memory = server.federation.memory  # type: ignore[attr-defined]
    server.federation = LocalFederation(plan, memory, HistoryIsTheModel(), trainer=nodes.trainer)
    return server, nodes


class Faults:
    """Chooses what happens to each message: it arrives, gets lost, or its answer does."""

    def __init__(self, nodes: InNodes, choose: Callable[[], str]) -> None:
        self._grid, self._choose, self._tries = nodes.grid, choose, Counter[str]()

    def __call__(self, message: Message) -> Message | Error | None:
        what = str(message.content.config_records["fedforget"]["body"])
        self._tries[what] += 1
        kind = self._choose() if self._tries[what] < 3 else "arrives"
        if kind == "answer lost":
            self._grid.deliver(message)
        if kind == "late":
            return None
        errors = {"answer lost": NODE_GONE, "lost": 3, "crashed": APP_CRASHED, "ended": UNKNOWN}
        return Error(errors[kind]) if kind in errors else message


def check(erasure: Erasure, choose: Callable[[], str]) -> None:
    """Live through an erasure on nodes and in one process, and compare everything at every step."""
    plan, left = erasure.plan, erasure.world
    (server, nodes), inline = on_nodes(left, plan, erasure.seed), prf_server(left, plan, erasure.seed)
    nodes.grid.fault = Faults(nodes, choose)
    nodes.grid.newest_first = nodes.grid.deliver_twice = True
    for when, batch in erasure.arrivals:
        for each in (server, inline):
            learn(each, when)
        pending = [
            each for each in batch if each.client in left and (each.sample is None or each.sample in left[each.client])
        ]
        if pending:
            for each in (server, inline):
                forget(each, pending)
        assert view(server) == view(inline)
        left = without(left, pending)
    for each in (server, inline):
        learn(each, plan.rounds)
    assert view(server) == view(inline)


KINDS = st.sampled_from(["arrives", "arrives", "lost", "answer lost", "crashed", "ended", "late"])


@settings(max_examples=25)
@given(erasures(), st.data())
def test_states_are_those_of_one_process_whatever_gets_lost(erasure: Erasure, data: st.DataObject) -> None:
    check(erasure, lambda: data.draw(KINDS))


# ------------------------------------------------------------------------------------------------------------ the nodes


def bodies(nodes: InNodes) -> list[dict[str, Any]]:
    import json  # noqa: PLC0415 (only here)

    return [json.loads(str(each.content.config_records["fedforget"]["body"])) for each in nodes.grid.delivered]


def test_nodes_are_asked_once_who_they_are_and_places_go_round_them() -> None:
    server, nodes = on_nodes({client: (0, 1) for client in range(9)}, Plan(5, 1, 1, 4), 1, nodes=2)  # noqa: C420
    learn(server, 4)
    asked = Counter(body["kind"] for body in bodies(nodes))
    assert asked[local_rounds.INTRODUCTION] == 2
    used = Counter(each.metadata.dst_node_id for each in nodes.grid.delivered if each.metadata.message_type == "train")
    assert set(used) == {100, 101}
    assert abs(used[100] - used[101]) <= 4  # at most one a round


def test_of_many_nodes_only_as_many_are_asked_as_a_round_may_need() -> None:
    server, nodes = on_nodes(WORLD, PLAN, 1, nodes=MOST_NODES + 50)
    learn(server, 1)
    assert Counter(body["kind"] for body in bodies(nodes))[local_rounds.INTRODUCTION] == MOST_NODES


def test_a_node_that_is_gone_is_not_asked_again_and_a_new_one_is() -> None:
    server, nodes = on_nodes(WORLD, PLAN, 4, nodes=2)
    learn(server, 2)
    old = nodes.grid.apps
    nodes.grid.apps = {**old, 200: old[100]}
    nodes.grid.fault = lambda message: Error(NODE_GONE) if message.metadata.dst_node_id == 100 else message
    learn(server, 6)
    assert view(server) == view(learned(6))
    asked = [
        each.metadata.dst_node_id for each, body in zip(nodes.grid.delivered, bodies(nodes), strict=True)
        if body["kind"] == local_rounds.INTRODUCTION
    ]  # fmt: skip
    assert asked == [100, 101, 200]


def learned(rounds: int) -> Server:
    server = prf_server(WORLD, PLAN, 4)
    learn(server, rounds)
    return server


def test_a_question_that_gets_lost_again_and_again_is_an_error_and_the_round_can_be_repeated() -> None:
    server, nodes = on_nodes(WORLD, PLAN, 4)
    learn(server, 1)
    before = view(server)
    nodes.grid.fault = lambda message: Error(UNKNOWN, "killed") if message.metadata.message_type == "train" else message
    with pytest.raises(TrainingFailed, match=r"the nodes that trained client .* in round 2 ended .*\(killed\)"):
        learn(server, 6)
    assert view(server) == before
    nodes.grid.fault = lambda message: message
    learn(server, 6)
    assert view(server) == view(learned(6))


def test_nodes_that_stay_silent_are_an_error_after_the_patience() -> None:
    server, nodes = on_nodes(WORLD, PLAN, 4)
    learn(server, 1)
    nodes.grid.fault = lambda message: None
    started = nodes.clock.time
    with pytest.raises(TrainingFailed, match=r"no node finished the round of client .* in round 2 within 60 s"):
        learn(server, 6)
    assert 60 <= nodes.clock.time - started < 65


def test_a_simulation_without_nodes_is_an_error() -> None:
    server, _ = on_nodes(WORLD, PLAN, 4, nodes=0)
    with pytest.raises(TrainingFailed, match="no node of the Flower simulation answers"):
        learn(server, 1)


def test_an_app_that_raises_is_named() -> None:
    server, nodes = on_nodes(WORLD, PLAN, 4)
    nodes.grid.fault = lambda message: (
        Error(APP_RAISED, "no disk") if message.metadata.message_type == "train" else message
    )
    with pytest.raises(TrainingFailed, match="failed: its ClientApp raised no disk"):
        learn(server, 1)


MODEL: dict[str, Any] = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.array(3, dtype=np.int64)}


def work(client: int, rows: Any = ((0, 2), (2, 4)), samples: int = 6, model: Any = MODEL) -> LocalRound:
    return LocalRound(1, client, model, tuple(range(10, 10 + samples)), np.array(rows), (b"a" * 16, b"b" * 16), 2)


class Stumbles:
    """Fails at some clients."""

    def __init__(self, *at: int) -> None:
        self.at = at

    def train(self, asked: LocalRound) -> Trained:
        if asked.client in self.at:
            raise NonFiniteLoss(f"client {asked.client} failed", hint="look")
        return Trained(asked.model)


def test_of_several_failures_the_first_in_the_order_of_tasks_is_raised_with_its_kind() -> None:
    nodes = InNodes(computing(Stumbles(1, 2, 4)), nodes=5)
    nodes.grid.newest_first = True
    with pytest.raises(NonFiniteLoss, match="client 1 failed") as caught:
        nodes.trainer.train([work(client) for client in range(5)], iter(()))
    assert caught.value.hint == "look"


def test_a_failure_does_not_wait_for_later_clients() -> None:
    nodes = InNodes(computing(Stumbles(0)), nodes=2)
    nodes.grid.fault = lambda message: (
        None if message.metadata.dst_node_id == 101 and message.metadata.message_type == "train" else message
    )
    with pytest.raises(NonFiniteLoss, match="client 0 failed"):
        nodes.trainer.train([work(0), work(1)], iter(()))
    assert nodes.clock.time < 5


def test_a_node_is_sent_the_drawn_samples_only_and_steps_are_the_same() -> None:
    seen: list[LocalRound] = []

    class Sees:
        def train(self, asked: LocalRound) -> Trained:
            seen.append(asked)
            return Trained(asked.model, b"sum", (1 / 3, 5e-324, float("inf")))

    given = work(3)
    (trained,) = InNodes(computing(Sees())).trainer.train([given], iter(()))
    (asked,) = seen
    assert asked.samples == (10, 12, 14)
    assert asked.batches == given.batches
    assert (asked.round, asked.client, asked.streams, asked.witness_after) == (1, 3, given.streams, 2)
    assert (trained.checksum, trained.first_step) == (b"sum", (1 / 3, 5e-324, float("inf")))
    assert {name: tensor.tobytes() for name, tensor in trained.model.items()} == {
        name: tensor.tobytes() for name, tensor in MODEL.items()
    }


def test_the_model_of_a_round_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Any] = []

    def pack(model: Any) -> Any:
        packed.append(model)
        return records.pack_model(model)

    monkeypatch.setattr("fedforget.federation.flower.post.pack_model", pack)
    InNodes(computing(Stumbles())).trainer.train([work(client) for client in range(5)], iter(()))
    assert len(packed) == 1


def test_bytes_are_counted_in_both_directions() -> None:
    traffic = Traffic()
    nodes = InNodes(computing(Stumbles()), traffic=traffic)
    nodes.trainer.train([work(client) for client in range(5)], iter(()))
    model = 6 * 4 + 8
    asked = sum(size_of(local_rounds.asked(work(client), LocalOptimizer(), {})) for client in range(5))
    answered = size_of(local_rounds.answer(Trained(MODEL)))
    assert (traffic.bytes_down, traffic.bytes_up) == (asked, 5 * answered)
    assert 5 * model < traffic.bytes_up < 5 * (model + 100)


@pytest.mark.parametrize("keep", [True, False])
def test_nodes_that_others_use_too_stay_when_a_trainer_closes(keep: bool) -> None:
    closed: list[bool] = []

    class Closes:
        def exchange(self, asked: Any, idle: Any) -> Any:
            raise NotImplementedError

        def close(self) -> None:
            closed.append(True)

    FlowerTrainer(Closes(), LocalOptimizer(), {}, keep_nodes=keep).close()
    assert closed == ([] if keep else [True])


def test_a_reply_that_comes_twice_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic()
    nodes = InNodes(computing(Stumbles()), traffic=traffic)
    pull = nodes.grid.pull_messages
    monkeypatch.setattr(nodes.grid, "pull_messages", lambda identifiers: pull(identifiers) * 2)
    assert len(nodes.trainer.train([work(client) for client in range(5)], iter(()))) == 5
    assert traffic.bytes_up == 5 * size_of(local_rounds.answer(Trained(MODEL)))


def test_idle_work_is_done_while_nodes_compute() -> None:
    done: list[int] = []

    def idle() -> Iterator[None]:
        for number in range(4):
            done.append(number)
            yield

    nodes = InNodes(computing(Stumbles()))
    late = iter([None] * 6)
    nodes.grid.fault = lambda message: message if message.metadata.message_type == "query" else next(late, message)
    nodes.trainer.train([work(0)], idle())
    assert done == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("body", "message"),
    [({"round": "soon"}, "cannot read a local round"), ({"rows": [["x"]]}, "cannot read"), ({"local": {}}, None)],
)
def test_a_round_that_cannot_be_read_is_refused(body: dict[str, Any], message: str | None) -> None:
    parcel = local_rounds.asked(work(0), LocalOptimizer(), {})
    changed = Parcel({**parcel.body, **body}, parcel.model)
    if message is None:
        assert local_rounds.work_in(changed).local == LocalOptimizer()
        return
    with pytest.raises(InvalidInput, match=message):
        local_rounds.work_in(changed)


@pytest.mark.parametrize("body", [{}, {"checksum": "x", "first_step": []}, {"checksum": None, "first_step": ["x"]}])
def test_an_answer_that_cannot_be_read_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(TrainingFailed, match="client 7 sent a local round that cannot be read"):
        local_rounds.trained_in(Parcel(body, MODEL), 7)


def test_an_app_that_computes_nothing_says_so() -> None:
    nodes = InNodes(computing(Stumbles()))
    nodes.grid.apps = dict.fromkeys(nodes.grid.apps, client_app_of())
    with pytest.raises(InvalidInput, match="this node computes no rounds"):
        nodes.trainer.train([work(0)], iter(()))


# ----------------------------------------------------------------------------------------------------------- with torch


def worker(data: Any = None, model: Callable[[], Any] = test_pool.fresh) -> NodeWorker:
    def build(problem: Any) -> Built:
        built = Model.of(model())
        built.require_described(problem)
        return Built(built, OwnSamples(lambda client: (data or test_pool.DATA)[client]))

    return NodeWorker(build)


def trained_on_nodes(path: Path, compute: NodeWorker | None = None, **others: Any) -> tuple[Run, InNodes]:
    nodes = InNodes(compute or worker(), **others)
    nodes.grid.newest_first = nodes.grid.deliver_twice = True
    run = Run(
        path, test_pool.PLAN, model=test_pool.fresh(), data=test_pool.DATA, test=test_pool.TEST, seed=5,
        federation=Workforce(FLOWER_APP, nodes=nodes.nodes),
    )  # fmt: skip
    run.train(eval_every=2)
    return run, nodes


@pytest.mark.parametrize("federation", ["inline", "pool"])
def test_the_state_of_a_life_on_nodes_is_that_of_this_machine(tmp_path: Path, federation: str) -> None:
    """BatchNorm, dropout, momentum, FedProx and FedAdam; nodes keep nothing, answer backwards and compute twice."""
    run, _ = trained_on_nodes(tmp_path / "nodes")
    here = Run(
        tmp_path / "here", test_pool.PLAN, model=test_pool.fresh(), data=test_pool.DATA, test=test_pool.TEST, seed=5,
        federation=federation, workers=2 if federation == "pool" else None,
    )  # fmt: skip
    here.train(eval_every=2)
    assert run.state_digest() == here.state_digest()
    for request in (Request(2, 3), Request(4)):
        for each in (run, here):
            each.forget(request, basis="exogenous")
        assert run.state_digest() == here.state_digest()
    assert run.status().accuracies == here.status().accuracies
    assert run.verify().ok


def test_a_node_leaves_the_random_state_of_its_process_alone() -> None:
    """A user's data function may use it."""
    built, compute = Model.of(test_pool.fresh()), worker()
    weights = {name: tensor.numpy() for name, tensor in test_pool.fresh().state_dict().items()}
    given = LocalRound(1, 3, weights, (0, 1, 2), np.array([[0, 1], [1, 2]]), (b"a" * 16, b"b" * 16))
    asked = local_rounds.asked(given, LocalOptimizer(), built.description())
    compute(asked)  # builds the model
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert "error" not in compute(asked).body
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sample_that_changed_at_a_node_is_refused(tmp_path: Path) -> None:
    changed = {**test_pool.DATA, 3: test_pool.samples(9, 77)}
    with pytest.raises(DataChanged, match=r"the content of sample \d of client 3 is not what the run began with"):
        trained_on_nodes(tmp_path, worker(changed))


def test_another_model_at_a_node_is_refused(tmp_path: Path) -> None:
    from torch import nn  # noqa: PLC0415 (only here)

    with pytest.raises(LearnerDiffers, match="the ClientApp builds another model than the ServerApp"):
        trained_on_nodes(tmp_path, worker(model=lambda: nn.Linear(test_pool.FEATURES, test_pool.CLASSES)))


def test_a_node_in_another_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedforget.session.node_work.arithmetic_digest", lambda: "another")
    with pytest.raises(EnvironmentDiffers, match="computes in another environment than this one"):
        trained_on_nodes(tmp_path)


def test_a_node_keeps_the_data_of_few_clients_in_memory() -> None:
    asked: list[int] = []

    def data(client: int) -> Any:
        asked.append(client)
        return {0: (np.zeros(2, np.float32), 0)}

    samples = OwnSamples(data)
    for client in range(100):
        samples.sample(client, 0)
    assert len(samples._clients) == 64
    samples.sample(99, 0)
    assert asked == list(range(100))
    samples.sample(0, 0)
    assert asked[-1] == 0


def test_own_data_cannot_be_trained_by_a_simulation_that_the_caller_starts(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InvalidInput, match="cannot build a model and data of your own") as caught:
        test_pool.opened(tmp_path / "run", federation=FLOWER_SIMULATION).train()
    assert "docs/flower.md" in caught.value.hint


# ------------------------------------------------------------------------------------------------------------ the relay


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[tuple[Simulation, InNodes]]:
    """A simulation whose relay is a thread here, with nodes in this process."""
    nodes = InNodes(computing(Stumbles(1)), nodes=3)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "relay"))
    listener.listen(1)
    thread = threading.Thread(target=relay.serve, args=(GridPost(nodes.grid), str(tmp_path / "relay")))
    thread.start()
    simulation = Simulation(None, 20)
    connection = Connection(listener.accept()[0].detach())
    listener.close()
    assert connection.recv() == "ready"
    simulation._socket = connection
    with contextlib.closing(simulation):
        yield simulation, nodes
    thread.join(20)
    assert not thread.is_alive()


def test_rounds_are_handed_on_through_a_socket(relayed: tuple[Simulation, InNodes]) -> None:
    trainer = FlowerTrainer(relayed[0], LocalOptimizer(), {}, keep_nodes=True)
    for _ in range(2):
        found = trainer.train([work(client) for client in (0, 2, 3, 4)], iter(()))
        assert [each.model["weight"].tobytes() for each in found] == [MODEL["weight"].tobytes()] * 4
    models = [each.content["fedforget-model"] for each in relayed[1].grid.delivered if len(each.content) > 1]
    assert len(models) == 8
    assert len(set(map(id, models))) == 2  # also behind the socket, each round's model is packed once


def test_an_error_of_a_node_comes_through_the_socket_and_the_next_round_is_not_confused(
    relayed: tuple[Simulation, InNodes],
) -> None:
    trainer = FlowerTrainer(relayed[0], LocalOptimizer(), {})
    for _ in range(3):
        with pytest.raises(NonFiniteLoss, match="client 1 failed"):
            trainer.train([work(client) for client in (1, 2, 3, 4)], iter(()))
        other = {**MODEL, "weight": MODEL["weight"] + 1}
        (found,) = trainer.train([work(2, model=other)], iter(()))
        assert found.model["weight"].tobytes() == other["weight"].tobytes()


def test_a_relay_that_ends_is_an_error(relayed: tuple[Simulation, InNodes]) -> None:
    simulation, nodes = relayed

    def gone(message: Message) -> Message:
        raise OSError("the SuperLink has gone")

    nodes.grid.fault = gone
    with pytest.raises(TrainingFailed, match="Flower's simulation ended before it had answered"):
        FlowerTrainer(simulation, LocalOptimizer(), {}).train([work(0)], iter(()))
