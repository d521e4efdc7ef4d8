"""What the algorithm asks of the world: small messages between server and clients, and a memory for each party.

The server knows the roster, slots, rounds and models; only a client knows its sample ids, its seed and its batches.
Models and states are opaque here: tensors in production, tuples of batches where laws are enumerated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.seeds import Seed

WITNESS_BYTES = 16
WITNESSED_STEPS = 5  # more steps show more: a loss may differ only for a class that few batches hold


@dataclass(frozen=True, slots=True)
class State:
    """Everything the server carries from round to round, and everything that is rewound."""

    model: Any
    optimizer: Any = None


@dataclass(frozen=True, slots=True)
class TrainTask:
    """Server to client: train round r from this model."""

    round: int
    client: Id
    model: Any


@dataclass(frozen=True, slots=True)
class TrainReply:
    """Client to server: my model after E local steps."""

    client: Id
    model: Any


@dataclass(frozen=True, slots=True)
class Presence:
    """Client to server: who I am, and the commitment to my seed."""

    client: Id
    commitment: bytes


@dataclass(frozen=True, slots=True)
class ForgetQuery:
    """Server to client: if these samples of yours went, what would change?"""

    client: Id
    samples: tuple[Id, ...]


@dataclass(frozen=True, slots=True)
class ForgetReply:
    """Client to server: the first step that used each sample (None: never), and whether I would be empty."""

    client: Id
    first_steps: tuple[int | None, ...]
    now_empty: bool


@dataclass(frozen=True, slots=True)
class JoinQuery:
    """Server to client: you took part in these rounds; if you had had these samples too, what would have changed?"""

    client: Id
    samples: tuple[Id, ...]
    rounds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JoinReply:
    """Client to server: the first step that would have used one of them (None: none would)."""

    client: Id
    first_step: int | None


@dataclass(frozen=True, slots=True)
class RemoveOrder:
    """Server to client: forget these samples, or (None) everything."""

    client: Id
    samples: tuple[Id, ...] | None


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Samples that join, with the digests of their content; ``seed`` is None for a client that is present already."""

    client: Id
    seed: Seed | None
    samples: tuple[tuple[Id, bytes], ...]


class Federation(Protocol):
    """How the server reaches the clients. Replies come in the order of the tasks; a missing one raises an error that
    names the client.
    """

    def who_are_you(self) -> list[Presence]:
        """Every client that can be reached, in ascending order of id blocks."""

    def train(self, tasks: Sequence[TrainTask]) -> list[TrainReply]:
        """Each client trains its local round and notes its first uses, or none of them notes anything."""

    def repeats(self, task: TrainTask, leaving: Collection[Id] = ()) -> bool | None:
        """Whether the client's first steps of a round that it trained before give the same again.

        None if it has no witness of that round. The witness itself never leaves the client. ``leaving``: samples that
        the round did not draw, and that may not be in the data any more.
        """

    def what_would_change(self, queries: Sequence[ForgetQuery]) -> list[ForgetReply]: ...

    def what_would_join(self, queries: Sequence[JoinQuery]) -> list[JoinReply]: ...

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        """Durable and idempotent."""

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        """Durable and idempotent."""

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        """Each client takes its new seed. Durable and idempotent."""

    def rewind(self, rounds_done: int) -> None:
        """Clients take back what they noted of later rounds."""

    def close(self) -> None:
        """End what this process started to reach the clients."""


@dataclass(frozen=True, slots=True)
class LocalRound:
    """What a client's learner needs for one round: the model, and the samples and random stream of each step.

    ``samples`` holds everything that the client has now, so that a learner can read all of it at once. ``rows`` has a
    row for each step: the places of its batch in ``samples``. The learner takes a checksum of the local model after
    ``witness_after`` steps (0: it takes none).
    """

    round: int
    client: Id
    model: Any
    samples: tuple[Id, ...]
    rows: NDArray[np.intp]
    streams: tuple[bytes, ...]
    witness_after: int = 0

    @property
    def batches(self) -> tuple[tuple[Id, ...], ...]:
        """The samples of each step."""
        return tuple(tuple(self.samples[place] for place in row) for row in self.rows.tolist())


class SampleSource(Protocol):
    """The x and y of one sample of a client."""

    def sample(self, client: Id, sample: Id) -> tuple[NDArray[Any], NDArray[Any]]: ...


@runtime_checkable
class BatchSource(SampleSource, Protocol):
    """A source that reads a whole batch at once from where it is stored, so that no learner keeps a copy."""

    def batch(self, client: Id, samples: Sequence[Id]) -> tuple[NDArray[Any], NDArray[Any]]: ...


@dataclass(frozen=True, slots=True)
class Trained:
    """What a learner returns: the local model, and the checksum of the round's first steps (None: it took none)."""

    model: Any
    checksum: bytes | None = None


class LocalLearner(Protocol):
    """E local steps on given batches: deterministic, and a function of the local round and of nothing else."""

    def train(self, work: LocalRound) -> Trained: ...


class Aggregator(Protocol):
    """The next state from the last one, the slots in order and one reply per distinct client."""

    def __call__(self, state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State: ...


class ServerMemory(Protocol):
    """The server's part of the state. Every change is whole or not at all."""

    @property
    def rounds_done(self) -> int: ...

    @property
    def roster(self) -> IdSet: ...

    def first_round(self, client: Id) -> int | None: ...

    def load(self, round_: int) -> State:
        """The state after a round that is kept."""

    def kept_at_or_before(self, round_: int) -> int:
        """The latest round up to ``round_`` whose state can be loaded."""

    def commit(self, round_: int, state: State, drawn: Sequence[Id]) -> None:
        """A round is done: its state, and the clients that took part."""

    def begin(self, batch_id: str) -> None:
        """Note that a batch of requests is about to change the state. Idempotent."""

    def rewind(self, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:
        """Back to the state after ``rounds_done``, without the clients that leave, for this batch. Idempotent."""

    def join(self, commitments: Mapping[Id, bytes]) -> None:
        """Enter new clients into the roster. Idempotent."""

    def reseed(self, seed: Seed, commitments: Mapping[Id, bytes]) -> None:
        """Take the server's new seed and the commitments to the clients'. Idempotent."""


class ClientMemory(Protocol):
    """The clients' part of the state: who has which samples, and when each was first used."""

    def commitments(self) -> Mapping[Id, bytes]: ...

    def samples(self, client: Id) -> IdSet: ...

    def first_steps(self, client: Id) -> Mapping[Id, int]: ...

    def seed(self, client: Id) -> bytes: ...

    def witnesses(self, client: Id) -> Mapping[int, bytes]:
        """The client's witness of each round that it trained and that has witnesses (``Plan.has_witness``)."""

    def note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]] = ()) -> None:
        """First uses (client, sample, step) and witnesses (client, round, witness), durable together."""

    def remove(self, orders: Sequence[RemoveOrder]) -> None: ...

    def join(self, newcomers: Sequence[Newcomer]) -> None: ...

    def reseed(self, seeds: Mapping[Id, Seed]) -> None: ...

    def rewind(self, rounds_done: int, last_step: int) -> None:
        """Drop what was noted after this round, whose last step this is."""
