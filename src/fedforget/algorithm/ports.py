"""The ports of the algorithm: messages between server and clients, and a memory for each party.

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

WITNESS_DIGEST_BYTES = 16
WITNESS_BYTES = WITNESS_DIGEST_BYTES + 3 * 8  # the digest, and three numbers of the first step
WITNESSED_STEPS = 5  # several, because a loss may differ only for a class that few mini-batches hold


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the server carries from round to round, and that a rewind restores."""

    model: Any
    optimizer: Any = None


@dataclass(frozen=True, slots=True)
class TrainTask:
    """Server to client: train this round from this model."""

    round: int
    client: Id
    model: Any


@dataclass(frozen=True, slots=True)
class TrainReply:
    """Client to server: the local model after E local steps."""

    client: Id
    model: Any


@dataclass(frozen=True, slots=True)
class Presence:
    """Client to server: the client's id and the commitment to its seed."""

    client: Id
    commitment: bytes


@dataclass(frozen=True, slots=True)
class ForgetQuery:
    """Server to client: report what erasing these samples would change."""

    client: Id
    samples: tuple[Id, ...]
    leaving: bool = False  # the whole client leaves in any case


@dataclass(frozen=True, slots=True)
class ForgetReply:
    """Client to server: the first step that used each sample (None: never), and whether none would remain."""

    client: Id
    first_steps: tuple[int | None, ...]
    now_empty: bool


@dataclass(frozen=True, slots=True)
class JoinQuery:
    """Server to client: report what these additional samples would have changed in these rounds of the client."""

    client: Id
    samples: tuple[Id, ...]
    rounds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JoinReply:
    """Client to server: the first step that would have used one of the samples (None: no step)."""

    client: Id
    first_step: int | None


@dataclass(frozen=True, slots=True)
class RemoveOrder:
    """Server to client: remove these samples, or (None) all data of the client."""

    client: Id
    samples: tuple[Id, ...] | None


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What the server knows of a client that holds its own data and its own seed."""

    commitment: bytes
    root: bytes  # of the tree over its samples


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Samples that join, with the digests of their content; ``seed`` is None if the client is in the roster already.

    ``enrolled``: a new client that has its seed and samples itself, so that neither is named.
    """

    client: Id
    seed: Seed | None
    samples: tuple[tuple[Id, bytes], ...]
    enrolled: Enrolled | None = None

    @property
    def commitment(self) -> bytes | None:
        """The commitment of a new client; None if the client is in the roster already."""
        if self.enrolled is not None:
            return self.enrolled.commitment
        return None if self.seed is None else self.seed.commitment


class Federation(Protocol):
    """How the server reaches the clients.

    Replies come in the order of the tasks. A missing reply raises an error that names the client.
    """

    def who_are_you(self) -> list[Presence]:
        """Return every client that can be reached, in ascending order of id blocks."""

    def train(self, tasks: Sequence[TrainTask]) -> list[TrainReply]:
        """Train each client's local round and note the first uses. If one client fails, no client notes anything."""

    def repeats(self, task: TrainTask, leaving: Collection[Id] = (), *, bitwise: bool = True) -> bool | None:
        """Repeat the client's first steps of an earlier round. Return whether the result agrees with its witness.

        None if the client has no witness of that round. The witness never leaves the client. ``leaving``: samples that
        the round did not draw, and that may be missing from the data. ``bitwise=False`` compares the first step within
        a tolerance, for a round that another environment computed.
        """

    def what_would_change(self, queries: Sequence[ForgetQuery]) -> list[ForgetReply]:
        """Return, for each query, what erasing its samples would change."""

    def what_would_join(self, queries: Sequence[JoinQuery]) -> list[JoinReply]:
        """Return, for each query, what its additional samples would have changed."""

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        """Remove samples or whole clients. Durable and idempotent."""

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        """Add samples and clients. Durable and idempotent."""

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        """Give each client its new seed. Durable and idempotent."""

    def rewind(self, rounds_done: int) -> None:
        """Drop what the clients noted after ``rounds_done`` rounds."""

    def close(self) -> None:
        """Stop the processes and threads that reach the clients."""


