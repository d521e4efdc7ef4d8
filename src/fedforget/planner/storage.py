"""Storage and traffic of a plan: bytes on disk, bytes on the wire, rounds of communication (Section 5.3).

Disk. The server keeps a state per kept round and an entry per client; a client keeps an entry per sample in its book, a
note per sample that was used, and no models. Entries are counted as a run directory writes them, without the overhead
of database pages. A run directory shares 17 files among its clients, which have 18 kB when they are empty.

Wire. In a round each distinct client drawn receives the model and sends one back. A request that changes a draw rewinds
every party to the last model kept before the change, so the replay covers at least the rounds to recompute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedforget.algorithm.plan import KEEP_ENDS, KEEP_EVERY, Plan, ServerOptimizer  # noqa: F401 (an example uses it)
from fedforget.planner.costs import sample_change
from fedforget.planner.geometric import change_within, expected_rounds_redone
from fedforget.planner.round_law import client_change

ROSTER_ENTRY = 8 + 32 + 8  # bytes: a client's id, its commitment, its first round
SAMPLE_ENTRY = 16 + 16  # the block of a sample's id, the digest of its content
SAMPLE_NOTE = 8 + 8  # a used sample's id, its first step
CLIENT_ENTRY = 16 + 8 + 32 + 32 + 32  # the block of a client's id, its last sample, seed, nonce, root of its samples
_MOMENTS = 2 * 2  # FedAdam keeps two numbers of twice the width per weight


@dataclass(frozen=True, slots=True)
class Traffic:
    """Expected rounds of communication, models that clients train in them, and bytes both ways."""

    rounds: float
    trainings: float
    bytes: float


@dataclass(frozen=True, slots=True)
class ForgettingTraffic:
    """The expected traffic of one request, including the case that nothing changes.

    ``rounds_recomputed`` are those from the first change on, ``rounds_replayed`` those from the last kept model before
    it. Trainings and bytes are those of the replay.
    """

    rounds_recomputed: float
    rounds_replayed: float
    trainings: float
    bytes: float


def state_bytes(plan: Plan, model_bytes: int) -> int:
    """Return the bytes of a kept state: the model, and the moments of FedAdam.

    >>> state_bytes(Plan(1, 1, 1, 1), 1000)
    1000
    """
    return model_bytes * (1 + _MOMENTS if plan.server.name == "fedadam" else 1)


def kept_bytes(plan: Plan, rounds_done: int, model_bytes: int) -> int:
    """Return the bytes of the states kept after this many rounds; the initial one has no moments.

    >>> [kept_bytes(Plan(1, 1, 1, 9, server=ServerOptimizer(name)), 9, 1000) for name in ("average", "fedadam")]
    [10000, 46000]
    """
    return model_bytes + (plan.kept_count(rounds_done) - 1) * state_bytes(plan, model_bytes)


def server_bytes(plan: Plan, clients: int, model_bytes: int) -> int:
    """Return the bytes of the kept states, and of the roster with its first rounds.

    >>> [server_bytes(Plan(1, 1, 1, rounds=100, keep=keep), 60, 1000) for keep in ("every", 10, "ends")]
    [103880, 13880, 4880]
    """
    return kept_bytes(plan, plan.rounds, model_bytes) + clients * ROSTER_ENTRY


def client_bytes(samples: int) -> int:
    """Return the bytes of a client's entry, and of the entry and note of each sample. It stores no model.

    >>> client_bytes(200)
    9720
    """
    return CLIENT_ENTRY + samples * (SAMPLE_ENTRY + SAMPLE_NOTE)


def expected_distinct_clients(clients: int, clients_per_round: int) -> float:
    """Return M·(1 − (1 − 1/M)^K), the expected number of different clients in the K slots of a round.

    >>> expected_distinct_clients(2, 2)
    1.5
    """
    return float(clients * client_change(clients, clients_per_round))


def learning_traffic(plan: Plan, clients: int, model_bytes: int) -> Traffic:
    """Return the traffic of all rounds of the plan; with the remaining clients, that of retraining from scratch.

    >>> learning_traffic(Plan(clients_per_round=2, batch_size=1, local_steps=1, rounds=10), 2, 1000)
    Traffic(rounds=10.0, trainings=15.0, bytes=30000.0)
    """
    if clients < 1:
        return Traffic(0.0, 0.0, 0.0)
    trainings = plan.rounds * expected_distinct_clients(clients, plan.clients_per_round)
    return Traffic(float(plan.rounds), trainings, 2 * trainings * model_bytes)


def client_forgetting_traffic(plan: Plan, clients: int, model_bytes: int) -> ForgettingTraffic:
    """Return the traffic if one client leaves. The order of the others in each draw is independent of it.

    >>> client_forgetting_traffic(Plan(1, 1, 1, rounds=3), 2, 1000)
    ForgettingTraffic(rounds_recomputed=2.125, rounds_replayed=2.125, trainings=2.125, bytes=4250.0)
    """
    if clients == 1:
        return ForgettingTraffic(0.0, 0.0, 0.0, 0.0)  # no client remains: the model is withdrawn
    change = client_change(clients, plan.clients_per_round)
    replayed = expected_rounds_redone(change, plan.rounds, _spacing(plan))
    trainings = replayed * expected_distinct_clients(clients - 1, plan.clients_per_round)
    return _forgetting(plan, change, replayed, trainings, model_bytes)


def sample_forgetting_traffic(plan: Plan, clients: int, samples: int, model_bytes: int) -> ForgettingTraffic:
    """Return the traffic if one of a client's samples leaves; with its last sample the client leaves too.

    >>> every, ends = (sample_forgetting_traffic(Plan(1, 1, 1, 3, keep=k), 2, 2, 1000) for k in ("every", "ends"))
    >>> round(every.rounds_replayed, 6), round(ends.rounds_replayed, 6)
    (1.265625, 1.734375)
    """
    if samples == 1:
        return client_forgetting_traffic(plan, clients, model_bytes)
    change = sample_change(
        samples,
        clients=clients,
        clients_per_round=plan.clients_per_round,
        batch_size=plan.batch_size,
        local_steps=plan.local_steps,
    )
    replayed = expected_rounds_redone(change, plan.rounds, _spacing(plan))
    trainings = replayed * expected_distinct_clients(clients, plan.clients_per_round)
    # A changed round has drawn the sample's client, and so has more distinct clients than others.
    held = change / client_change(clients, plan.clients_per_round)
    trainings += held * _covariance(clients, plan.clients_per_round) * _first_changes(plan, change, replayed)
    return _forgetting(plan, change, replayed, trainings, model_bytes)


def _forgetting(plan: Plan, change: Any, replayed: Any, trainings: Any, model_bytes: int) -> ForgettingTraffic:
    recomputed = expected_rounds_redone(change, plan.rounds)
    return ForgettingTraffic(float(recomputed), float(replayed), float(trainings), float(2 * trainings * model_bytes))


def _spacing(plan: Plan) -> int:
    """Return the keep interval."""
    if plan.keep in (KEEP_EVERY, KEEP_ENDS):
        return 1 if plan.keep == KEEP_EVERY else plan.rounds
    return min(int(plan.keep), plan.rounds)


def _covariance(clients: int, slots: int) -> float:
    """Return the covariance of a round's number of distinct clients and whether a given client is drawn."""
    if clients == 1:
        return 0.0
    drawn = float(change_within(1 / clients, slots))
    # of two clients: (1 − 2/M)^K − (1 − 1/M)^2K
    of_two = -((1 - drawn) ** 2) * float(change_within(1 / (clients - 1) ** 2, slots))
    return drawn * (1 - drawn) + (clients - 1) * of_two


def _first_changes(plan: Plan, change: float, replayed: float) -> float:
    """Return Σ over blocks of length·Q^(end−1), the factor of one round's covariance in the sum over all rounds.

    For a replayed round s of a block that ends at e, E[D_s; change up to e] = E[D]·(1 − Q^e) + Cov·Q^(e−1).
    """
    if change >= 1:  # only with one client, or if practically all are drawn: the covariance is zero
        return 0.0
    return (plan.rounds - replayed) / (1 - change)
