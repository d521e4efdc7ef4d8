"""One client: its samples, its draws, its first uses. The party that decides sample-level requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedforget.algorithm.draws import Address, Priorities, Purpose, draw_batch_without_replacement
from fedforget.algorithm.first_use import FirstUse
from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import ForgetQuery, ForgetReply, LocalRound, TrainTask
from fedforget.errors import UnknownTarget


class Client:
    """What a client knows and the server does not."""

    def __init__(
        self,
        client: Id,
        samples: IdSet,
        priorities: Priorities,
        plan: Plan,
        first_steps: Mapping[Id, int] | None = None,
    ) -> None:
        self.id = client
        self.samples = samples
        self._block = id_block(client)
        self._priorities = priorities
        self._plan = plan
        self._first_use = FirstUse(samples, first_steps)

    def local_round(self, task: TrainTask) -> tuple[LocalRound, list[tuple[Id, Id, int]]]:
        """The batches of a round (Algorithm 1, lines 10-11), and the uses in it that are first ones."""
        rows, streams, uses = [], [], []
        for index in range(self._plan.local_steps):
            batch = draw_batch_without_replacement(
                self._priorities, self.id, self.samples, task.round, index, self._plan.batch_size
            )
            step = self._plan.step_of(task.round, index)
            uses += [(self.id, sample, step) for sample in self._first_use.note(batch, step)]
            rows.append(batch)
            streams.append(self._priorities.stream(Address(Purpose.STATE, task.round, index, self._block)))
        ids = self.samples.ids
        batches = tuple(tuple(ids[place] for place in batch) for batch in rows)
        return LocalRound(task.round, self.id, task.model, batches, tuple(streams), ids, tuple(rows)), uses

    def what_would_change(self, query: ForgetQuery) -> ForgetReply:
        """The first step that used each sample, and whether nothing would be left."""
        for sample in query.samples:
            if sample not in self.samples:
                raise UnknownTarget(
                    f"client {self.id} has no sample {sample}", hint=f"see `fedforget clients RUN --client {self.id}`"
                )
        steps = tuple(self._first_use.of(sample) for sample in query.samples)
        return ForgetReply(self.id, steps, now_empty=len(set(query.samples)) == len(self.samples))

    def remove(self, samples: Iterable[Id]) -> None:
        gone = [sample for sample in samples if sample in self.samples]
        self._first_use = self._first_use.without(gone)
        self.samples = self._first_use.ids

    def rewind(self, last_step: int) -> None:
        self._first_use.rewind(last_step)
