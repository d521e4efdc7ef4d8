"""The wrong variants. Each function installs one over the production code; its docstring says why it is wrong."""

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
from fedforget.data.federated import ClientData, FederatedData
from fedforget.errors import TrainingFailed
from fedforget.federation.local import LocalFederation
from fedforget.requests.processor import Processor
from fedforget.session.engine import Engine
from fedforget.store.client_store import ClientStore
from fedforget.store.server_store import ServerStore

Patch = pytest.MonkeyPatch
_generations = count(1)


class Fresh:
    """Priorities at addresses that were never used: new, independent draws."""

    def __init__(self, priorities: Any) -> None:
        self._priorities = priorities
        self._shift = 1000 * next(_generations)

    def __call__(self, address: Address, ids: IdSet) -> Any:
        return self._priorities(replace(address, round=address.round + self._shift), ids)

    def stream(self, address: Address) -> bytes:
        return self._priorities.stream(address)


# --------------------------------------------------------------------------------------- 1, 2: what is drawn again


def slots_drawn_again(patch: Patch) -> None:
    """Algorithm 2 as printed: a restart at the start of a round draws its multiset anew.

    That the sample was used makes it likelier that its client was drawn. Only those draws get a second chance, so the
    client ends up in fewer rounds than it should.
    """
    real = learn.learn

    def learn_anew(server: Any, until: int, on_round: Any = None) -> None:
        real(replace(server, priorities=Fresh(server.priorities)), until, on_round)

    patch.setattr(forget, "learn", learn_anew)


def restart_from_the_beginning(patch: Patch) -> None:
    """Section 5.3's low-storage variant: if the sample was ever used, everything is drawn anew from round 1.

    Histories in which its client was drawn often are likelier to have used the sample, so they are thrown away more
    often than they come back.
    """
    slots_drawn_again(patch)
    real = forget.decide

    def decide(server: Any, requests: Any) -> Any:
        decision = real(server, requests)
        return decision if decision.first_changed_step is None else replace(decision, rewind_to=0)

    patch.setattr(forget, "decide", decide)


# ------------------------------------------------------------------------------------ 3, 12: how it is drawn


def _uniform(priorities: Any, address: Address, ids: IdSet) -> Fraction:
    """The ordinary stream's u at an address: the same for ever, whatever is left."""
    known = vars(priorities).setdefault("uniforms", {})
    if address not in known:
        ranks = tuple(int(rank) for rank in priorities(address, ids)[:, 1])
        orders = list(permutations(range(len(ids))))
        known[address] = Fraction(orders.index(ranks), factorial(len(ids)))
    return known[address]


def stretched_slots(patch: Patch) -> None:
    """An ordinary generator, ⌊u·M⌋, whose u is used again as ⌊u·(M-1)⌋ where the slot held the erased client.

    The clients that were drawn stay, and on top of that one of them inherits all of the erased client's share.
    """

    def draw(priorities: Any, roster: IdSet, round_: int, slots: int) -> list[Id]:
        addresses = [Address(Purpose.SLOT, round_, slot) for slot in range(slots)]
        return [roster.ids[floor(_uniform(priorities, address, roster) * len(roster))] for address in addresses]

    patch.setattr(learn, "draw_clients_with_replacement", draw)


def stretched_batches(patch: Patch) -> None:
    """The same for batches: the ⌊u·C(N, b)⌋-th subset before, the ⌊u·C(N-1, b)⌋-th after."""

    def draw(priorities: Any, owner: Id, samples: IdSet, round_: int, steps: Sequence[int], size: int) -> Any:
        chosen = min(size, len(samples))
        addresses = [Address(Purpose.BATCH, round_, step, id_block(owner)) for step in steps]
        subsets = list(combinations(range(len(samples)), chosen))
        number = comb(len(samples), chosen)
        return np.array([subsets[floor(_uniform(priorities, address, samples) * number)] for address in addresses])

    patch.setattr(client, "draw_batches_without_replacement", draw)


def few_bits(patch: Patch) -> None:
    """Priorities cut to a few bits, and a selection that is not stable.

    Ties are broken by position, which is not uniform; and positions shift when an id goes, so a draw that did not hold
    it changes all the same.
    """

    def smallest(priorities: Any, size: int) -> Any:
        high, low = priorities[..., 0].astype(np.uint64), priorities[..., 1].astype(np.uint64)
        cut = high >> np.uint64(61) if high.any() else low >> np.uint64(1)
        return np.sort(np.argpartition(cut, min(size, cut.shape[-1]) - 1)[..., :size])

    patch.setattr(draws, "smallest", smallest)


