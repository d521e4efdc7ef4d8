"""The checks that the mutants must fail. Each returns a measure of the error, which is 0 on the code that ships.

There are three kinds, in this order of preference: laws by enumeration, whose error is a total variation distance;
paths, which compare the state after forgetting with that of training without the data, draw by draw; runs on disk.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedforget.algorithm import aggregate, draws, learn
from fedforget.algorithm.aggregate import TakeAverage, aggregator
from fedforget.algorithm.forget import Request, forget
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import Plan, ServerOptimizer
from fedforget.algorithm.ports import LocalRound, State, Trained, TrainReply
from fedforget.errors import DataChanged, LearnerDiffers, TrainingFailed
from fedforget.evidence import laws
from fedforget.evidence.case import Case, prove
from fedforget.evidence.laws import Oracle, enumerate_orders, remaining_world, symbolic_server, total_variation
from fedforget.federation.local import LocalFederation
from fedforget.run import Run
from fedforget.store import run_directory
from fedforget.store.model_files import encode

# ---------------------------------------------------------------------------------------------------------------- laws


def law(case: Case) -> Fraction:
    """The distance between forgetting and the textbook law of learning on the remaining data, as ``prove`` has it."""
    return prove(case).total_variation


def law_of_average(clients: int, slots: int, *, fails_once: int | None = None) -> Fraction:
    """The distance in law between the averaged model of one round and 1/K times the sum over the slots.

    The model of client k is the number k. The client ``fails_once`` fails in its first local round; a command that
    fails is repeated.
    """
    world = dict.fromkeys(range(clients), (0,))
    plan = Plan(slots, 1, 1, 1)

    def run(oracle: Oracle) -> tuple[Any, ...]:
        server = _numbered_server(world, plan, oracle, fails_once)
        while server.memory.rounds_done < plan.rounds:
            try:
                learn.learn(server, plan.rounds)
            except TrainingFailed:
                continue
        return (float(server.memory.load(plan.rounds).model["w"]),)

    expected: dict[tuple[Any, ...], Fraction] = {}
    for filled in product(world, repeat=slots):
        mean = (float(Fraction(sum(filled), slots)),)
        expected[mean] = expected.get(mean, Fraction(0)) + Fraction(1, clients**slots)
    return total_variation(enumerate_orders(run), expected)


def _numbered_server(world: laws.World, plan: Plan, oracle: Oracle, fails_once: int | None) -> Server:
    failing = [fails_once]

    class Numbers:
        def train(self, work: LocalRound) -> Trained:
            if work.client in failing:
                failing.clear()
                raise TrainingFailed(f"client {work.client} failed")
            return Trained({"w": np.float64(work.client)})

    memory = ServerInMemory(plan, IdSet(world), State({"w": np.float64(0)}))
    clients = ClientsInMemory({k: IdSet(ids) for k, ids in world.items()}, dict.fromkeys(world, b""))
    federation = LocalFederation(plan, clients, Numbers(), priorities=lambda _: oracle)
    return Server(plan, oracle, memory, federation, TakeAverage())


# --------------------------------------------------------------------------------------------------------------- paths


def paths(case: Case) -> Fraction:
    """The probability that forgetting leaves another state than learning on the remaining data with the same draws.

    The state includes every stored model, the roster, and the first uses of server and clients.
    """
    plan = Plan(case.K, case.b, case.E, case.R, keep=case.keep)
    left = remaining_world(case.world, case.requests)

    def run(oracle: Oracle) -> tuple[bool]:
        forgetting = symbolic_server(case.world, oracle, plan)
        for batch, rounds_done in (laws._parse(entry, case.R) for entry in case.requests):
            learn.learn(forgetting, rounds_done)
            forget(forgetting, laws._present_targets(forgetting, batch))
        learn.learn(forgetting, case.R)
        never_had = symbolic_server(left, oracle, plan)
        learn.learn(never_had, case.R)
        return (_state(forgetting) == _state(never_had),)

    return enumerate_orders(run).get((False,), Fraction(0))


def _state(server: Server) -> tuple[Any, ...]:
    memory, federation = server.memory, server.federation
    assert isinstance(memory, ServerInMemory)
    assert isinstance(federation, LocalFederation)
    clients = {
        client: (federation.memory.samples(client).ids, dict(federation.memory.first_steps(client)))
        for client in memory.roster
    }
    return memory.rounds_done, memory.roster.ids, memory._states, memory.first_rounds(), clients


def numeric_paths() -> int:
    """In how many of 20 cases with a server Adam forgetting leaves other bits than retraining."""
    wrong = 0
    for seed, request in product(range(10), (Request(1), Request(0, 2))):
        forgetting = _adam_server(seed, {client: range(4) for client in range(3)})
        learn.learn(forgetting, 5)
        forget(forgetting, [request])
        left = {k: [x for x in range(4) if request not in (Request(k), Request(k, x))] for k in range(3)}
        never_had = _adam_server(seed, {client: ids for client, ids in left.items() if ids})
        learn.learn(never_had, 5)
        wrong += any(
            encode(forgetting.memory.load(round_)) != encode(never_had.memory.load(round_)) for round_ in range(6)
        )
    return wrong


def _adam_server(seed: int, world: Mapping[int, Sequence[int]]) -> Server:
    plan = Plan(1, 1, 1, 5, server=ServerOptimizer("fedadam"))

    class MovesHalfway:
        """A step moves the model half of the way to the number of the sample."""

        def train(self, work: LocalRound) -> Trained:
            model = work.model["w"]
            for batch in work.batches:
                model = (model + np.float64(10 * int(work.client) + sum(map(int, batch)))) / 2
            return Trained({"w": model})

    samples: dict[Id, IdSet] = {client: IdSet(ids) for client, ids in world.items()}
    clients = ClientsInMemory(samples, {client: bytes([seed, int(client)]) * 16 for client in samples})
    memory = ServerInMemory(plan, IdSet(samples), State({"w": np.zeros(1)}))
    federation = LocalFederation(plan, clients, MovesHalfway())
    adam = aggregator(plan.server, frozenset({"w"}))
    return Server(plan, draws.PrfPriorities(bytes([seed]) * 32), memory, federation, adam)


def orders_of_replies() -> int:
    """How many different averages, beyond one, the six orders of three replies give; their float sum has an order."""
    replies = [TrainReply(client, {"w": np.float64(value)}) for client, value in enumerate((1e16, 1.0, -1e16))]
    results = {
        aggregate.TakeAverage()(State({}), (2, 0, 1), order).model["w"].tobytes() for order in permutations(replies)
    }
    return len(results) - 1


def unrelated_draws_that_change() -> int:
    """How many draws of the PRF change although they did not hold the removed id."""
    priorities, everyone = draws.PrfPriorities(bytes(range(32))), IdSet(range(12))
    changed = 0
    for step, gone in product(range(40), range(12)):
        batches = []
        for samples in (everyone, everyone.without([gone])):
            places = draws.draw_batch_without_replacement(priorities, 3, samples, 1, step, 3)
            batches.append({samples.ids[place] for place in places})
        changed += gone not in batches[0] and batches[0] != batches[1]
    return changed


# -------------------------------------------------------------------------------------------------------- runs on disk


def _directory() -> tempfile.TemporaryDirectory[str]:
    """A directory in memory where possible: these checks compare states and need no durable disk."""
    shared = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None)


def _data() -> dict[int, dict[int, tuple[Any, int]]]:
    rng = np.random.default_rng(5)
    return {
        client: {sample: (rng.normal(size=2).astype(np.float32), (client + sample) % 2) for sample in range(3)}
        for client in range(3)
    }


def _module() -> nn.Module:
    module = nn.Linear(2, 2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module


def _run(path: Path, data: Any, plan: Plan, seed: int, without: Sequence[Request] = ()) -> Run:
    return Run(path, plan, model=_module(), data=data, seed=seed, without=without)


def run_on_disk(*stream: Request, server: str = "average") -> int:
    """1 if a run that forgets a stream of requests ends in another state than one that never had the data."""
    plan, seed = Plan(1, 1, 2, 4, server=ServerOptimizer(server)), 3
    with _directory() as directory:
        forgetting = _run(Path(directory, "forgets"), _data(), plan, seed)
        forgetting.train()
        for request in stream:
            forgetting.forget([request])
        never_had = _run(Path(directory, "never-had"), _data(), plan, seed, stream)
        never_had.train()
        return int(forgetting.state_digest() != never_had.state_digest())


def interrupted_on_disk(*stream: Request, seed: int) -> int:
    """The same with each request interrupted after one round and finished after reopening the run."""
    plan = Plan(1, 1, 2, 4)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with _directory() as directory:
        path = Path(directory, "forgets")
        _run(path, _data(), plan, seed).train()
        for request in stream:
            with contextlib.suppress(KeyboardInterrupt):
                _run(path, _data(), plan, seed).forget([request], on_round=interrupt)
            _run(path, _data(), plan, seed).train()
        never_had = _run(Path(directory, "never-had"), _data(), plan, seed, stream)
        never_had.train()
        return int(_run(path, _data(), plan, seed).state_digest() != never_had.state_digest())


def content_changed(change: Callable[[Any, int], tuple[Any, int]]) -> int:
    """Change a sample's content halfway through training: 0 if refused, 1 if the model belongs to neither content."""
    plan, seed, finals = Plan(2, 2, 2, 4), 3, []
    other = _data()
    other[1][0] = change(*other[1][0])
    with _directory() as directory:
        for name, data in (("old", _data()), ("new", other)):
            finals.append(_run(Path(directory, name), data, plan, seed).train().model_digest)
        half = _run(Path(directory, "half"), _data(), plan, seed)
        half.train(until=2)
        try:
            final = Run(half.path, model=_module(), data=other).train().model_digest
        except DataChanged:
            return 0
        except LearnerDiffers:  # the wrong error: the data changed, not the learner
            return 1
        return int(final not in finals)


