"""Witnesses: check that this learner trained the rounds that stay.

A state depends on the learner too. Before a run continues from a kept state, one client repeats its first steps of an
earlier round and compares the result with its witness. A different loss, activation, frozen layer, mode or processor
gives a different result.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.draws import draw_clients_with_replacement, multiplicities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.learn import Server
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import LocalRound, State, TrainTask
from fedforget.errors import NonFiniteLoss, TrainingFailed

SAME_UPDATE = 1e-2  # of the update of some rounds: other hardware or libraries change less, another learner more
_LAST_BITS = (1, 2, 4, 8)  # units in the last place
_MARGIN = 5
_MOST_ROUNDS = 10  # that are replayed: as many as lie between two witnesses
_FIXED_STEPS = 2  # the second step shows how the first one changed the model

Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Repetition:
    """The result of repeating a client's first steps of a round."""

    client: Id
    round: int  # 0: fixed steps from the initial model, which belong to no round
    agrees: bool | None  # None: the client has no witness of that round


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of training some rounds again from the kept state before them."""

    first_round: int
    last_round: int
    agrees: bool | None  # None: rounding alone may have changed the result as much
    distance: float  # from the kept state after them, relative to how far they moved the model


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
    for each in _repeatable(server, rounds, requests, intact):
        for round_ in _witnessed_rounds(server.plan, each.last, each.before):
            if comparable(round_):
                found = _repeat_round(server, round_, each, all_clients=all_clients)
                if found is not None:
                    return found
    return None


def replay_rounds(
    server: Server,
    rounds: int,
    requests: Sequence[Request],
    parameters: frozenset[str],
    intact: Callable[[Id], bool],
) -> Replay | None:
    """Train the rounds between two kept states again, for a learner that cannot repeat a witness bit by bit.

    Return None if there are no such rounds whose clients can all repeat them; which can is as for ``repeat_witness``.
    ``parameters``: the names of the model's parameters.
    """
    memory = server.memory
    for each in _repeatable(server, rounds, requests, intact):
        stop = memory.kept_at_or_before(each.last)
        while stop > each.before:
            start = memory.kept_at_or_before(stop - 1)
            slots = {round_: _slots(server, round_) for round_ in range(start + 1, stop + 1)[:_MOST_ROUNDS]}
            if stop - start == len(slots) and all(each.may_ask(client) for drawn in slots.values() for client in drawn):
                return Replay(start + 1, stop, *_compare_replay(server, start, slots, each.leaving, parameters))
            stop = start
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
    yield _Repeatable(done, rounds, intact, {}, stays=False)


def _slots(server: Server, round_: int) -> list[Id]:
    """Draw the slots of an earlier round: without the server's cache, which holds those of the next."""
    plan, roster = server.plan, server.memory.roster
    return draw_clients_with_replacement(server.priorities, roster, round_, plan.clients_per_round)


def _compare_replay(
    server: Server,
    start: int,
    slots: Mapping[int, list[Id]],
    leaving: Mapping[Id, Sequence[Id]],
    parameters: frozenset[str],
) -> tuple[bool | None, float]:
    """Return whether rounds that are trained again end where they did, and the distance."""

    def trained_again(state: State) -> Weights:
        for round_, drawn in slots.items():
            tasks = [TrainTask(round_, client, state.model) for client in multiplicities(drawn)]
            replies = [server.federation.train_again(task, leaving.get(task.client, ())) for task in tasks]
            state = server.aggregate(state, drawn, replies)
        model: Weights = state.model
        return model

    def apart(one: Weights, other: Weights) -> float:
        groups = (parameters, one.keys() - parameters)  # the values of buffers may be much larger
        return max(distance(before.model, one, other, names, steps) for names in groups)

    steps = len(slots) * server.plan.local_steps
    before, stored = server.memory.load(start), server.memory.load(start + len(slots)).model
    try:
        replayed = trained_again(before)
        found = apart(stored, replayed)
        if found <= SAME_UPDATE:
            return True, found
        shaken = (replace(before, model=_shaken(before.model, units)) for units in _LAST_BITS)
        rounding = max(apart(replayed, trained_again(state)) for state in shaken)
    except NonFiniteLoss:
        return False, math.inf  # the original rounds were finite
    explained = found <= _MARGIN * rounding or rounding > _MARGIN * SAME_UPDATE  # more than that is chaos
    return (None if explained else False), found


def distance(before: Weights, stored: Weights, replayed: Weights, names: Iterable[str], steps: int) -> float:
    """Return ‖replayed - stored‖ / ‖stored - before‖ over these tensors; 0 if rounding the weights explains it.

    Tensors that are not of floats must be equal.
    """
    apart = moved = size = 0.0
    for name in names:
        first, then, now = before[name], stored[name], replayed[name]
        if not np.issubdtype(then.dtype, np.floating):
            if not np.array_equal(then, now):
                return math.inf
            continue
        wide = then.astype(np.float64)
        apart += float(np.sum((now - wide) ** 2))
        moved += float(np.sum((wide - first) ** 2))
        size += float(np.sum((wide * np.finfo(then.dtype).eps) ** 2))
    if apart <= steps**2 * size:  # each step rounds each weight once
        return 0.0
    return math.sqrt(apart / moved) if moved else math.inf


def _shaken(model: Weights, units: int) -> Weights:
    """Return a model whose weights differ by some units in the last place."""

    def shaken(tensor: NDArray[Any]) -> NDArray[Any]:
        if not np.issubdtype(tensor.dtype, np.floating):
            return tensor
        signs = np.where(np.arange(tensor.size) % 2, 1, -1).reshape(tensor.shape)
        moved: NDArray[Any] = (tensor * (1 + units * np.finfo(tensor.dtype).eps * signs)).astype(tensor.dtype)
        return moved

    return {name: shaken(tensor) for name, tensor in model.items()}


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
) -> Repetition | None:
    """Repeat the witness of one client of a round, or of all; stop at the first that disagrees.

    If a client fails, ask the next; raise if all fail.
    """
    asked = [client for client in multiplicities(_slots(server, round_)) if by.may_ask(client)]
    model, failure, found = server.memory.load(round_ - 1).model if asked else None, None, None
    for client in asked:
        task = TrainTask(round_, client, model)
        try:
            agrees = server.federation.repeats(task, by.leaving.get(client, ()))
        except NonFiniteLoss:
            agrees = False  # the original step was finite
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