# ---------------------------------------------------------------------------------- 4, 5: where it goes back to


def one_round_too_few(patch: Patch) -> None:
    """Rewinds to the end of the round that changed instead of its start: what was to be forgotten is in that model."""
    real = forget.decide

    def decide(server: Any, requests: Any) -> Any:
        decision = real(server, requests)
        return replace(decision, rewind_to=min(decision.rewind_to + 1, decision.goal))

    patch.setattr(forget, "decide", decide)
    patch.setattr("fedforget.requests.processor.decide", decide)


def slots_per_client(patch: Patch) -> None:
    """K evaluated again after an erasure, in proportion to M.

    The rounds that stay were drawn with the old K: the result is a mixture that no learning produces.
    """
    real = forget.apply

    def apply(server: Any, decision: Any) -> None:
        before = len(server.memory.roster)
        real(server, decision)
        slots = max(1, server.plan.clients_per_round * len(server.memory.roster) // before)
        object.__setattr__(server, "plan", replace(server.plan, clients_per_round=slots))

    patch.setattr(forget, "apply", apply)


def batch_per_sample(patch: Patch) -> None:
    """b evaluated again after an erasure, in proportion to the size of the client that lost a sample."""
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


def multiplicity_dropped(patch: Patch) -> None:
    """Every client counts once, however many slots it fills: the average is no longer that of K independent draws."""
    real = draws.multiplicities
    patch.setattr(aggregate, "multiplicities", lambda slots: dict.fromkeys(real(slots), 1))


def order_of_arrival(patch: Patch) -> None:
    """Sums in the order in which replies come in: the last bits depend on the network, and cannot be made again."""

    def average(slots: Sequence[Id], replies: Sequence[TrainReply]) -> dict[str, Any]:
        counts = draws.multiplicities(slots)
        total = {name: np.zeros_like(tensor) for name, tensor in replies[0].model.items()}
        for reply in replies:
            for name in total:
                total[name] += counts[reply.client] * reply.model[name]
        return {name: np.asarray(tensor / len(slots)) for name, tensor in total.items()}

    patch.setattr(aggregate, "average", average)


# ------------------------------------------------------------------------------------------------------ 7: first uses


def server_notes_round_one_only(patch: Patch, memory: Any = ServerInMemory) -> None:
    """A client that is first drawn in a later round seems never to have been used, and is not taken out."""
    real = memory.commit

    def commit(self: Any, round_: int, state: State, drawn: Sequence[Id]) -> None:
        real(self, round_, state, drawn if round_ == 1 else [])

    patch.setattr(memory, "commit", commit)


def server_store_notes_round_one_only(patch: Patch) -> None:
    """The same on disk."""
    server_notes_round_one_only(patch, ServerStore)


def client_notes_round_one_only(patch: Patch) -> None:
    """A sample that is first used in a later round seems never to have been used, and is not taken out."""
    real = client.Client.local_round

    def local_round(self: Any, task: Any, draws: Any = None) -> Any:
        known = dict(self._first_use.known())
        work, uses = real(self, task, draws)
        if task.round > 1:
            self._first_use, uses = FirstUse(self.samples, known), []
        return work, uses

    patch.setattr(client.Client, "local_round", local_round)


def client_store_notes_round_one_only(patch: Patch) -> None:
    """The same on disk, where the next command reads it."""
    real = ClientStore.note
    first_round = 2  # steps: E of the plan of the runs on disk
    patch.setattr(
        ClientStore,
        "note",
        lambda self, uses, witnesses: real(self, [use for use in uses if use[2] <= first_round], witnesses),
    )


def server_keeps_first_uses(patch: Patch) -> None:
    """First rounds are not taken back on rewinding.

    After an erasure a client may move up into an earlier round than before. The old note hides that: when it is erased
    in turn, the earlier round stays as it is, with the client in it.
    """
    real = ServerInMemory.rewind

    def rewind(self: Any, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:
        known = self.first_rounds()
        real(self, rounds_done, leaving, batch_id)
        self._first_use = FirstUse(self.roster, {id_: when for id_, when in known.items() if id_ in self.roster})

    patch.setattr(ServerInMemory, "rewind", rewind)


def server_store_keeps_first_uses(patch: Patch) -> None:
    """The same on disk."""
    real = ServerStore.rewind

    def rewind(self: Any, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:
        known = self.first_rounds()
        real(self, rounds_done, leaving, batch_id)
        with self.database.transaction():
            self.database.run_many(
                "UPDATE roster SET first_round = ? WHERE client = ?", [(when, id_) for id_, when in known.items()]
            )
        self._reload()

    patch.setattr(ServerStore, "rewind", rewind)


def client_keeps_first_uses(patch: Patch) -> None:
    """First steps are not taken back on rewinding: a sample that moved up into an earlier batch stays in it."""
    patch.setattr(client.Client, "rewind", lambda self, last_step: None)
    patch.setattr(ClientsInMemory, "rewind", lambda self, rounds_done, last_step: None)


def client_store_keeps_first_uses(patch: Patch) -> None:
    """The same on disk."""
    patch.setattr(ClientStore, "rewind", lambda self, rounds_done, last_step: None)


# ------------------------------------------------------------------------------------------------------- 8: failures


def drawn_again_after_a_failure(patch: Patch) -> None:
    """Each attempt at a round draws its slots anew, so that a client that fails is in fewer rounds than it should.

    Why it failed may be the very data that are erased later; their influence on the draws is then never undone.
    """
    real = draws.draw_clients_with_replacement

    def draw(priorities: Any, roster: IdSet, round_: int, slots: int) -> list[Id]:
        attempts = vars(priorities).setdefault("attempts", set())
        source = Fresh(priorities) if round_ in attempts else priorities
        attempts.add(round_)
        return real(source, roster, round_, slots)

    patch.setattr(learn, "draw_clients_with_replacement", draw)


def whoever_answered(patch: Patch) -> None:
    """The average of the replies that came: who is in it depends on who failed, not on the draws alone."""
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
        there = {reply.client for reply in replies}
        answered = [client for client in slots if client in there]
        if not answered:
            raise TrainingFailed("nobody answered")
        return real_average(answered, replies)

    patch.setattr(LocalFederation, "train", train)
    patch.setattr(aggregate, "average", average)


# --------------------------------------------------------------------------------------------- 10: what is rewound


def optimizer_not_rewound(patch: Patch) -> None:
    """The weights go back, the server optimiser's moments do not: they still hold what was to be forgotten."""
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


def content_ignored(patch: Patch) -> None:
    """Other content under the same id is other data. Training on with it gives the model of no data set."""
    patch.setattr(FederatedData, "require_unchanged", lambda self, client, known: None)


def label_ignored(patch: Patch) -> None:
    """A digest of x alone: a corrected label is other content too."""
    real = ClientData.sample

    def content(self: Any, identifier: Id) -> bytes:
        return real(self, identifier)[0].tobytes()[:16].ljust(16, b"\0")

    patch.setattr(ClientData, "content", content)


def content_of_a_client_that_loses_a_sample_ignored(patch: Patch) -> None:
    """The data of a client are not compared if it loses a sample: its other samples may have other content by now."""
    real = Engine.check_data

    def check_data(self: Any, run: Any, leaving: Any) -> None:
        real(self, run, [forget.Request(request.client) for request in leaving])

    patch.setattr(Engine, "check_data", check_data)


# ------------------------------------------------------------------------------------------------ 13, 14: requests


def clients_keep_their_seeds(patch: Patch) -> None:
    """New seeds for the server only: the batches are those that a requester has looked at, and the law stays lost."""
    real = learn.Server.reseed

    def reseed(self: Any, seeds: SeedSource) -> None:
        clients = self.federation.memory
        before = {client: clients.seed_pair(client) for client in self.memory.roster}
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SeedSource, "client", lambda _, client: before[client])
            real(self, seeds)

    patch.setattr(learn.Server, "reseed", reseed)


def an_emptied_client_covers_no_request(patch: Patch) -> None:
    """A request for a client waits on, although the client has just left with its last sample."""
    real = Processor._covered_by

    def covered_by(self: Any, wanted: Any, waiting: Any) -> Any:
        return real(self, wanted, {i: r for i, r in waiting.items() if r.sample is not None or r in wanted.values()})

    patch.setattr(Processor, "_covered_by", covered_by)
