"""The nodes of a Flower simulation, reached by Flower's post: push and pull with a short poll, resend lost messages.

A node holds nothing, so places of a round are dealt out over the nodes in the order of their partitions, whatever the
clients' ids: fewer nodes than clients are enough. Nodes are asked once which partition they are; after a failure only
unknown ones are asked, and those that were unavailable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedforget.errors import InvalidInput, TrainingFailed, shown
from fedforget.federation import local_rounds
from fedforget.federation.flower.trainer import MOST_NODES, Answers
from fedforget.federation.parcels import Parcel, failure
from fedforget.federation.post import FOREIGN, Letter, Post

log = logging.getLogger("fedforget")

_LOST = {0, 3, 4, 5, 8}  # Flower's error codes: a process that ended, a message, a reply or a node that is gone
_END = object()


@dataclass(slots=True)
class _Question:
    """A parcel, how often it was lost, and the message that carries it now."""

    parcel: Parcel
    lost: int = 0
    again_at: float = 0.0
    node: int = 0
    message: str = ""


class GridNodes:
    """``Nodes`` over Flower's post.

    ``patience``: seconds without an answer from any node. ``poll``: poll interval in seconds.
    ``introduction``: seconds that nodes have to say that they are there; later ones have a tenth of it. ``tries``: how
    often a question may get lost.
    """

    def __init__(
        self,
        post: Post,
        *,
        patience: float = 600.0,
        poll: float = 0.02,
        introduction: float = 120.0,
        tries: int = 8,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._post, self.patience = post, patience
        self._poll, self._introduction, self._tries = poll, introduction, tries
        self._clock, self._wait = clock, wait
        self._nodes: dict[int, int] = {}  # by partition

    def close(self) -> None:
        self._post.close()

    def introduce(self) -> None:
        """Ask unknown nodes which partition they are. Raise TrainingFailed if no node answers."""
        known = set(self._nodes.values())
        unknown = [node for node in self._post.nodes() if node not in known][: MOST_NODES - len(self._nodes)]
        sent = dict(
            zip(self._post.push([(local_rounds.introduction(), node) for node in unknown]), unknown, strict=True)
        )
        until = self._clock() + (self._introduction / 10 if known else self._introduction)
        while sent and self._clock() < until:
            for letter in self._post.pull(list(sent)):
                node = sent.pop(letter.message, None)
                if node is not None and letter.error is None:
                    self._nodes[_partition_in(_answer_in(letter), len(self._nodes))] = node
            if sent:
                self._wait(self._poll)
        if not self._nodes:
            raise TrainingFailed(
                "no node of the Flower simulation answers", hint="see Flower's log, and give the same command again"
            )

    def exchange(self, asked: Sequence[Parcel], idle: Iterator[None]) -> Answers:
        waiting = {place: _Question(parcel) for place, parcel in enumerate(asked)}
        since = self._clock()
        while waiting:
            try:
                self._send(waiting)
            except TrainingFailed as error:
                yield from ((place, failure(error)) for place in waiting)
                return
            answers = self._receive(waiting)
            for place, answer in answers:
                del waiting[place]
                yield place, answer
            since = self._clock() if answers else since
            if waiting and self._clock() - since >= self.patience:
                yield from ((place, failure(self._silent(each.parcel))) for place, each in waiting.items())
                return
            if waiting and not answers and next(idle, _END) is _END:
                self._wait(self._poll)

    def _send(self, waiting: dict[int, _Question]) -> None:
        ready = [
            (place, each) for place, each in waiting.items() if not each.message and each.again_at <= self._clock()
        ]
        if not ready:
            return
        if not self._nodes or any(each.lost for _, each in ready):
            self.introduce()
        partitions = sorted(self._nodes)
        for place, each in ready:
            each.node = self._nodes[partitions[(place + each.lost) % len(partitions)]]
        sent = self._post.push([(each.parcel, each.node) for _, each in ready])
        for (_, each), identifier in zip(ready, sent, strict=True):
            each.message = identifier

    def _receive(self, waiting: dict[int, _Question]) -> list[tuple[int, Parcel]]:
        """Return the answers that have come, and mark lost messages to be sent again."""
        sent = {each.message: place for place, each in waiting.items() if each.message}
        found = []
        for letter in self._post.pull(list(sent)) if sent else ():
            place = sent.pop(letter.message, None)
            if place is None:
                continue  # an answer that came twice
            each = waiting[place]
            if letter.error is None:
                found.append((place, _answer_in(letter)))
            elif letter.error in _LOST and each.lost + 1 < self._tries:
                self._resend(each, letter.error)
            else:
                found.append((place, failure(_failed(each.parcel, letter.error, letter.reason))))
        return found

    def _resend(self, each: _Question, code: int) -> None:
        log.warning("a node did not finish the round of %s (Flower's error %d)", _client(each.parcel), code)
        each.lost, each.message = each.lost + 1, ""
        each.again_at = self._clock() + self._poll * 2**each.lost
        if code == 5:  # noqa: PLR2004 (the node is unavailable)
            self._nodes = {partition: node for partition, node in self._nodes.items() if node != each.node}

    def _silent(self, parcel: Parcel) -> TrainingFailed:
        return TrainingFailed(
            f"no node finished the round of {_client(parcel)} within {self.patience:g} s",
            hint="give the same command again, with a longer --worker-timeout (patience, in Python) if it only needs "
            "more time",
        )


def _answer_in(letter: Letter) -> Parcel:
    """Return the answer in a letter, or the failure of a node that sent something else."""
    return failure(InvalidInput(letter.reason, hint=FOREIGN)) if letter.answer is None else letter.answer


def _partition_in(answer: Parcel, otherwise: int) -> int:
    found: Any = answer.body.get("partition")
    return found if type(found) is int else otherwise


def _client(parcel: Parcel) -> str:
    return f"client {shown(parcel.body.get('client'))} in round {parcel.body.get('round')}"


def _failed(parcel: Parcel, code: int, reason: str) -> TrainingFailed:
    if code in _LOST:
        return TrainingFailed(
            f"the nodes that trained {_client(parcel)} ended without an answer, again and again "
            f"({shown(reason or f'Flower error {code}')})",
            hint="give the same command again, with fewer --workers if memory is short",
        )
    return TrainingFailed(
        f"the node that trained {_client(parcel)} failed: its ClientApp raised {shown(reason or 'an error')}",
        hint="see Flower's log, and give the same command again",
    )
