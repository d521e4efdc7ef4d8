"""The processor on memories: the state is that of learning without the data, and no round is computed for nothing."""

from __future__ import annotations

from typing import cast

import pytest

from fedforget.algorithm.forget import Request
from fedforget.algorithm.learn import learn
from fedforget.algorithm.memory import ClientsInMemory
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Newcomer
from fedforget.errors import UnknownTarget
from fedforget.federation.local import LocalFederation
from fedforget.requests.lifecycle import Basis, Stage, Submission
from fedforget.requests.memory import BatchesInMemory, BookInMemory, InboxInMemory, WorkInMemory, processor_in_memory
from tests.helpers import World, prf_server, view, without

PLAN = Plan(2, 2, 2, 5)
WORLD: World = {0: (0, 1, 2, 3), 1: (0, 1), "a": (0,), 3: (0, 1, 2)}


class Life:
    """A trained server, the processor on it, and the rounds that were computed since."""

    def __init__(self) -> None:
        server = prf_server(WORLD, PLAN, 1)
        learn(server, PLAN.rounds)
        self.rounds = 0
        self.stages: list[Stage] = []
        self.inbox = InboxInMemory()
        self.batches = BatchesInMemory(BookInMemory(), self.stages.append)
        self.arriving: list[Submission] = []
        clients = cast(LocalFederation, server.federation).memory
        self.processor = processor_in_memory(server, clients, WorkInMemory(self._after), self.inbox, self.batches)

    def _after(self) -> None:
        self.rounds += 1
        while self.arriving:
            self.inbox.leave(self.arriving.pop())

    @property
    def book(self) -> BookInMemory:
        return self.batches.book

    @property
    def clients(self) -> ClientsInMemory:
        return cast(ClientsInMemory, cast(LocalFederation, self.processor.server.federation).memory)

    def forget(self, *requests: Request) -> list[str]:
        ids = self.processor.submit(asked(*requests))
        self.processor.finish()
        return ids

    def first_round(self, request: Request) -> int | None:
        if request.sample is None:
            return self.processor.server.memory.first_round(request.client)
        step = self.clients.first_steps(request.client).get(request.sample)
        return None if step is None else PLAN.round_of(step)

    def require_state_without(self, *requests: Request) -> None:
        never = prf_server(without(WORLD, requests), PLAN, 1)
        learn(never, PLAN.rounds)
        assert view(self.processor.server) == view(never)
        assert self.batches.unfinished() == []


def asked(*requests: Request, basis: str = "exogenous") -> Submission:
    return Submission.of(requests, basis)


@pytest.mark.parametrize("target", [Request(0, 1), Request(0), Request("a"), Request(3, 2)], ids=str)
def test_request_recomputes_the_rounds_since_the_first_use_only(target: Request) -> None:
    life = Life()
    first = life.first_round(target)
    (identifier,) = life.forget(target)
    life.require_state_without(target)
    assert life.rounds == (0 if first is None else PLAN.rounds - first + 1)
    assert life.book.id_of(target) == identifier
    assert life.book.was_erased_by(identifier, target)
    assert life.stages == [Stage.ACCEPTED, Stage.REMOVED, Stage.RECOMPUTED, Stage.COMPLETED]


def test_erased_target_keeps_its_request_and_costs_nothing() -> None:
    life = Life()
    first = life.forget(Request(0, 1))
    computed = life.rounds
    assert life.forget(Request(0, 1)) == first
    assert life.rounds == computed
    with pytest.raises(UnknownTarget):
        life.forget(Request(0, 99))
    with pytest.raises(UnknownTarget):
        life.forget(Request("unknown"))


def test_sample_of_an_erased_client_has_the_request_of_its_client() -> None:
    life = Life()
    ids = life.forget(Request(0))
    assert life.book.id_of(Request(0, 1)) == ids[0]
    assert not life.book.was_erased_by(ids[0], Request(0, 1))
    assert life.forget(Request(0, 1)) == ids


def test_client_emptied_by_its_last_sample_has_the_request_of_that_sample() -> None:
    life = Life()
    ids = life.forget(Request("a", 0))
    assert life.book.id_of(Request("a")) == ids[0]
    life.require_state_without(Request("a"))


def test_pending_request_waits_until_another_covers_it() -> None:
    life = Life()
    (pending,) = life.processor.intake.accept(asked(Request(0, 1)))
    (other,) = life.processor.intake.accept(asked(Request(1, 0)))
    assert life.book.pending() == {pending: Request(0, 1), other: Request(1, 0)}
    assert life.book.knows(pending)
    assert not life.book.knows("r-0")
    life.forget(Request(0))
    assert life.book.pending() == {other: Request(1, 0)}
    life.require_state_without(Request(0))
    life.book.cancel(other)
    assert life.book.pending() == {}


def test_request_that_arrives_joins_the_recomputation() -> None:
    life = Life()
    target = next(Request(client) for client in WORLD if life.first_round(Request(client)) == 1)
    one_round = prf_server(without(WORLD, [target]), PLAN, 1)
    learn(one_round, 1)
    second = Request(
        next(client for client in WORLD if client != target.client and one_round.memory.first_round(client) == 1)
    )
    life.arriving.append(asked(second))
    life.forget(target)
    life.require_state_without(target, second)
    assert life.rounds == PLAN.rounds + 1, "the first round is computed twice: the request arrived after it"
    assert not life.inbox


def test_inbox_keeps_the_order_of_receipt() -> None:
    inbox, submissions = InboxInMemory(), [asked(Request(client)) for client in range(3)]
    for submission in submissions:
        inbox.leave(submission)
    assert [each for _, each in inbox.submissions()] == submissions
    place = inbox.submissions()[1][0]
    inbox.take_away(place)
    assert [each for _, each in inbox.submissions()] == [submissions[0], submissions[2]]
    assert inbox


@pytest.mark.parametrize("basis", list(Basis))
def test_only_an_exogenous_request_leaves_the_seeds_untainted(basis: str) -> None:
    life = Life()
    life.processor.submit(asked(Request(0), basis=basis))
    assert life.book.tainted == (basis != Basis.EXOGENOUS)
    life.book.taint_unless_exogenous(Basis.EXOGENOUS)
    assert life.book.tainted == (basis != Basis.EXOGENOUS)


def test_erased_sample_that_joins_again_gives_the_state_with_it() -> None:
    life = Life()
    life.forget(Request(0, 1))
    life.processor.add([Newcomer(0, None, ((1, b""),))], {"basis": "exogenous"})
    life.processor.finish()
    life.require_state_without()
    computed = life.rounds
    life.processor.add([], {"basis": "exogenous"})
    life.processor.finish()
    assert life.rounds == computed


def test_every_round_is_computed_again_only_if_asked() -> None:
    life = Life()
    life.processor.finish()
    assert life.rounds == 0
    life.processor.recompute_all = True
    life.processor.finish()
    life.require_state_without()
    assert life.rounds == PLAN.rounds
    life.processor.finish()
    assert life.rounds == PLAN.rounds, "once is enough"
