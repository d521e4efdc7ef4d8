"""What tests share: the draws written out from the definition, worlds to forget in, and chi-square tails.

``reference_*`` stand in for the definition: given the seeds, they use ``hashlib``, ``cryptography`` and sorting only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import strategies as st

from fedforget.algorithm.draws import PrfPriorities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.plan import Keep, Plan
from fedforget.algorithm.ports import ClientMemory, LocalRound, ServerMemory, State, Trained, TrainReply
from fedforget.algorithm.seeds import SeedSource
from fedforget.federation.local import LocalFederation
from fedforget.requests.lifecycle import Receipt, Submission
from fedforget.session.deferral import leave_in_inbox
from fedforget.store import run_directory
from fedforget.store.names import BOOKS, SEALS, SERVER, USES

World = Mapping[Id, Sequence[Id]]  # client → its sample ids, all canonical

# --------------------------------------------------------------------------------------------------- the definition


def reference_block(identifier: Id) -> bytes:
    """8 zero bytes ‖ big-endian u64, or 01 ‖ BLAKE2b-120 of the UTF-8."""
    if isinstance(identifier, int):
        return identifier.to_bytes(16, "big")
    person = b"fedforget/id/1\x00\x00"
    return b"\x01" + hashlib.blake2b(identifier.encode("utf-8"), digest_size=15, person=person).digest()


def reference_key(seed: bytes, purpose: int, round_: int, index: int, client: Id | None = None) -> bytes:
    """BLAKE2b-128 of purpose, round, index and client block, keyed with the seed."""
    block = b"\xff" * 16 if client is None else reference_block(client)
    message = purpose.to_bytes(1, "big") + round_.to_bytes(8, "big") + index.to_bytes(8, "big") + block
    return hashlib.blake2b(message, key=seed, digest_size=16, person=b"fedforget/draw/1").digest()


def reference_priority(key: bytes, identifier: Id) -> int:
    """AES-128 of the id's block, read as one big-endian number."""
    encryptor = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()
    return int.from_bytes(encryptor.update(reference_block(identifier)) + encryptor.finalize(), "big")


def reference_slot(seed: bytes, round_: int, slot: int, roster: Iterable[Id]) -> Id:
    key = reference_key(seed, 1, round_, slot)
    return min(roster, key=lambda client: reference_priority(key, client))


def reference_batch(seed: bytes, round_: int, client: Id, step: int, samples: Iterable[Id], size: int) -> list[Id]:
    key = reference_key(seed, 2, round_, step, client)
    drawn = sorted(samples, key=lambda sample: reference_priority(key, sample))[:size]
    return sorted(drawn, key=reference_block)


def reference_history(world: World, plan: Plan, seed: object, rounds: int) -> tuple[Any, ...]:
    """The history of ``rounds`` rounds: per round its slots, and per distinct client its batches and stream keys."""
    seeds = SeedSource(str(seed))
    present = {client: samples for client, samples in world.items() if samples}
    history: list[Any] = []
    for round_ in range(1, rounds + 1) if present else ():
        slots = [reference_slot(seeds.server().value, round_, s, present) for s in range(plan.clients_per_round)]
        trained = []
        for client in sorted(set(slots), key=reference_block):
            own, steps = seeds.client(client).value, range(plan.local_steps)
            batches = [reference_batch(own, round_, client, i, present[client], plan.batch_size) for i in steps]
            streams = [reference_key(own, 3, round_, i, client).hex() for i in steps]
            trained.append((client, tuple(map(tuple, batches)), tuple(streams)))
        history.append((tuple(slots), tuple(trained)))
    return tuple(history)


def first_uses_in(history: Sequence[Any], plan: Plan) -> tuple[dict[Id, int], dict[tuple[Id, Id], int]]:
    """The first round of every client and the first step of every sample that a history has."""
    rounds: dict[Id, int] = {}
    steps: dict[tuple[Id, Id], int] = {}
    for round_, (slots, trained) in enumerate(history, start=1):
        for client in slots:
            rounds.setdefault(client, round_)
        for client, batches, _ in trained:
            for index, batch in enumerate(batches):
                for sample in batch:
                    steps.setdefault((client, sample), (round_ - 1) * plan.local_steps + index + 1)
    return rounds, steps


# ------------------------------------------------------------------------------------- production code, symbolic models


