"""The nodes of a Flower simulation, reached over the Grid: push and pull with a short poll, ask again what got lost.

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

from flwr.app import ArrayRecord, Message, MessageType
from flwr.serverapp import Grid

from fedforget.errors import FedForgetError, TrainingFailed, shown
from fedforget.federation import local_rounds
from fedforget.federation.flower_records import pack, pack_model, unpack
from fedforget.federation.flower_trainer import MOST_NODES, Answers
from fedforget.federation.parcels import Parcel, failure

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
    """``Nodes`` over Flower's Grid.

    ``patience``: seconds without an answer from any node. ``poll``: seconds between two looks for replies.
    ``introduction``: seconds that nodes have to say that they are there; later ones have a tenth of it. ``tries``: how
    often a question may get lost.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        patience: float = 600.0,
        poll: float = 0.02,
        introduction: float = 120.0,
        tries: int = 8,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self.patience = grid, patience
        self._poll, self._introduction, self._tries = poll, introduction, tries
        self._clock, self._wait = clock, wait
        self._nodes: dict[int, int] = {}  # by partition

    def close(self) -> None:
        """Do nothing: the Grid belongs to the ServerApp."""

    def introduce(self) -> None:
        """Ask unknown nodes which partition they are. Raise TrainingFailed if no node answers."""
        known = set(self._nodes.values())
        unknown = [node for node in self._grid.get_node_ids() if node not in known][: MOST_NODES - len(self._nodes)]
        sent = dict(zip(self._push([(local_rounds.introduction(), node) for node in unknown]), unknown, strict=True))
        until = self._clock() + (self._introduction / 10 if known else self._introduction)
        while sent and self._clock() < until:
            for reply in self._grid.pull_messages(list(sent)):
                node = sent.pop(reply.metadata.reply_to_message_id, None)
                if node is not None and not reply.has_error():
                    self._nodes[_partition_in(_unpacked(reply), len(self._nodes))] = node
            if sent:
                self._wait(self._poll)
        if not self._nodes:
            raise TrainingFailed(
                "no node of the Flower simulation answers", hint="see Flower's log, and give the same command again"
            )

    def exchange(self, asked: Sequence[Parcel], idle: Iterator[None]) -> Answers:
        waiting = {place: _Question(parcel) for place, parcel in enumerate(asked)}
        packed: dict[int, ArrayRecord] = {}
        since = self._clock()
        while waiting:
            try:
                self._send(waiting, packed)
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

    def _send(self, waiting: dict[int, _Question], packed: dict[int, ArrayRecord]) -> None:
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
        sent = self._push([(each.parcel, each.node) for _, each in ready], packed)
        for (_, each), identifier in zip(ready, sent, strict=True):
            each.message = identifier

    def _push(self, parcels: Sequence[tuple[Parcel, int]], packed: dict[int, ArrayRecord] | None = None) -> list[str]:
        messages = [_message(parcel, node, {} if packed is None else packed) for parcel, node in parcels]
        return list(self._grid.push_messages(messages)) if messages else []

    def _receive(self, waiting: dict[int, _Question]) -> list[tuple[int, Parcel]]:
        """Return the answers that have come. What got lost is to be sent again."""
        sent = {each.message: place for place, each in waiting.items() if each.message}
        found = []
        for reply in self._grid.pull_messages(list(sent)) if sent else ():
            place = sent.pop(reply.metadata.reply_to_message_id, None)
            if place is None:
                continue  # an answer that came twice
            each = waiting[place]
            if not reply.has_error():
                found.append((place, _unpacked(reply)))
            elif reply.error.code in _LOST and each.lost + 1 < self._tries:
                self._ask_again(each, reply.error.code)
            else:
                found.append((place, failure(_failed(each.parcel, reply.error.code, reply.error.reason))))
        return found

    def _ask_again(self, each: _Question, code: int) -> None:
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


def _message(parcel: Parcel, node: int, packed: dict[int, ArrayRecord]) -> Message:
    """``packed``: the models that other messages carry, so that a round's model is packed once."""
    if parcel.model is None:
        return Message(pack(parcel), node, MessageType.QUERY)
    if id(parcel.model) not in packed:
        packed[id(parcel.model)] = pack_model(parcel.model)
    content = pack(parcel, packed[id(parcel.model)])
    return Message(content, node, MessageType.TRAIN, group_id=str(parcel.body["round"]))


def _unpacked(reply: Message) -> Parcel:
    try:
        return unpack(reply.content)
    except FedForgetError as error:
        return failure(error)


def _partition_in(answer: Parcel, otherwise: int) -> int:
    found: Any = answer.body.get("partition")
    return found if type(found) is int else otherwise


def _client(parcel: Parcel) -> str:
    return f"client {shown(parcel.body.get('client'))} in round {parcel.body.get('round')}"


def _failed(parcel: Parcel, code: int, reason: str | None) -> TrainingFailed:
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
