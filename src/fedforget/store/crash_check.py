"""Check, after a crash, that the databases of a run are consistent with each other.

Every commit is durable before a commit in another database relies on it, so certain invariants survive any crash. If
one fails, commits were lost after they were made: a write-ahead log was cut, altered or deleted. Resuming such a run
could erase too little, or report an erasure that did not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fedforget.algorithm.draws import PrfPriorities, draw_batches_without_replacement, draw_clients_with_replacement
from fedforget.algorithm.ids import Id, IdSet
from fedforget.errors import CommitsLost
from fedforget.requests.intents import Intent
from fedforget.requests.lifecycle import Stage
from fedforget.store.client_store import ClientStore
from fedforget.store.clients_part import ClientsPart
from fedforget.store.record import Record
from fedforget.store.server_store import REWOUND, ServerStore

_MOST_DRAWN = 10**8  # priorities that one check may draw
_A_SLOT = 1000  # the fixed cost of one slot, in priorities


def require_whole(server: ServerStore, clients: ClientsPart, record: Record) -> None:
    """Raise CommitsLost if the databases contradict each other. Call before cleaning up after a crash."""
    batches, work = record.batches, server.work()
    stages = {intent.batch_id: (intent, batches.stage(intent)) for intent in batches.unfinished()}
    if not work.keys() <= stages.keys():
        raise lost(record.database.path, "it does not know a batch that the server has begun")
    half_applied = any(
        work.get(batch_id) == REWOUND and stage == Stage.ACCEPTED for batch_id, (_, stage) in stages.items()
    )
    for intent, stage in stages.values():
        if stage != Stage.ACCEPTED:
            clients.require_applied(intent, server)
        if stage in (Stage.REMOVED, Stage.RECOMPUTED) and work.get(intent.batch_id) != REWOUND:
            raise lost(server.database.path, "it was not rewound for a batch whose data are removed")
        stands = half_applied or all(map(partial(_stands, server, record), intent.ids[:1]))  # all have one outcome
        if stage == Stage.COMPLETED and not stands:
            raise lost(server.database.path, "its model is not the one that a receipt names")
    if all(stage != Stage.ACCEPTED for _, stage in stages.values()):  # otherwise a rewind may be half done
        rewound_to = min((intent.decision.rewind_to for intent, _ in stages.values()), default=None)
        clients.require_in_step(server, rewound_to)


def _stands(server: ServerStore, record: Record, identifier: str) -> bool:
    """Return whether a receipt's model is the current one. A later batch removes the model digest from the receipt."""
    named = record.book.receipt(identifier).model_digest
    if named is None and len(server.roster):
        return True
    current = server.model_digest() if len(server.roster) else None
    return record.book.round_of(identifier) == server.rounds_done and named == current


def require_applied(intent: Intent, server: ServerStore, clients: ClientStore) -> None:
    """Require that removed data are absent and added data are present."""
    named = {request.client for request in intent.decision.requests} | {new.client for new in intent.decision.joining}
    there = {client: clients.samples(client) for client in named if clients.has_client(client)}
    for request in intent.decision.requests:
        if request.client in there and (request.sample is None or request.sample in there[request.client]):
            raise lost(clients.books.path_of(request.client), "it holds data that were removed")
    if any(client in server.roster for client in intent.decision.leaving):
        raise lost(server.database.path, "it holds a client that was removed")
    for new in intent.decision.joining:
        if any(sample not in there.get(new.client, ()) for sample, _ in new.samples):
            raise lost(clients.books.path_of(new.client), "it lacks data that were added")
        if new.client not in server.roster:
            raise lost(server.database.path, "it lacks a client that was added")


def require_in_step(server: ServerStore, clients: ClientStore, rewound_to: int | None) -> None:
    """Require that first uses and witnesses match the committed rounds. They may be at most one round ahead."""
    ahead = clients.last_noted_step() > server.steps_of(server.rounds_done + 1)
    if ahead or clients.last_witnessed_round() > server.rounds_done + 1:
        raise lost(server.database.path, "it is behind the clients")
    if _witness_is_missing(server, clients):
        raise lost(clients.database.path, "it lacks a witness of a committed round")
    uses = _FirstUseCheck(server, clients)
    if uses.end_is_missing() or (rewound_to is not None and uses.differ_after(min(rewound_to, server.rounds_done))):
        raise lost(clients.database.path, "its first uses are not those of the committed rounds")


