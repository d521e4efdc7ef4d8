"""Witnesses: whether this learner is the one that trained the rounds that stay.

A state is a function of the learner, too. Before a run goes on from a kept state, one client repeats its first steps of
an earlier round and compares them with what it noted then: another loss, activation, frozen layer, mode or processor
gives another result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedforget.algorithm.draws import draw_clients_with_replacement, multiplicities
from fedforget.algorithm.forget import Request
from fedforget.algorithm.ids import Id
from fedforget.algorithm.learn import Server
from fedforget.algorithm.ports import TrainTask
from fedforget.errors import TrainingFailed


@dataclass(frozen=True, slots=True)
class Repetition:
    """A client's first steps of a round, taken again."""

    client: Id
    round: int
    agrees: bool | None  # None: the client has no witness of that round


def repeat_witness(
    server: Server, rounds: int, requests: Sequence[Request] = (), *, all_clients: bool = False
) -> Repetition | None:
    """Repeat the witness of the latest round up to ``rounds`` that has one.

    Requests that rewind to ``rounds`` touch nothing that was drawn up to there. Where everything is rewound, a client
    that took part in round 1 and loses nothing can still repeat its own. A client that fails leaves it to the next one.
    None if no client can repeat anything and no round stays. ``all_clients``: ask every client of the round.
    """
    memory = server.memory
    if not memory.rounds_done or not len(memory.roster):
        return None
    round_ = server.plan.last_witnessed_round(max(rounds, 1))
    slots = draw_clients_with_replacement(server.priorities, memory.roster, round_, server.plan.clients_per_round)
    model, failure, found = memory.load(round_ - 1).model, None, None
    for client in multiplicities(slots):
        leaving = [request.sample for request in requests if request.client == client]
        if rounds >= 1 or not leaving:
            task, samples = TrainTask(round_, client, model), [sample for sample in leaving if sample is not None]
            try:
                agrees = server.federation.repeats(task, samples)
            except TrainingFailed as error:
                failure = error
                continue
            if agrees is not None or rounds >= 1:  # a rewind to round 0 that was interrupted may have come so far
                found = Repetition(client, task.round, agrees)
                if not (agrees and all_clients):
                    return found
    if found is None and failure is not None and rounds >= 1:
        raise failure
    return found
