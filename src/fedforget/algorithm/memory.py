"""Both parties' memories without a disk, for replays and for enumerating laws. ``store`` has the same contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedforget.algorithm.first_use import FirstUse
from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import Newcomer, RemoveOrder, State
from fedforget.algorithm.seeds import Seed


class ServerInMemory:
    """A ``ServerMemory`` that keeps its states in a dictionary, beginning with ``state`` of ``rounds_done``."""

    def __init__(self, plan: Plan, roster: IdSet, state: State, rounds_done: int = 0) -> None:
        self._plan = plan
        self._states: dict[int, State] = {rounds_done: state}
        self._first_use = FirstUse(roster)
        self.rounds_done = rounds_done

    @property
    def roster(self) -> IdSet:
        return self._first_use.ids

    def first_round(self, client: Id) -> int | None:
        return self._first_use.of(client)

    def first_rounds(self) -> dict[Id, int]:
        return self._first_use.known()

    def load(self, round_: int) -> State:
        return self._states[round_]

    def kept_at_or_before(self, round_: int) -> int:
        return max(kept for kept in self._states if kept <= round_)

    def commit(self, round_: int, state: State, drawn: Sequence[Id]) -> None:
        places = self.roster.places_of(drawn)
        self._first_use.note(places, round_)
        self._states[round_] = state
        self.rounds_done = round_
        if not self._plan.is_kept(round_ - 1, round_):
            del self._states[round_ - 1]

    def begin(self, batch_id: str) -> None:
        """Do nothing: memory does not survive a crash."""

    def rewind(self, rounds_done: int, leaving: Sequence[Id], batch_id: str = "") -> None:  # noqa: ARG002
        self.rounds_done = min(self.rounds_done, rounds_done)
        self._states = {kept: state for kept, state in self._states.items() if kept <= self.rounds_done}
        self._first_use.rewind(self.rounds_done)
        self._first_use = self._first_use.without(leaving)

    def join(self, commitments: Mapping[Id, bytes]) -> None:
        new = [client for client in commitments if client not in self.roster]
        self._first_use = FirstUse(IdSet((*self.roster, *new), what="client"), self._first_use.known())

    def reseed(self, seed: Seed, commitments: Mapping[Id, bytes]) -> None:
        """Do nothing: the caller holds the seeds."""


class ClientsInMemory:
    """A ``ClientMemory`` that keeps everything in dictionaries."""

    def __init__(
        self, samples: Mapping[Id, IdSet], seeds: Mapping[Id, bytes], commitments: Mapping[Id, bytes] | None = None
    ) -> None:
        self._samples = dict(samples)
        self._seeds = dict(seeds)
        self._commitments = dict(commitments or {})
        self._first: dict[Id, dict[Id, int]] = {client: {} for client in samples}
        self._witnesses: dict[Id, dict[int, bytes]] = {client: {} for client in samples}

    def commitments(self) -> Mapping[Id, bytes]:
        return self._commitments

    def samples(self, client: Id) -> IdSet:
        return self._samples[client]

    def sizes(self) -> dict[Id, int]:
        return {client: len(samples) for client, samples in self._samples.items()}

    def first_steps(self, client: Id) -> Mapping[Id, int]:
        return self._first[client]

    def witnesses(self, client: Id) -> Mapping[int, bytes]:
        return self._witnesses[client]

    def seed(self, client: Id) -> bytes:
        return self._seeds[client]

    def note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]] = ()) -> None:
        for client, sample, step in uses:
            self._first[client][sample] = step
        for client, round_, witness in witnesses:
            self._witnesses[client][round_] = witness

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        for order in orders:
            if order.samples is None:
                for table in (self._samples, self._seeds, self._first, self._witnesses, self._commitments):
                    table.pop(order.client, None)
            elif order.client in self._samples:
                self._samples[order.client] = self._samples[order.client].without(order.samples)
                for sample in order.samples:
                    self._first[order.client].pop(sample, None)

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        for new in newcomers:
            if new.client not in self._samples and new.seed is not None:
                self._samples[new.client] = IdSet(())
                self._seeds[new.client], self._commitments[new.client] = new.seed.value, new.seed.commitment
                self._first[new.client], self._witnesses[new.client] = {}, {}
            samples = self._samples[new.client]
            fresh = [sample for sample, _ in new.samples if sample not in samples]
            self._samples[new.client] = IdSet((*samples, *fresh), what="sample")

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        for client, seed in seeds.items():
            self._seeds[client], self._commitments[client] = seed.value, seed.commitment

    def rewind(self, rounds_done: int, last_step: int) -> None:
        for client in self._first:
            self.rewind_client(client, rounds_done, last_step)

    def rewind_client(self, client: Id, rounds_done: int, last_step: int) -> None:
        """Drop what one client noted later."""
        first, noted = self._first[client], self._witnesses[client]
        self._first[client] = {sample: step for sample, step in first.items() if step <= last_step}
        self._witnesses[client] = {round_: witness for round_, witness in noted.items() if round_ <= rounds_done}