def _witness_is_missing(server: ServerStore, clients: ClientStore) -> bool:
    """Return whether the last round with witnesses lacks one. Lost commits are the latest ones, so that is enough."""
    plan, done = server.plan, server.rounds_done
    if not done or not len(server.roster) or plan.clients_per_round * (len(server.roster) + _A_SLOT) > _MOST_DRAWN:
        return False
    last = plan.last_witnessed_round(done)
    slots = draw_clients_with_replacement(PrfPriorities(server.seed.value), server.roster, last, plan.clients_per_round)
    return any(last not in clients.witnesses(client) for client in set(slots))


class _FirstUseCheck:
    """Compares the recorded first uses with those that the draws imply."""

    def __init__(self, server: ServerStore, clients: ClientStore) -> None:
        self._server, self._clients, self._plan = server, clients, server.plan
        self._slots = PrfPriorities(server.seed.value)
        self._known: dict[Id, tuple[PrfPriorities, IdSet, dict[Id, int]]] = {}

    def end_is_missing(self) -> bool:
        """Return whether the latest first uses are missing. Checks back to the last round that recorded any.

        Nothing can be missing if every sample was used. The number of rounds that are drawn again is bounded.
        """
        if not self._clients.has_unused():
            return False
        done = self._server.rounds_done
        since = self._plan.round_of(max(1, self._clients.last_noted_step(self._server.steps_of(done))))
        latest = min(done, since + self._affordable() - 1)
        for round_ in range(latest, since - 1, -1):
            found = False
            for client, sample, step in self._of_round(round_):
                first = self._about(client)[2].get(sample)
                if first is None or first > step:
                    return True
                found |= first == step
            if found:
                return False
        return False

    def differ_after(self, round_: int) -> bool:
        """Return whether the first uses after this round, to which the run was rewound, are wrong."""
        latest = min(self._server.rounds_done, round_ + self._affordable())  # ``verify`` checks all of them
        since, until = self._server.steps_of(round_), self._server.steps_of(latest)
        expected: dict[tuple[Id, Id], int] = {}
        for later in range(round_ + 1, latest + 1):
            for client, sample, step in self._of_round(later):
                first = self._about(client)[2].get(sample)
                if first is None or first > since:
                    expected.setdefault((client, sample), step)
        noted = {
            (client, sample): first
            for client in self._clients.clients()
            for sample, first in self._clients.first_steps(client).items()
            if since < first <= until
        }
        return noted != expected

    def _affordable(self) -> int:
        """Return how many rounds can be drawn again within seconds: a hostile plan can make one round very large."""
        plan, clients = self._plan, len(self._server.roster)
        largest = max(self._clients.sizes().values(), default=1)
        slots, batches = plan.clients_per_round * (clients + _A_SLOT), plan.local_steps * (largest + _A_SLOT)
        return _MOST_DRAWN // (slots + min(plan.clients_per_round, clients) * batches + 1)

    def _of_round(self, round_: int) -> Iterator[tuple[Id, Id, int]]:
        plan = self._plan
        slots = draw_clients_with_replacement(self._slots, self._server.roster, round_, plan.clients_per_round)
        for client in set(slots):
            priorities, samples, _ = self._about(client)
            steps = range(plan.local_steps)
            rows = draw_batches_without_replacement(priorities, client, samples, round_, steps, plan.batch_size)
            for index, row in enumerate(rows.tolist()):
                for place in row:
                    yield client, samples.ids[place], plan.step_of(round_, index)

    def _about(self, client: Id) -> tuple[PrfPriorities, IdSet, dict[Id, int]]:
        if client not in self._known:
            clients = self._clients
            seed = PrfPriorities(clients.seed(client))
            self._known[client] = seed, clients.samples(client), dict(clients.first_steps(client))
        return self._known[client]


def lost(path: Path, what: str) -> CommitsLost:
    return CommitsLost(
        f"{path} has lost commits: {what}",
        hint="restore the whole run directory from a backup; see `fedforget doctor`",
    )
