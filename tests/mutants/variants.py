"""The mutants. Each function installs one wrong variant over the production code; its docstring says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, count, permutations
from math import comb, factorial, floor
from typing import Any

import numpy as np
import pytest

from fedforget.algorithm import aggregate, client, draws, forget, learn
from fedforget.algorithm.draws import Address, Purpose
from fedforget.algorithm.first_use import FirstUse
from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.memory import ClientsInMemory, ServerInMemory
from fedforget.algorithm.ports import State, TrainReply
from fedforget.algorithm.seeds import SeedSource
from fedforget.data.client_data import ClientData
from fedforget.data.federated import FederatedData
from fedforget.errors import TrainingFailed
from fedforget.federation.local import LocalFederation
from fedforget.requests import processor
from fedforget.session.sample_check import SampleCheck
from fedforget.store.client_store import ClientStore
from fedforget.store.server_store import ServerStore

Patch = pytest.MonkeyPatch
_generations = count(1)


class FreshPriorities:
    """Priorities at addresses that were never used, which give new and independent draws."""

    def __init__(self, priorities: Any) -> None:
        self._priorities = priorities
        self._shift = 1000 * next(_generations)

    def __call__(self, address: Address, ids: IdSet) -> Any:
        return self._priorities(replace(address, round=address.round + self._shift), ids)

    def stream(self, address: Address) -> bytes:
        return self._priorities.stream(address)


# ---------------------------------------------------------------------------------------------- 1, 2: redrawn slots


def slots_redrawn(patch: Patch) -> None:
    """Algorithm 2 as printed: a restart at the start of a round redraws its multiset.

    Given that the sample was used, its client was more likely drawn. Only those draws are repeated, so the client ends
    up in fewer rounds than it should.
    """
    real = learn.learn

    def learn_with_redrawn_slots(server: Any, until: int, on_round: Any = None) -> None:
        real(replace(server, priorities=FreshPriorities(server.priorities)), until, on_round)

    patch.setattr(forget, "learn", learn_with_redrawn_slots)


def restart_from_round_1(patch: Patch) -> None:
    """Section 5.3's low-storage variant: if the sample was ever used, every draw from round 1 on is repeated.

    Histories that draw its client often are more likely to use the sample, so they are discarded more often than they
    are drawn again.
    """
    slots_redrawn(patch)
    real = forget.decide

    def decide(server: Any, requests: Any) -> Any:
        decision = real(server, requests)
        return decision if decision.first_changed_step is None else replace(decision, rewind_to=0)

    patch.setattr(forget, "decide", decide)


# ------------------------------------------------------------------------------------ 3, 12: the way of drawing


def _uniform(priorities: Any, address: Address, ids: IdSet) -> Fraction:
    """The uniform u of an ordinary generator at an address: the same whichever ids are left."""
    known = vars(priorities).setdefault("uniforms", {})
    if address not in known:
        ranks = tuple(int(rank) for rank in priorities(address, ids)[:, 1])
        orders = list(permutations(range(len(ids))))
        known[address] = Fraction(orders.index(ranks), factorial(len(ids)))
    return known[address]


def rescaled_slots(patch: Patch) -> None:
    """An ordinary generator, ⌊u·M⌋, whose u is reused as ⌊u·(M-1)⌋ where the slot held the erased client.

    Slots of other clients stay, and one client gets the erased client's whole share in addition.
    """

    def draw(priorities: Any, roster: IdSet, round_: int, slots: int) -> list[Id]:
        addresses = [Address(Purpose.SLOT, round_, slot) for slot in range(slots)]
        return [roster.ids[floor(_uniform(priorities, address, roster) * len(roster))] for address in addresses]

    patch.setattr(learn, "draw_clients_with_replacement", draw)


def rescaled_batches(patch: Patch) -> None:
    """The same for mini-batches: the ⌊u·C(N, b)⌋-th subset before, the ⌊u·C(N-1, b)⌋-th after."""

    def draw(priorities: Any, owner: Id, samples: IdSet, round_: int, steps: Sequence[int], size: int) -> Any:
        chosen = min(size, len(samples))
        addresses = [Address(Purpose.BATCH, round_, step, id_block(owner)) for step in steps]
        subsets = list(combinations(range(len(samples)), chosen))
        number = comb(len(samples), chosen)
        return np.array([subsets[floor(_uniform(priorities, address, samples) * number)] for address in addresses])

    patch.setattr(client, "draw_batches_without_replacement", draw)


def truncated_priorities(patch: Patch) -> None:
    """Priorities are truncated to a few bits, and the selection is not stable.

    Ties are broken by position, which is not uniform; and positions shift when an id is removed, so a draw that did
    not hold the id changes as well.
    """

    def smallest(priorities: Any, size: int) -> Any:
        high, low = priorities[..., 0].astype(np.uint64), priorities[..., 1].astype(np.uint64)
        cut = high >> np.uint64(61) if high.any() else low >> np.uint64(1)
        return np.sort(np.argpartition(cut, min(size, cut.shape[-1]) - 1)[..., :size])

    patch.setattr(draws, "smallest", smallest)


# ------------------------------------------------------------------------------------ 4, 5: rewinding and sizes


def rewind_one_round_short(patch: Patch) -> None:
    """Rewinds to the end of the changed round instead of its start, to a model that was trained on the erased data."""
    real = forget.decide

    def decide(server: Any, requests: Any) -> Any:
        decision = real(server, requests)
        return replace(decision, rewind_to=min(decision.rewind_to + 1, decision.goal))

    patch.setattr(forget, "decide", decide)
    patch.setattr("fedforget.requests.processor.decide", decide)


def slots_recomputed_after_erasure(patch: Patch) -> None:
    """K is recomputed after an erasure, in proportion to M.

    The rounds that stay were drawn with the old K, so no training produces the resulting mixture.
    """
    real = forget.apply

    def apply(server: Any, decision: Any) -> None:
        before = len(server.memory.roster)
        real(server, decision)
        slots = max(1, server.plan.clients_per_round * len(server.memory.roster) // before)
        object.__setattr__(server, "plan", replace(server.plan, clients_per_round=slots))

    patch.setattr(forget, "apply", apply)


def batch_size_recomputed_after_erasure(patch: Patch) -> None:
    """b is recomputed after an erasure, in proportion to the size of the client that lost a sample."""
    real = forget.apply

    def apply(server: Any, decision: Any) -> None:
        owner, federation = decision.requests[0].client, server.federation
        before = len(federation.memory.samples(owner))
        real(server, decision)
        size = server.plan.batch_size * len(federation.memory.samples(owner)) // before
        federation._plan = replace(server.plan, batch_size=max(1, size))
        federation._clients.clear()

    patch.setattr(forget, "apply", apply)


# ----------------------------------------------------------------------------------------------------- 6, 9: averages


def multiplicity_ignored(patch: Patch) -> None:
    """Every client counts once, however many slots it fills, so the average is not that of K independent draws."""
    real = draws.multiplicities
    patch.setattr(aggregate, "multiplicities", lambda slots: dict.fromkeys(real(slots), 1))


def sum_in_order_of_arrival(patch: Patch) -> None:
    """Replies are summed in order of arrival: the last bits depend on the network and cannot be reproduced."""

    def average(slots: Sequence[Id], replies: Sequence[TrainReply]) -> dict[str, Any]:
        counts = draws.multiplicities(slots)
        total = {name: np.zeros_like(tensor) for name, tensor in replies[0].model.items()}
        for reply in replies:
            for name in total:
                total[name] += counts[reply.client] * reply.model[name]
        return {name: np.asarray(tensor / len(slots)) for name, tensor in total.items()}

    patch.setattr(aggregate, "average", average)


# ------------------------------------------------------------------------------------------------------ 7: first uses


def server_records_round_1_only(patch: Patch, memory: Any = ServerInMemory) -> None:
    """A client that is first drawn in a later round counts as unused, so erasing it recomputes nothing."""
    real = memory.commit

    def commit(self: Any, round_: int, state: State, drawn: Sequence[Id]) -> None:
        real(self, round_, state, drawn if round_ == 1 else [])

    patch.setattr(memory, "commit", commit)


def server_store_records_round_1_only(patch: Patch) -> None:
    """The same on disk."""
    server_records_round_1_only(patch, ServerStore)


def client_records_round_1_only(patch: Patch) -> None:
    """A sample that is first used in a later round counts as unused, so erasing it recomputes nothing."""
    real = client.Client.local_round

    def local_round(self: Any, task: Any, draws: Any = None) -> Any:
        known = dict(self._first_use.known())
        work, uses = real(self, task, draws)
        if task.round > 1:
            self._first_use, uses = FirstUse(self.samples, known), []
        return work, uses

    patch.setattr(client.Client, "local_round", local_round)


def client_store_records_round_1_only(patch: Patch) -> None:
    """The same on disk, where the next command reads the first uses."""
    real = ClientStore.note
    first_round = 2  # steps: E of the plan of the runs on disk
    patch.setattr(
        ClientStore,
        "note",
        lambda self, uses, witnesses: real(self, [use for use in uses if use[2] <= first_round], witnesses),
    )


def server_first_uses_not_rewound(patch: Patch) -> None:
    """A rewind keeps the first rounds of the discarded history.

    After an erasure another client may be drawn in an earlier round than before. The stale first round hides that:
    when this client is erased in turn, the earlier round stays, with the client in it.
    """
    real = ServerInMemory.rewind

    def rewind(self: Any, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:
        known = self.first_rounds()
        real(self, rounds_done, leaving, batch_id)
        self._first_use = FirstUse(self.roster, {id_: when for id_, when in known.items() if id_ in self.roster})

    patch.setattr(ServerInMemory, "rewind", rewind)


def server_store_first_uses_not_rewound(patch: Patch) -> None:
    """The same on disk."""
    real = ServerStore.rewind

    def rewind(self: Any, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:
        known = self.first_rounds()
        real(self, rounds_done, leaving, batch_id)
        with self.database.transaction():
            self.database.run_many(
                "INSERT OR REPLACE INTO first_rounds VALUES (?, ?)",
                [pair for pair in known.items() if pair[0] in self.roster],
            )
        self._known_uses = None

    patch.setattr(ServerStore, "rewind", rewind)


def client_first_uses_not_rewound(patch: Patch) -> None:
    """A rewind keeps the first steps of the discarded history, so a sample may stay in an earlier mini-batch."""
    patch.setattr(client.Client, "rewind", lambda self, last_step: None)
    patch.setattr(ClientsInMemory, "rewind", lambda self, rounds_done, last_step: None)


def client_store_first_uses_not_rewound(patch: Patch) -> None:
    """The same on disk."""
    patch.setattr(ClientStore, "rewind", lambda self, rounds_done, last_step: None)


# ------------------------------------------------------------------------------------------------------- 8: failures


def slots_redrawn_after_failure(patch: Patch) -> None:
    """Each attempt at a round redraws its slots, so a failing client is in fewer rounds than it should.

    The client may have failed because of data that are erased later; their influence on the draws is never undone.
    """
    real = draws.draw_clients_with_replacement

    def draw(priorities: Any, roster: IdSet, round_: int, slots: int) -> list[Id]:
        attempts = vars(priorities).setdefault("attempts", set())
        source = FreshPriorities(priorities) if round_ in attempts else priorities
        attempts.add(round_)
        return real(source, roster, round_, slots)

    patch.setattr(learn, "draw_clients_with_replacement", draw)


def failed_clients_dropped(patch: Patch) -> None:
    """The average of the replies that arrived: its members depend on which clients failed, not on the draws alone."""
    real_train, real_average = LocalFederation.train, aggregate.average

    def train(self: Any, tasks: Any) -> list[TrainReply]:
        replies = []
        for task in tasks:
            try:
                replies += real_train(self, [task])
            except TrainingFailed:
                continue
        return replies

    def average(slots: Sequence[Id], replies: Sequence[TrainReply]) -> Any:
        present = {reply.client for reply in replies}
        replied = [client for client in slots if client in present]
        if not replied:
            raise TrainingFailed("no client replied")
        return real_average(replied, replies)

    patch.setattr(LocalFederation, "train", train)
    patch.setattr(aggregate, "average", average)


# --------------------------------------------------------------------------------------------- 10: server optimiser


def optimizer_not_rewound(patch: Patch) -> None:
    """A rewind restores the weights but not the server optimiser's moments, which still depend on the erased data."""
    real = ServerInMemory.rewind

    def rewind(self: Any, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:
        newest = self.load(self.rounds_done).optimizer
        real(self, rounds_done, leaving, batch_id)
        self._states[self.rounds_done] = State(self.load(self.rounds_done).model, newest)

    patch.setattr(ServerInMemory, "rewind", rewind)


def optimizer_on_disk_not_rewound(patch: Patch) -> None:
    """The same on disk."""
    real = ServerStore.rewind

    def rewind(self: Any, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:
        newest = self.load(self.rounds_done).optimizer
        real(self, rounds_done, leaving, batch_id)
        name = self.models.write(State(self.load(self.rounds_done).model, newest))
        with self.database.transaction():
            self.database.run("UPDATE rounds SET model = ? WHERE round = ?", (name, self.rounds_done))

    patch.setattr(ServerStore, "rewind", rewind)


# ------------------------------------------------------------------------------------------------------- 11: content


def changed_content_ignored(patch: Patch) -> None:
    """Changed content under the same id is other data. Training on with it gives a model that fits no data set."""
    patch.setattr(FederatedData, "require_unchanged", lambda self, client, known: None)


def changed_label_ignored(patch: Patch) -> None:
    """The digest covers x alone, but a corrected label is changed content too."""
    real = ClientData.sample

    def content(self: Any, identifier: Id) -> bytes:
        return real(self, identifier)[0].tobytes()[:16].ljust(16, b"\0")

    patch.setattr(ClientData, "content", content)


def changed_content_beside_erasure_ignored(patch: Patch) -> None:
    """A client that this process has compared once is not compared again, although it now reads other samples."""
    real = SampleCheck.require_unchanged

    def require_unchanged(self: Any, data: Any, work: Any) -> None:
        if work.client not in self._compared:
            real(self, data, work)

    patch.setattr(SampleCheck, "require_unchanged", require_unchanged)


# ------------------------------------------------------------------------------------------------ 13, 14: requests


def client_seeds_not_renewed(patch: Patch) -> None:
    """Only the server gets a new seed: the mini-batches stay those that a requester has seen, so the law stays lost."""
    real = learn.Server.reseed

    def reseed(self: Any, seeds: SeedSource) -> None:
        clients = self.federation.memory
        before = {client: clients.books.seed(client) for client in self.memory.roster}
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SeedSource, "client", lambda _, client: before[client])
            real(self, seeds)

    patch.setattr(learn.Server, "reseed", reseed)


def request_of_emptied_client_stays_pending(patch: Patch) -> None:
    """A request for a client stays pending although the client's last sample was erased."""
    real = processor._BatchJournal._with_covered

    def with_covered(self: Any, decision: Any) -> Any:
        asked = {r for r in self.requests.values() if r is not None}
        hidden = {i for i, r in self.processor.book.pending().items() if r.sample is None and r not in asked}
        with pytest.MonkeyPatch.context() as inner:
            waiting = type(self.processor.book).pending_under
            inner.setattr(
                type(self.processor.book),
                "pending_under",
                lambda book, *asked: {i: r for i, r in waiting(book, *asked).items() if i not in hidden},
            )
            return real(self, decision)

    patch.setattr(processor._BatchJournal, "_with_covered", with_covered)