def content_changed_beside_erasure() -> int:
    """Erase samples of clients whose other samples have changed content: how many models hold the changed content."""
    plan, wrong = Plan(2, 1, 1, 12), 0
    for changed, erased in itertools.product(range(3), repeat=2):
        other = _data()
        x, y = other[1][changed]
        other[1][changed] = (x + 1, y)
        if changed == erased:
            continue
        with _directory() as directory:
            run = _run(Path(directory, "run"), _data(), plan, 3)
            run.train()
            with contextlib.suppress(DataChanged):
                Run(run.path, model=_module(), data=other).forget(Request(1, erased))
            run.forget(Request(1, erased))  # with the right data: finishes what was begun
            wrong += not run.verify().ok
    return wrong


def unchanged_client_seeds() -> int:
    """How many clients have the same seed before and after ``new_seed``."""
    with _directory() as directory:
        run = _run(Path(directory, "run"), _data(), Plan(2, 2, 2, 4), 3)
        run.train()
        before = _seeds(run)
        run.forget(new_seed=True)
        assert run.verify().ok
        return sum(before[client] == seed for client, seed in _seeds(run).items())


def _seeds(run: Run) -> dict[Id, bytes]:
    with run_directory.reading(run.path) as found:
        return {client: found.clients.seed(client) for client in found.server.roster}


def pending_requests_of_emptied_client() -> int:
    """How many requests for a client stay pending after its last sample was erased."""
    with _directory() as directory:
        run = _run(Path(directory, "run"), _data(), Plan(2, 2, 2, 4), 3)
        run.train()
        run.forget(Request(1), defer=True)
        run.forget([Request(1, sample) for sample in range(3)])
        assert set(run.clients()) == {0, 2}
        return len(run.status().open_requests)