class HistoryIsTheModel:
    """A learner and an aggregator whose model is the history itself, as JSON in an array of bytes.

    It can be stored wherever tensors can, so a history is read out of what was stored and never derived again.
    """

    def train(self, work: LocalRound) -> Trained:
        first = json.dumps([work.round, work.client, work.batches[: work.witness_after]]).encode()
        model = self._encode([work.batches, [stream.hex() for stream in work.streams]])
        return Trained(model, first, (float(work.round), 0.0, 0.0)) if work.witness_after else Trained(model)

    def __call__(self, state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State:
        trained = [[reply.client, *self.decode(reply.model)] for reply in replies]
        return State(self._encode([*self.decode(state.model), [list(slots), trained]]))

    @classmethod
    def initial(cls) -> State:
        return State(cls._encode([]))

    @staticmethod
    def _encode(value: Any) -> dict[str, np.ndarray]:
        return {"history": np.frombuffer(json.dumps(value).encode(), np.uint8)}

    @staticmethod
    def decode(model: Any) -> tuple[Any, ...]:
        decoded: tuple[Any, ...] = _tuples(json.loads(model["history"].tobytes()))
        return decoded


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def prf_server(world: World, plan: Plan, seed: object) -> Server:
    """The production server and clients in memory, with every party's own seed."""
    seeds = SeedSource(str(seed))
    samples = {client: IdSet(ids) for client, ids in world.items() if ids}
    clients = ClientsInMemory(samples, {client: seeds.client(client).value for client in samples})
    memory = ServerInMemory(plan, IdSet(samples), HistoryIsTheModel.initial())
    return server_of(plan, seeds.server().value, memory, clients)


def server_of(plan: Plan, seed: bytes, memory: ServerMemory, clients: ClientMemory) -> Server:
    model = HistoryIsTheModel()
    return Server(plan, PrfPriorities(seed), memory, LocalFederation(plan, clients, model), model)


def server_view(memory: ServerMemory) -> dict[str, Any]:
    """Everything a server's memory can be asked."""
    done = memory.rounds_done
    kept = [round_ for round_ in range(done + 1) if memory.kept_at_or_before(round_) == round_]
    return {
        "rounds done": done,
        "roster": memory.roster.ids,
        "first rounds": {client: memory.first_round(client) for client in memory.roster},
        "kept": {round_: comparable(memory.load(round_)) for round_ in kept},
    }


def clients_view(memory: ClientMemory, roster: Iterable[Id]) -> dict[str, Any]:
    """Everything the clients' memory can be asked."""
    return {
        str(client): (
            memory.samples(client).ids,
            memory.samples(client).blocks.tobytes(),
            dict(memory.first_steps(client)),
            dict(memory.witnesses(client)),
            memory.seed(client),
        )
        for client in roster
    }


def comparable(state: State) -> tuple[Any, ...]:
    """A state of arrays in a form that ``==`` compares whole: names, types, shapes and bytes."""
    return tuple(
        sorted((part, name, array.dtype.str, array.shape, array.tobytes()) for name, array in (tensors or {}).items())
        for part, tensors in (("model", state.model), ("optimizer", state.optimizer))
    )


def view(server: Server) -> dict[str, Any]:
    """The whole state of a server and its clients."""
    federation = server.federation
    assert isinstance(federation, LocalFederation)
    return server_view(server.memory) | {"clients": clients_view(federation.memory, server.memory.roster)}


def history(server: Server) -> tuple[Any, ...]:
    return HistoryIsTheModel.decode(server.memory.load(server.memory.rounds_done).model)


# ------------------------------------------------------------------------------------------------ worlds and requests

IDS: tuple[Id, ...] = (0, 1, 2, 3, 7, 10, 2**40, 2**63 - 1, "a", "b", "ward-7", "03", "٣", "é", "")


@dataclass(frozen=True)
class Erasure:
    """A world, a plan, a seed, and batches of requests with the number of rounds done when each arrives."""

    world: World
    plan: Plan
    seed: int
    arrivals: tuple[tuple[int, tuple[Request, ...]], ...]

    @property
    def requests(self) -> list[Request]:
        return [request for _, batch in self.arrivals for request in batch]


def without(world: World, requests: Iterable[Request]) -> dict[Id, tuple[Id, ...]]:
    """The world that is left; a client without samples is no client."""
    left = {client: list(samples) for client, samples in world.items()}
    for request in requests:
        for sample in list(left.get(request.client, ())):
            if request.sample is None or sample == request.sample:
                left[request.client].remove(sample)
    return {client: tuple(samples) for client, samples in left.items() if samples}


@st.composite
def worlds(draw: st.DrawFn, *, clients: int = 6, samples: int = 8, least: int = 1) -> World:
    """Clients of unequal size, with ids that are numbers and words."""
    count = draw(st.sampled_from([1, *range(2, clients + 1), *range(2, clients + 1)]))
    roster = draw(st.permutations(IDS))[:count]
    sizes = [draw(st.integers(least, samples)) for _ in roster]
    return {client: tuple(draw(st.permutations(IDS))[:size]) for client, size in zip(roster, sizes, strict=True)}


KEEPS: st.SearchStrategy[Keep] = st.sampled_from(["every", 2, "ends"])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    small = st.integers(1, 3)
    return Plan(draw(small), draw(small), draw(small), draw(st.sampled_from([7, 5, 3, 2, 1])), keep=draw(KEEPS))


@st.composite
def arrivals(draw: st.DrawFn, requests: Sequence[Request], rounds: int) -> tuple[tuple[int, tuple[Request, ...]], ...]:
    """The requests in some order, in some batches, each batch when some number of rounds is done."""
    ordered = draw(st.permutations(list(requests)))
    batches: list[list[Request]] = []
    for request in ordered:
        if not batches or draw(st.booleans()):
            batches.append([])
        batches[-1].append(request)
    moments = st.sampled_from([rounds, *range(rounds, -1, -1)])
    when = sorted(draw(moments) for _ in batches)
    return tuple(zip(when, map(tuple, batches), strict=True))


@st.composite
def targets(draw: st.DrawFn, world: World, *, leave: int = 0) -> list[Request]:
    """Some samples, some clients, at times all samples of a client, at times everyone.

    With ``leave``, a client that does not go as a whole keeps so many samples.
    """
    if not leave and draw(st.integers(0, 19)) == 19:
        return [Request(client) for client in world]
    chosen: list[Request] = []
    for client, samples in world.items():
        fate = draw(
            st.sampled_from(["some", "stays", "some", "stays", "stays", "some", "goes", "emptied", "some and goes"])
        )
        if fate == "emptied" and not leave:
            chosen += [Request(client, sample) for sample in samples]
        if fate.startswith("some") and len(samples) > leave:
            some = st.lists(st.sampled_from(samples), min_size=1, max_size=min(3, len(samples) - leave), unique=True)
            chosen += [Request(client, sample) for sample in draw(some)]
        if fate.endswith("goes"):
            chosen.append(Request(client))
    return chosen


@st.composite
def erasures(draw: st.DrawFn) -> Erasure:
    world, plan = draw(worlds()), draw(plans())
    requests = draw(targets(world))
    return Erasure(world, plan, draw(st.integers(0, 10**6)), draw(arrivals(requests, plan.rounds)))


# -------------------------------------------------------------------------------------------------------- statistics


def chi_square_tail(counts: Sequence[int], shares: Sequence[float] | None = None) -> float:
    """P(a right generator gives counts at least this far from their shares); uniform shares if none are given."""
    import torch  # noqa: PLC0415 (for the incomplete gamma function; seconds of importing that few tests need)

    observed = np.asarray(counts, float)
    expected = observed.sum() * (np.full(len(observed), 1 / len(observed)) if shares is None else np.asarray(shares))
    assert expected.min() >= 5, "too few draws for the chi-square approximation"
    statistic = float(((observed - expected) ** 2 / expected).sum())
    half = torch.tensor([(len(observed) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def numbered_seed(number: int) -> bytes:
    """The ``number``-th of a fixed sequence of seeds."""
    return hashlib.blake2b(b"test seed %d" % number, digest_size=32).digest()


# --------------------------------------------------------------------------------------------------------------- disk


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one: tests that sync often and never pull the plug need no disk."""
    shared = Path("/dev/shm")
    place = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fedforget-test-", dir=place) as directory:
        yield Path(directory)


def take_off_seals(run: Path) -> None:
    """As if the last writer had not closed the run."""
    (run / SEALS).unlink(missing_ok=True)


def function_files(run: Path) -> dict[str, bytes]:
    """The files of a run that must be those of a run that never had the data."""
    named = {name: (run / name).read_bytes() for name in ("plan.toml", SERVER, USES, *BOOKS)}
    return named | {f"models/{path.name}": path.read_bytes() for path in sorted((run / "models").iterdir())}


def hand_in(path: Path, submission: Submission) -> list[Receipt]:
    """Leave requests in the inbox of a run that another process may be writing."""
    with run_directory.reading(path, only_idle=False) as run:
        return leave_in_inbox(run, submission)