@dataclass(frozen=True, slots=True)
class LocalRound:
    """What a client's learner needs for one round: the model, and the samples and random stream of each step.

    ``samples`` holds all sample ids of the client, so that a learner can read all data at once. ``rows`` has a row for
    each step: the positions of its mini-batch in ``samples``. The learner takes a checksum of the local model after
    ``witness_after`` steps, and notes the numbers of the first step (0: neither).
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
        """Return the sample ids of each step."""
        return tuple(tuple(self.samples[place] for place in row) for row in self.rows.tolist())


class SampleSource(Protocol):
    """Returns the x and y of one sample of a client."""

    def sample(self, client: Id, sample: Id) -> tuple[NDArray[Any], NDArray[Any]]: ...


@runtime_checkable
class BatchSource(SampleSource, Protocol):
    """A source that reads a whole mini-batch from storage at once, so that no learner keeps a copy."""

    def batch(self, client: Id, samples: Sequence[Id]) -> tuple[NDArray[Any], NDArray[Any]]: ...


FirstStep = tuple[float, ...]  # its loss, and how far it moved the parameters and the buffers


@dataclass(frozen=True, slots=True)
class Trained:
    """What a learner returns: the local model, and for a witness the checksum (or None) and numbers of its steps."""

    model: Any
    checksum: bytes | None = None
    first_step: FirstStep = ()


class LocalLearner(Protocol):
    """Runs E local steps on given mini-batches: a deterministic function of the local round alone."""

    def train(self, work: LocalRound) -> Trained: ...


class Aggregator(Protocol):
    """Computes the next state from the last one, the slots in order and one reply per distinct client."""

    def __call__(self, state: State, slots: Sequence[Id], replies: Sequence[TrainReply]) -> State: ...


class ServerMemory(Protocol):
    """The server's part of the state. Every change is atomic."""

    @property
    def rounds_done(self) -> int: ...

    @property
    def roster(self) -> IdSet: ...

    def first_round(self, client: Id) -> int | None: ...

    def load(self, round_: int) -> State:
        """Return the state after a round whose model is kept."""

    def kept_at_or_before(self, round_: int) -> int:
        """Return the latest round up to ``round_`` whose state can be loaded."""

    def commit(self, round_: int, state: State, drawn: Sequence[Id]) -> None:
        """Commit a round: its state, and the clients that took part."""

    def begin(self, batch_id: str) -> None:
        """Record that a batch of requests is about to change the state. Idempotent."""

    def rewind(self, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:
        """Return to the state after ``rounds_done`` and remove the leaving clients, for this batch. Idempotent."""

    def join(self, commitments: Mapping[Id, bytes]) -> None:
        """Add new clients to the roster. Idempotent."""

    def reseed(self, seed: Seed, commitments: Mapping[Id, bytes]) -> None:
        """Store the server's new seed and the commitments to the clients' seeds. Idempotent."""


class ClientMemory(Protocol):
    """The clients' part of the state: the samples of each client, and the first use of each sample."""

    def commitments(self) -> Mapping[Id, bytes]: ...

    def samples(self, client: Id) -> IdSet: ...

    def first_steps(self, client: Id) -> Mapping[Id, int]: ...

    def seed(self, client: Id) -> bytes: ...

    def witnesses(self, client: Id) -> Mapping[int, bytes]:
        """Return the client's witness of each round that it trained and that has witnesses (``Plan.has_witness``)."""

    def note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]] = ()) -> None:
        """Store first uses (client, sample, step) and witnesses (client, round, witness), durable together."""

    def remove(self, orders: Sequence[RemoveOrder]) -> None: ...

    def join(self, newcomers: Sequence[Newcomer]) -> None: ...

    def reseed(self, seeds: Mapping[Id, Seed]) -> None: ...

    def rewind(self, rounds_done: int, last_step: int) -> None:
        """Drop notes of rounds after ``rounds_done``, which ends with step ``last_step``."""
