"""One client: its samples, its draws and their first uses.

Only the client can decide what erasing one of its samples changes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedforget.algorithm.draws import Address, Priorities, Purpose, draw_batches_without_replacement
from fedforget.algorithm.first_use import FirstUse
from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.plan import Plan
from fedforget.algorithm.ports import (
    WITNESS_DIGEST_BYTES,
    WITNESSED_STEPS,
    FirstStep,
    ForgetQuery,
    ForgetReply,
    JoinQuery,
    JoinReply,
    LocalRound,
    TrainTask,
)
from fedforget.errors import UnknownTarget, shown

_PERSON = b"fedforget/wit/1"


@dataclass(frozen=True, slots=True)
class LocalDraws:
    """A client's draws for one round: for each step, a row of positions in its samples and a random stream."""

    rows: NDArray[np.intp]
    streams: tuple[bytes, ...]


class Client:
    """The private state of one client; the server sees none of it."""

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
        self._steps = range(plan.local_steps)
        self._first_use = FirstUse(samples, first_steps)
        self._witness_key = b""

    def draws(self, round_: int) -> LocalDraws:
        """Derive the draws of a round. They depend on the client's seed and samples alone."""
        streams = (Address(Purpose.STATE, round_, step, self._block) for step in self._steps)
        return LocalDraws(self._batches(round_, self.samples), tuple(map(self._priorities.stream, streams)))

    def local_round(
        self, task: TrainTask, draws: LocalDraws | None = None
    ) -> tuple[LocalRound, list[tuple[Id, Id, int]]]:
        """Return the mini-batches of a round (Algorithm 1, lines 10-11) and its first uses, which are noted here.

        ``draws``: the draws of the round, if the caller has derived them already.
        """
        work = self._round(task, draws or self.draws(task.round))
        return work, self._first_uses(task.round, work.rows)

    def first_steps(self, task: TrainTask, leaving: Collection[Id] = ()) -> LocalRound:
        """Return the steps that the witness of a round covers, on the samples that stay. Notes no first use."""
        work, staying = self._round(task, self.draws(task.round)), self.samples.without(leaving)
        if staying is not self.samples:  # erasing a sample that was not drawn leaves the draws as they are
            work = replace(work, samples=staying.ids, rows=self._batches(task.round, staying))
        steps = min(WITNESSED_STEPS, len(work.rows))
        drawn, rows = np.unique(work.rows[:steps], return_inverse=True)  # other samples may be gone from the data
        return replace(
            work,
            samples=tuple(work.samples[place] for place in drawn.tolist()),
            rows=rows.reshape(steps, -1),
            streams=work.streams[:steps],
        )

    def _round(self, task: TrainTask, draws: LocalDraws) -> LocalRound:
        after = min(WITNESSED_STEPS, len(draws.rows)) if self._plan.has_witness(task.round) else 0
        return LocalRound(task.round, self.id, task.model, self.samples.ids, draws.rows, draws.streams, after)

    def witness(self, round_: int, checksum: bytes, first_step: FirstStep) -> bytes:
        """Return a keyed digest of the checksum of a round's first steps, and the numbers of the first one."""
        if not self._witness_key:
            self._witness_key = self._priorities.stream(Address(Purpose.WITNESS, 0, 0, self._block))
        message = round_.to_bytes(8, "big") + checksum
        keyed = hashlib.blake2b(message, key=self._witness_key, digest_size=WITNESS_DIGEST_BYTES, person=_PERSON)
        return keyed.digest() + struct.pack(f"<{len(first_step)}d", *first_step)

    def _first_uses(self, round_: int, rows: NDArray[np.intp]) -> list[tuple[Id, Id, int]]:
        if self._first_use.are_known(rows):
            return []
        uses = []
        for index, batch in enumerate(rows):
            step = self._plan.step_of(round_, index)
            uses += [(self.id, sample, step) for sample in self._first_use.note(batch, step)]
        return uses

    def _batches(self, round_: int, samples: IdSet) -> NDArray[np.intp]:
        """Return a row for each step: the positions of its mini-batch."""
        return draw_batches_without_replacement(
            self._priorities, self.id, samples, round_, self._steps, self._plan.batch_size
        )

    def what_would_change(self, query: ForgetQuery) -> ForgetReply:
        """Return the first step that used each sample, and whether the client would be empty without them."""
        return forget_reply(query, self.samples, self._first_use.known())

    def what_would_join(self, query: JoinQuery) -> JoinReply:
        """Return the first step whose mini-batch, drawn from the larger set, holds one of the new samples."""
        larger = IdSet((*self.samples, *query.samples), what=f"sample of client {shown(self.id)}")
        new = np.fromiter(map(larger.position.__getitem__, query.samples), np.intp)
        for round_ in query.rounds:
            changed = np.isin(self._batches(round_, larger), new).any(1)
            if changed.any():
                return JoinReply(self.id, self._plan.step_of(round_, int(changed.argmax())))
        return JoinReply(self.id, None)

    def remove(self, samples: Iterable[Id]) -> None:
        gone = [sample for sample in samples if sample in self.samples]
        self._first_use = self._first_use.without(gone)
        self.samples = self._first_use.ids

    def rewind(self, last_step: int) -> None:
        self._first_use.rewind(last_step)


def forget_reply(query: ForgetQuery, samples: IdSet, first_steps: Mapping[Id, int]) -> ForgetReply:
    """Return the first step that used each sample, and whether the client would be empty without them.

    ``first_steps``: of the samples that were used.
    """
    for sample in query.samples:
        if sample not in samples:
            raise UnknownTarget(
                f"client {shown(query.client)} has no sample {shown(sample)}",
                hint=f"see `fedforget clients RUN --client {shown(query.client)}`",
            )
    steps = tuple(map(first_steps.get, query.samples))
    return ForgetReply(query.client, steps, now_empty=len(set(query.samples)) == len(samples))
