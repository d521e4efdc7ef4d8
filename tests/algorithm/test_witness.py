"""Witnesses: a client repeats the first steps of an earlier round, and another learner is noticed."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fedforget.algorithm.draws import multiplicities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import Server, learn
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import WITNESS_DIGEST_BYTES, WITNESSED_STEPS, LocalRound, Trained, TrainTask
from fedforget.algorithm.witness import Repetition, repeat_witness, same_first_step
from fedforget.errors import NonFiniteLoss, TrainingFailed
from fedforget.federation.local import InlineTrainer, LocalFederation
from tests.helpers import HistoryIsTheModel, World, prf_server

WORLD: World = dict.fromkeys(range(4), (0, 1, 2, 3))
PLAN = Plan(3, 2, WITNESSED_STEPS + 1, 15)  # with witnesses of rounds 1 to 11


class Learner(HistoryIsTheModel):
    """Fails for some clients, and trains some others in another way."""

    def __init__(self, *, fails: Sequence[Id] = (), infinite: Sequence[Id] = (), differs: Sequence[Id] = ()) -> None:
        self.fails, self.infinite, self.differs = fails, infinite, differs
        self.asked: list[LocalRound] = []

    def train(self, work: LocalRound) -> Trained:
        self.asked.append(work)
        if work.client in self.fails:
            raise TrainingFailed(f"client {work.client} fails", hint="")
        if work.client in self.infinite:
            raise NonFiniteLoss(f"client {work.client} diverges", hint="")
        made = super().train(work)
        return Trained(made.model, b"another") if work.client in self.differs else made


def trained(plan: Plan = PLAN, rounds: int = 15) -> Server:
    server = prf_server(WORLD, plan, 1)
    learn(server, rounds)
    return server


def with_learner(server: Server, **how: Sequence[Id]) -> Learner:
    learner = Learner(**how)
    assert isinstance(server.federation, LocalFederation)
    server.federation._inline = InlineTrainer(learner)
    return learner


def drawn(server: Server, round_: int) -> list[Id]:
    found = list(multiplicities(server.slots(round_)))
    assert len(found) > 1
    return found


@pytest.mark.parametrize(("rounds", "repeated"), [(15, 11), (11, 11), (10, 10), (9, 9), (4, 4), (1, 1)])
def test_latest_round_that_stays_and_has_a_witness_is_repeated(rounds: int, repeated: int) -> None:
    server = trained()
    assert repeat_witness(server, rounds) == Repetition(drawn(server, repeated)[0], repeated, agrees=True)


def test_without_a_round_that_stays_the_latest_one_is_repeated() -> None:
    server = trained()
    assert repeat_witness(server, 0) == Repetition(drawn(server, 11)[0], 11, agrees=True)


def test_run_without_rounds_or_clients_has_no_witness() -> None:
    assert repeat_witness(trained(rounds=0), 5) is None
    server = trained()
    server.memory.rewind(15, list(WORLD))
    assert repeat_witness(server, 15) is None


def test_another_learner_is_noticed() -> None:
    server = trained()
    client = drawn(server, 11)[0]
    with_learner(server, differs=[client])
    assert repeat_witness(server, 15) == Repetition(client, 11, agrees=False)


def test_learner_whose_loss_is_not_finite_now_disagrees() -> None:
    server = trained()
    client = drawn(server, 11)[0]
    with_learner(server, infinite=[client])
    assert repeat_witness(server, 15) == Repetition(client, 11, agrees=False)


def test_client_that_fails_leaves_it_to_the_next() -> None:
    server = trained()
    first, second, *_ = drawn(server, 11)
    with_learner(server, fails=[first])
    assert repeat_witness(server, 15) == Repetition(second, 11, agrees=True)


def test_round_whose_clients_all_fail_raises() -> None:
    server = trained()
    with_learner(server, fails=list(WORLD))
    with pytest.raises(TrainingFailed, match="fails"):
        repeat_witness(server, 15)


@pytest.mark.parametrize("all_clients", [False, True])
def test_every_client_of_the_round_is_asked_only_if_wanted(all_clients: bool) -> None:
    server = trained()
    clients = drawn(server, 11)
    learner = with_learner(server, differs=[clients[-1]])
    found = repeat_witness(server, 15, all_clients=all_clients)
    assert found is not None
    assert (found.client, found.agrees) == ((clients[-1], False) if all_clients else (clients[0], True))
    assert [work.client for work in learner.asked] == (clients if all_clients else clients[:1])


def test_rounds_of_another_environment_are_passed_over() -> None:
    server = trained()
    comparable: Callable[[int], bool] = lambda round_: round_ < 6  # noqa: E731
    assert repeat_witness(server, 15, comparable=comparable) == Repetition(drawn(server, 5)[0], 5, agrees=True)
    assert repeat_witness(server, 15, comparable=lambda _: False) is None


def test_client_that_loses_a_sample_repeats_a_round_that_stays_without_it() -> None:
    server = trained()
    client = drawn(server, 1)[0]
    learner = with_learner(server)
    found = repeat_witness(server, 1, [Request(client, 3)])
    assert found is not None
    assert (found.client, found.round) == (client, 1)
    (work,) = learner.asked
    assert 3 not in work.samples
    assert len(work.rows) == len(work.streams) == work.witness_after < PLAN.local_steps


def test_client_that_loses_something_is_not_asked_about_a_later_round() -> None:
    server = trained()
    first, second, *_ = drawn(server, 11)
    assert repeat_witness(server, 0, [Request(first, 0)]) == Repetition(second, 11, agrees=True)
    requests = [Request(first), Request(second, 1)]
    found = repeat_witness(server, 0, requests)
    assert found is not None
    assert found.client not in (first, second)


def test_missing_witness_is_reported_for_a_round_that_stays_and_passed_over_in_a_later_one() -> None:
    server = trained()
    assert isinstance(server.federation, LocalFederation)
    memory: Any = server.federation.memory
    first, second, *_ = drawn(server, 11)
    del memory._witnesses[first][11]
    assert repeat_witness(server, 15) == Repetition(first, 11, agrees=None)
    assert repeat_witness(server, 0) == Repetition(second, 11, agrees=True)


def witness(loss: float, moved: float, buffers: float = 0.0) -> bytes:
    return bytes(WITNESS_DIGEST_BYTES) + struct.pack("<3d", loss, moved, buffers)


@pytest.mark.parametrize(
    ("then", "now", "agree"),
    [
        (witness(2.0, 0.5), witness(2.0, 0.5), True),
        (witness(2.0, 0.5), witness(2.001, 0.5004), True),
        (witness(2.0, 0.5), witness(2.003, 0.5), False),
        (witness(2.0, 0.5), witness(2.0, 0.501), False),
        (witness(2.0, 0.5, 3.0), witness(2.0, 0.5, 3.01), False),
        (witness(0.0, 1e-7), witness(9e-6, 2e-7), True),  # rounding of a weight of 1
        (witness(0.0, 0.0), witness(2e-5, 0.0), False),
        (witness(0.0, 0.0), witness(0.0, 1e-6), False),
        (witness(2.0, 0.5), witness(math.nan, 0.5), False),
        (witness(2.0, math.inf), witness(2.0, math.inf), False),
    ],
)
def test_first_steps_agree_if_rounding_explains_the_difference(then: bytes, now: bytes, agree: bool) -> None:
    model = {"weight": np.ones(1, np.float32), "count": np.array(10**9)}
    assert same_first_step(then, now, model) is agree


@pytest.mark.parametrize("bitwise", [True, False])
def test_federation_is_asked_for_a_comparison_of_bits_or_of_numbers(
    bitwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, asked = trained(), []

    def repeats(task: TrainTask, leaving: Sequence[Id] = (), *, bitwise: bool = True) -> bool:
        asked.append(bitwise)
        return True

    monkeypatch.setattr(server.federation, "repeats", repeats)
    repeat_witness(server, 15, bitwise=bitwise)
    assert asked == [bitwise]
