"""One port, several ways to reach clients, one contract.

A new adapter adds itself to ``ADAPTERS``: how to make it from a plan, the clients' memory and a learner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.memory import ClientsInMemory
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import (
    ClientMemory,
    Federation,
    ForgetQuery,
    ForgetReply,
    LocalLearner,
    LocalRound,
    Presence,
    RemoveOrder,
    Trained,
    TrainReply,
    TrainTask,
)
from fedforget.algorithm.seeds import SeedSource
from fedforget.errors import FedForgetError, TrainingFailed, UnknownTarget
from fedforget.federation.local import LocalFederation
from fedforget.federation.pool import WorkerPool
from tests.federation.flower_in_process import InFlower, InNodes, computing
from tests.helpers import HistoryIsTheModel, World, clients_view, reference_batch, reference_block, reference_key

Make = Callable[[Plan, ClientMemory, LocalLearner], Federation]


def pool(plan: Plan, memory: ClientMemory, learner: LocalLearner) -> Federation:
    trainer = WorkerPool(plan.clients_per_round, learner, workers=2)
    return LocalFederation(plan, memory, learner, trainer=trainer)


def flower(plan: Plan, memory: ClientMemory, learner: LocalLearner) -> Federation:
    assert isinstance(memory, ClientsInMemory)
    return InFlower(plan, memory, learner, check=lambda *_: None).federation  # a history grows, unlike a model


def simulation(plan: Plan, memory: ClientMemory, learner: LocalLearner) -> Federation:
    return LocalFederation(plan, memory, learner, trainer=InNodes(computing(learner)).trainer)


ADAPTERS: dict[str, Make] = {
    "inline": LocalFederation,
    "pool": pool,
    "flower": flower,
    "flower-simulation": simulation,
}

WORLD: World = {0: (0, 1, 2, 3), "ward-7": ("a", "b", 5), 7: (0,), "03": ("x", "y", "z", 1, 2)}
PLAN = Plan(clients_per_round=3, batch_size=2, local_steps=2, rounds=6)
SEEDS = SeedSource("contract")
MODEL = HistoryIsTheModel.initial().model


@pytest.fixture(params=ADAPTERS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with contextlib.ExitStack() as made:

        def one(plan: Plan, memory: ClientMemory, learner: LocalLearner) -> Federation:
            return made.enter_context(contextlib.closing(ADAPTERS[request.param](plan, memory, learner)))

        yield one


@pytest.fixture
def memory() -> ClientsInMemory:
    return ClientsInMemory(
        {client: IdSet(samples) for client, samples in WORLD.items()},
        {client: SEEDS.client(client).value for client in WORLD},
        {client: SEEDS.client(client).commitment for client in WORLD},
    )


@pytest.fixture
def federation(make: Make, memory: ClientsInMemory) -> Federation:
    return make(PLAN, memory, HistoryIsTheModel())


def tasks(round_: int, *clients: Id) -> list[TrainTask]:
    return [TrainTask(round_, client, MODEL) for client in clients]


def batches(reply: TrainReply) -> Any:
    return HistoryIsTheModel.decode(reply.model)[0]


def expected_batches(client: Id, round_: int, samples: Any = None) -> tuple[tuple[Id, ...], ...]:
    """From the definition of the draws alone."""
    held = WORLD[client] if samples is None else samples
    seed = SEEDS.client(client).value
    return tuple(tuple(reference_batch(seed, round_, client, step, held, 2)) for step in range(2))


def expected_first_steps(client: Id, rounds: list[int], samples: Any = None) -> dict[Id, int]:
    first: dict[Id, int] = {}
    for round_ in rounds:
        for index, batch in enumerate(expected_batches(client, round_, samples)):
            for sample in batch:
                first.setdefault(sample, 2 * (round_ - 1) + index + 1)
    return first


def test_presence_is_in_order_of_id_blocks(federation: Federation) -> None:
    def present(*clients: Id) -> list[Presence]:
        return [Presence(client, SEEDS.client(client).commitment) for client in clients]

    in_order = sorted(WORLD, key=reference_block)
    assert federation.who_are_you() == present(*in_order)
    federation.remove([RemoveOrder(7, None), RemoveOrder(0, (1,))])
    assert federation.who_are_you() == present(*(client for client in in_order if client != 7))


# ------------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("order", [(0, "ward-7", 7, "03"), ("03", 7, 0, "ward-7"), (7,), ()], ids=str)
def test_replies_come_in_task_order(federation: Federation, order: tuple[Id, ...]) -> None:
    replies = federation.train(tasks(1, *order))
    assert [reply.client for reply in replies] == list(order)
    assert [batches(reply) for reply in replies] == [expected_batches(client, 1) for client in order]


class Checks:
    """Looks at what a learner is given on its way."""

    def train(self, work: LocalRound) -> Trained:
        assert work.model["history"].tobytes() == MODEL["history"].tobytes()
        assert (work.round, work.client) == (4, "03")
        return HistoryIsTheModel().train(work)


def test_a_client_is_given_the_model_its_batches_and_its_streams(make: Make, memory: ClientsInMemory) -> None:
    (reply,) = make(PLAN, memory, Checks()).train(tasks(4, "03"))
    streams = tuple(reference_key(SEEDS.client("03").value, 3, 4, step, "03").hex() for step in range(2))
    assert HistoryIsTheModel.decode(reply.model) == (expected_batches("03", 4), streams)


def test_first_uses_are_noted(federation: Federation, memory: ClientsInMemory) -> None:
    federation.train(tasks(1, 0, "03"))
    federation.train(tasks(2, 0))
    federation.train(tasks(3, "ward-7", "03"))
    assert memory.first_steps(0) == expected_first_steps(0, [1, 2])
    assert memory.first_steps("03") == expected_first_steps("03", [1, 3])
    assert memory.first_steps("ward-7") == expected_first_steps("ward-7", [3])
    assert memory.first_steps(7) == {}


def test_second_federation_continues_from_the_stored_notes(make: Make, memory: ClientsInMemory) -> None:
    make(PLAN, memory, HistoryIsTheModel()).train(tasks(1, 0, "03"))
    make(PLAN, memory, HistoryIsTheModel()).train(tasks(2, 0, "03"))
    assert memory.first_steps(0) == expected_first_steps(0, [1, 2])
    assert memory.first_steps("03") == expected_first_steps("03", [1, 2])


# -------------------------------------------------------------------------------------------------------------- failing


class Fails:
    """A learner that fails at some clients, until told otherwise."""

    def __init__(self, *clients: Id) -> None:
        self.at = set(clients)

    def train(self, work: LocalRound) -> Trained:
        if work.client in self.at:
            raise TrainingFailed(f"client {work.client} failed in round {work.round}")
        return HistoryIsTheModel().train(work)


def test_a_client_that_fails_is_named_and_nothing_of_the_round_is_noted(make: Make, memory: ClientsInMemory) -> None:
    federation = make(PLAN, memory, Fails("ward-7"))
    with pytest.raises(TrainingFailed, match="client ward-7"):
        federation.train(tasks(1, 0, "ward-7", "03"))
    assert all(memory.first_steps(client) == {} for client in WORLD)


def test_the_same_round_can_be_trained_again_after_a_failure(make: Make, memory: ClientsInMemory) -> None:
    """A use that was drawn in the failed attempt is still a first use when the round succeeds."""
    learner = Fails("ward-7")
    federation = make(PLAN, memory, learner)
    with pytest.raises(TrainingFailed):
        federation.train(tasks(1, 0, "ward-7"))
    learner.at.clear()
    replies = federation.train(tasks(1, 0, "ward-7"))
    assert [batches(reply) for reply in replies] == [expected_batches(client, 1) for client in (0, "ward-7")]
    assert memory.first_steps(0) == expected_first_steps(0, [1])
    assert memory.first_steps("ward-7") == expected_first_steps("ward-7", [1])


@pytest.mark.parametrize("others", [(), (0,)])
def test_unknown_client_is_named(federation: Federation, others: tuple[Id, ...]) -> None:
    with pytest.raises((FedForgetError, KeyError), match="nobody"):
        federation.train(tasks(1, *others, "nobody"))


# --------------------------------------------------------------------------------------------------- what would change


def test_clients_answer_in_query_order_with_first_steps(federation: Federation, memory: ClientsInMemory) -> None:
    federation.train(tasks(1, 0, "03"))
    federation.train(tasks(2, "03", "ward-7"))
    before = clients_view(memory, WORLD)
    queries = [ForgetQuery("03", tuple(WORLD["03"][:3])), ForgetQuery(7, (0,)), ForgetQuery(0, (3, 1))]
    used_03, used_0 = expected_first_steps("03", [1, 2]), expected_first_steps(0, [1])
    assert federation.what_would_change(queries) == [
        ForgetReply("03", tuple(used_03.get(sample) for sample in WORLD["03"][:3]), now_empty=False),
        ForgetReply(7, (None,), now_empty=True),
        ForgetReply(0, (used_0.get(3), used_0.get(1)), now_empty=False),
    ]
    assert clients_view(memory, WORLD) == before  # asking changes nothing


def test_client_without_its_last_samples_is_empty(federation: Federation) -> None:
    (reply,) = federation.what_would_change([ForgetQuery("ward-7", ("a", "b"))])
    assert not reply.now_empty
    federation.remove([RemoveOrder("ward-7", (5,))])
    (reply,) = federation.what_would_change([ForgetQuery("ward-7", ("a", "b"))])
    assert reply.now_empty


@pytest.mark.parametrize(("client", "sample"), [(0, 99), ("ward-7", "A"), ("03", "05"), (7, "0 ")])
def test_an_unknown_sample_raises_and_is_named(federation: Federation, client: Id, sample: Id) -> None:
    known = WORLD[client][0]
    with pytest.raises(UnknownTarget, match=f"client {client} has no sample {sample}"):
        federation.what_would_change([ForgetQuery(client, (known, sample))])


def test_a_sample_that_was_removed_is_unknown(federation: Federation) -> None:
    federation.train(tasks(1, 0))
    federation.remove([RemoveOrder(0, (1,))])
    with pytest.raises(UnknownTarget, match="client 0 has no sample 1"):
        federation.what_would_change([ForgetQuery(0, (1,))])


# ---------------------------------------------------------------------------------------------------- rewind and remove


def test_repeating_a_witness_notes_nothing(federation: Federation, memory: ClientsInMemory) -> None:
    (task,) = tasks(1, "03")
    federation.train([task])
    federation.train(tasks(2, "03"))
    before = clients_view(memory, WORLD)
    unused = tuple(sample for sample in WORLD["03"] if sample not in expected_first_steps("03", [1]))
    assert unused
    assert federation.repeats(task)
    assert federation.repeats(task, unused)
    assert clients_view(memory, WORLD) == before


@pytest.mark.parametrize("back_to", [0, 1, 2, 3])
def test_rewind_drops_first_uses_of_later_rounds(federation: Federation, memory: ClientsInMemory, back_to: int) -> None:
    for round_ in (1, 2, 3):
        federation.train(tasks(round_, 0, "03"))
    after = clients_view(memory, WORLD)
    federation.rewind(back_to)
    for client in (0, "03"):
        assert memory.first_steps(client) == expected_first_steps(client, list(range(1, back_to + 1)))
        (reply,) = federation.what_would_change([ForgetQuery(client, tuple(WORLD[client]))])
        noted = expected_first_steps(client, list(range(1, back_to + 1)))
        assert reply.first_steps == tuple(noted.get(sample) for sample in WORLD[client])
    for round_ in range(back_to + 1, 4):
        federation.train(tasks(round_, 0, "03"))
    assert clients_view(memory, WORLD) == after


def test_removed_samples_are_out_of_every_later_batch(federation: Federation, memory: ClientsInMemory) -> None:
    federation.train(tasks(1, 0, "03"))
    others = clients_view(memory, (0, "ward-7", 7))
    order = RemoveOrder("03", ("y", 2))
    federation.rewind(0)
    for _ in range(2):  # idempotent
        federation.remove([order])
        assert set(memory.samples("03")) == {"x", "z", 1}
    for round_ in range(1, 7):
        (reply,) = federation.train(tasks(round_, "03"))
        assert batches(reply) == expected_batches("03", round_, ("x", "z", 1))
    assert memory.first_steps("03") == expected_first_steps("03", list(range(1, 7)), ("x", "z", 1))
    assert {client: each[0] for client, each in clients_view(memory, (0, "ward-7", 7)).items()} == {
        client: each[0] for client, each in others.items()
    }


class Breaks:
    """A learner with a fault that is not ours."""

    def train(self, work: LocalRound) -> Trained:
        raise IndexError(f"no row {work.client}")


def test_learner_error_names_client_and_round(make: Make, memory: ClientsInMemory) -> None:
    with pytest.raises(TrainingFailed, match="client ward-7 failed in round 5: IndexError: no row ward-7") as caught:
        make(PLAN, memory, Breaks()).train(tasks(5, "ward-7", "03"))
    assert "same command again" in (caught.value.hint or "")


def test_first_uses_of_remaining_samples_survive_a_removal(federation: Federation, memory: ClientsInMemory) -> None:
    federation.train(tasks(1, "03"))
    noted = expected_first_steps("03", [1])
    gone = next(iter(noted))
    federation.remove([RemoveOrder("03", (gone,))])
    assert memory.first_steps("03") == {sample: step for sample, step in noted.items() if sample != gone}


def test_removed_client_cannot_be_trained(federation: Federation, memory: ClientsInMemory) -> None:
    federation.train(tasks(1, 0, "ward-7"))
    for _ in range(2):  # idempotent
        federation.remove([RemoveOrder("ward-7", None), RemoveOrder("never was", None)])
        with pytest.raises((FedForgetError, KeyError), match="ward-7"):
            federation.train(tasks(2, "ward-7"))
    (reply,) = federation.train(tasks(2, 0))
    assert batches(reply) == expected_batches(0, 2)


def test_removing_from_a_removed_client_does_nothing(federation: Federation, memory: ClientsInMemory) -> None:
    federation.remove([RemoveOrder(0, None)])
    rest = [client for client in WORLD if client != 0]
    before = clients_view(memory, rest)
    federation.remove([RemoveOrder(0, (1,)), RemoveOrder("ward-7", ("not there",))])
    assert clients_view(memory, rest) == before
