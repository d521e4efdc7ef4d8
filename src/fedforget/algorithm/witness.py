"""Witnesses: check that this learner trained the rounds that stay.

A state depends on the learner too. Before a run continues from a kept state, one client repeats its first steps of an
earlier round and compares the result with its witness. A different loss, activation, frozen layer, mode or processor
gives a different result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedforget.algorithm.draws import draw_clients_with_replacement, multiplicities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import LocalRound, TrainTask
from fedforget.errors import NonFiniteLoss, TrainingFailed

_FIXED_STEPS = 2  # the second step shows how the first one changed the model


@dataclass(frozen=True, slots=True)
class Repetition:
    """The result of repeating a client's first steps of a round."""

    client: Id
    round: int  # 0: fixed steps from the initial model, which belong to no round
    agrees: bool | None  # None: the client has no witness of that round


def repeat_witness(
    server: Server,
    rounds: int,
    requests: Sequence[Request] = (),
    *,
    all_clients: bool = False,
    comparable: Callable[[int], bool] = lambda _: True,
    intact: Callable[[Id], bool] = lambda _: False,
) -> Repetition | None:
    """Repeat one witness before requests rewind the state to ``rounds``. Return None if there is none to repeat.

    Requests that rewind to ``rounds`` erase nothing that a round up to it drew, so every client can repeat its witness
    of such a round; the latest comes first. In a later round a client can repeat its witness if it loses no sample, or,
    as a last resort, if the samples that it loses are still ``intact`` in the data. ``all_clients``: ask every client
    of the round. ``comparable``: whether the round was computed in this environment.
    """
    done = server.memory.rounds_done if len(server.memory.roster) else 0
    leaving: dict[Id, list[Id]] = {}
    for request in requests:
        leaving.setdefault(request.client, []).extend(() if request.sample is None else (request.sample,))

    def losing_nothing(client: Id) -> bool:
        return client not in leaving

    for last, before, may_ask, gone, stays in (
        (min(rounds, done), 0, lambda _: True, leaving, True),
        (done, rounds, losing_nothing, {}, False),
        (done, rounds, intact, {}, False),
    ):
        for round_ in _witnessed_rounds(server.plan, last, before):
            if comparable(round_):
                found = _repeat_round(server, round_, may_ask, gone, stays=stays, all_clients=all_clients)
                if found is not None:
                    return found
    return None


def fixed_steps(client: Id, samples: IdSet, model: Any, batch_size: int) -> LocalRound:
    """Return a few steps on a client's first samples. They depend on no seed and belong to no round."""
    rows = np.tile(np.arange(min(batch_size, len(samples))), (_FIXED_STEPS, 1))
    streams = tuple(hashlib.blake2b(bytes([step]), digest_size=16).digest() for step in range(_FIXED_STEPS))
    return LocalRound(1, client, model, samples.ids, rows, streams, _FIXED_STEPS)


def _witnessed_rounds(plan: Plan, last: int, before: int) -> Iterator[int]:
    """Yield the rounds with witnesses from ``last`` down, as long as they are later than ``before``."""
    while (round_ := plan.last_witnessed_round(last)) > before:
        yield round_
        last = round_ - 1


def _repeat_round(
    server: Server,
    round_: int,
    may_ask: Callable[[Id], bool],
    leaving: Mapping[Id, Sequence[Id]],
    *,
    stays: bool,
    all_clients: bool,
) -> Repetition | None:
    """Repeat the witness of one client of a round, or of all; stop at the first that disagrees.

    If a client fails, ask the next; raise if all fail.
    """
    memory = server.memory
    slots = draw_clients_with_replacement(server.priorities, memory.roster, round_, server.plan.clients_per_round)
    asked = [client for client in multiplicities(slots) if may_ask(client)]
    model, failure, found = memory.load(round_ - 1).model if asked else None, None, None
    for client in asked:
        task = TrainTask(round_, client, model)
        try:
            agrees = server.federation.repeats(task, leaving.get(client, ()))
        except NonFiniteLoss:
            agrees = False  # the original step was finite
        except TrainingFailed as error:
            failure = error
            continue
        if agrees is None and not stays:
            continue  # an interrupted rewind may have deleted it
        found = Repetition(client, round_, agrees)
        if not (agrees and all_clients):
            return found
    if found is None and failure is not None:
        raise failure
    return found
