"""A client's memory for a replay: it begins without notes, and compares what would be noted with what was."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fedforget.algorithm.ids import Id, IdSet
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import ClientMemory, Newcomer, RemoveOrder
from fedforget.algorithm.seeds import Seed


class ReplayedMemory:
    """A ``ClientMemory`` of one client that changes nothing."""

    def __init__(self, memory: ClientMemory, client: Id) -> None:
        self._memory, self._client = memory, client
        self._uses: dict[Id, int] = {}
        self._witnesses: dict[int, bytes] = {}

    def agrees(self, plan: Plan, round_: int, rounds: Collection[int]) -> bool:
        """Return whether the client noted of a round what its replay notes, and noted nothing of any other round.

        ``rounds``: all rounds that drew the client.
        """
        stored, witnesses = self._memory.first_steps(self._client), self._memory.witnesses(self._client)
        used = all(stored.get(sample, plan.steps + 1) <= step for sample, step in self._uses.items())
        here = {sample: step for sample, step in stored.items() if plan.round_of(step) == round_}
        first = all(self._uses.get(sample) == step for sample, step in here.items())
        only = {plan.round_of(step) for step in stored.values()} | set(witnesses) <= set(rounds)
        return used and first and only and self._witnesses.get(round_) == witnesses.get(round_)

    def commitments(self) -> Mapping[Id, bytes]:
        return self._memory.commitments()

    def samples(self, client: Id) -> IdSet:
        return self._memory.samples(client)

    def first_steps(self, client: Id) -> Mapping[Id, int]:  # noqa: ARG002
        return {}

    def seed(self, client: Id) -> bytes:
        return self._memory.seed(client)

    def witnesses(self, client: Id) -> Mapping[int, bytes]:  # noqa: ARG002
        return {}

    def note(self, uses: Sequence[tuple[Id, Id, int]], witnesses: Sequence[tuple[Id, int, bytes]] = ()) -> None:
        self._uses |= {sample: step for _, sample, step in uses}
        self._witnesses |= {round_: witness for _, round_, witness in witnesses}

    def remove(self, orders: Sequence[RemoveOrder]) -> None:
        """Do nothing: a replay changes nothing."""

    def join(self, newcomers: Sequence[Newcomer]) -> None:
        """Do nothing: a replay changes nothing."""

    def reseed(self, seeds: Mapping[Id, Seed]) -> None:
        """Do nothing: a replay changes nothing."""

    def rewind(self, rounds_done: int, last_step: int) -> None:
        """Do nothing: a replay changes nothing."""
