"""Witnesses: check that this learner trained the rounds that stay.

A state depends on the learner too. Before a run continues from a kept state, one client repeats its first steps of an
earlier round and compares the result with its witness. A different loss, activation, frozen layer, mode or processor
gives a different result.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.draws import draw_clients_with_replacement, multiplicities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import WITNESS_DIGEST_BYTES, LocalRound, TrainTask
from fedforget.errors import DataChanged, FedForgetError, InvalidInput, NonFiniteLoss, TrainingFailed

SAME_NUMBER = 1e-3  # of a loss or an update: other hardware or libraries change less, another learner more
_ROUNDED_LOSS = 1e-5
_FIXED_STEPS = 2  # the second step shows how the first one changed the model

Weights = Mapping[str, NDArray[Any]]


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
    bitwise: bool = True,
) -> Repetition | None:
    """Repeat one witness before requests rewind the state to ``rounds``. Return None if there is none to repeat.

    Requests that rewind to ``rounds`` erase nothing that a round up to it drew, so every client can repeat its witness
    of such a round; the latest comes first. In a later round a client can repeat its witness if it loses no sample, or,
    as a last resort, if it is ``intact``: the samples of its first steps may still be in the data. One whose samples
    have changed is passed over. ``all_clients``: ask every client of the round. ``comparable``: which rounds to
    compare. ``bitwise``: see ``Federation.repeats``.
    """
    for each in _repeatable(server, rounds, requests, intact):
        for round_ in _witnessed_rounds(server.plan, each.last, each.before):
            if comparable(round_):
                found = _repeat_round(server, round_, each, all_clients=all_clients, bitwise=bitwise)
                if found is not None:
                    return found
    return None


def fixed_steps(client: Id, samples: IdSet, model: Any, batch_size: int) -> LocalRound:
    """Return a few steps on a client's first samples. They depend on no seed and belong to no round."""
    rows = np.tile(np.arange(min(batch_size, len(samples))), (_FIXED_STEPS, 1))
    streams = tuple(hashlib.blake2b(bytes([step]), digest_size=16).digest() for step in range(_FIXED_STEPS))
    return LocalRound(1, client, model, samples.ids, rows, streams, _FIXED_STEPS)


@dataclass(frozen=True, slots=True)
class _Repeatable:
    """Rounds that may be repeated, and by which clients."""

    last: int
    before: int  # only rounds after this one
    may_ask: Callable[[Id], bool]
    leaving: Mapping[Id, Sequence[Id]]  # samples of each client that these rounds did not draw
    stays: bool
    changed_data: tuple[type[FedForgetError], ...] = ()  # errors of a client whose data are gone: ask the next


def _repeatable(
    server: Server, rounds: int, requests: Sequence[Request], intact: Callable[[Id], bool]
) -> Iterator[_Repeatable]:
    """Yield the rounds that stay, then the later ones: asking clients that lose nothing, then intact ones."""
    done = server.memory.rounds_done if len(server.memory.roster) else 0
    leaving: dict[Id, list[Id]] = {}
    for request in requests:
        leaving.setdefault(request.client, []).extend(() if request.sample is None else (request.sample,))
    yield _Repeatable(min(rounds, done), 0, lambda _: True, leaving, stays=True)
    yield _Repeatable(done, rounds, lambda client: client not in leaving, {}, stays=False)
    yield _Repeatable(done, rounds, intact, {}, stays=False, changed_data=(DataChanged, InvalidInput))


def _slots(server: Server, round_: int) -> list[Id]:
    """Draw the slots of an earlier round: without the server's cache, which holds those of the next."""
    plan, roster = server.plan, server.memory.roster
    return draw_clients_with_replacement(server.priorities, roster, round_, plan.clients_per_round)


def same_first_step(noted: bytes, repeated: bytes, model: Weights) -> bool:
    """Return whether the first steps of two witnesses agree as numbers, as they do where only the rounding differs.

    ``model``: the one that the step began with. Its own rounding limits how well the length of an update is known.
    """
    rounding = 0.0
    for tensor in model.values():
        if np.issubdtype(tensor.dtype, np.floating):
            rounding += float(np.sum((tensor.astype(np.float64) * np.finfo(tensor.dtype).eps) ** 2))
    floors = (_ROUNDED_LOSS, *[math.sqrt(rounding)] * 2)
    numbers = zip(_numbers(noted), _numbers(repeated), floors, strict=True)
    return all(abs(then - now) <= SAME_NUMBER * abs(then) + floor for then, now, floor in numbers)


def _numbers(witness: bytes) -> tuple[float, ...]:
    return struct.unpack("<3d", witness[WITNESS_DIGEST_BYTES:])


def _witnessed_rounds(plan: Plan, last: int, before: int) -> Iterator[int]:
    """Yield the rounds with witnesses from ``last`` down, as long as they are later than ``before``."""
    while (round_ := plan.last_witnessed_round(last)) > before:
        yield round_
        last = round_ - 1


def _repeat_round(
    server: Server,
    round_: int,
    by: _Repeatable,
    *,
    all_clients: bool,
    bitwise: bool,
) -> Repetition | None:
    """Repeat the witness of one client of a round, or of all; stop at the first that disagrees.

    If a client fails, ask the next; raise if all fail.
    """
    asked = [client for client in multiplicities(_slots(server, round_)) if by.may_ask(client)]
    model, failure, found = server.memory.load(round_ - 1).model if asked else None, None, None
    for client in asked:
        task = TrainTask(round_, client, model)
        try:
            agrees = server.federation.repeats(task, by.leaving.get(client, ()), bitwise=bitwise)
        except NonFiniteLoss:
            agrees = False  # the original step was finite
        except by.changed_data:
            continue
        except TrainingFailed as error:
            failure = error
            continue
        if agrees is None and not by.stays:
            continue  # an interrupted rewind may have deleted it
        found = Repetition(client, round_, agrees)
        if not (agrees and all_clients):
            return found
    if found is None and failure is not None:
        raise failure
    return found
