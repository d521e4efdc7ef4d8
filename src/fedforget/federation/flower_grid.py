"""The side of the server in Flower: a wire over the Grid.

Flower names nodes at random, so clients are found by asking. Replies come in any order, twice, or not at all; they are
matched by the message they answer, and a message without an answer is sent again until the client's patience is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, MessageType
from flwr.serverapp import Grid

from fedforget.algorithm.ids import Id
from fedforget.errors import ClientUnreachable, FedForgetError, TrainingFailed, shown
from fedforget.federation import parcels
from fedforget.federation.flower_records import pack, pack_model, unpack
from fedforget.federation.parcels import Parcel

log = logging.getLogger("fedforget")

_RAISED, _APP_ERRORS = 2, (1, 6, 7)  # Flower's error codes: the app raised; it could not be loaded or run
_TRAINING = {parcels.TRAIN, parcels.REPEAT}


@dataclass(slots=True)
class _Waiting:
    """A parcel on its way: when its client last showed a sign of life, and the message that carries it now."""

    client: Id
    parcel: Parcel
    since: float
    node: int | None = None
    message: str = ""


class GridWire:
    """A ``Wire`` over Flower's Grid.

    ``nodes``: the node of each client, as far as it is known; the caller may persist it. ``patience``: seconds that a
    client may stay silent. ``poll``: seconds between two looks for replies. ``introduction``: seconds that a node has
    to say which client it answers for; it is asked again while a client is missing. ``client_of``: which client an
    answer proves to come from, given what was asked.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: MutableMapping[Id, int],
        *,
        patience: float = 600.0,
        poll: float = 0.1,
        introduction: float = 30.0,
        client_of: Callable[[Parcel, Parcel | None], Id | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self.nodes = grid, nodes
        self._patience, self._poll, self._introduction = patience, poll, introduction
        self._clock, self._wait = clock, wait
        self._client_of = client_of or (lambda _, answer: _client_in(answer))

    def close(self) -> None:
        """Do nothing: the Grid belongs to the ServerApp."""

    def everyone(self, asked: Parcel) -> list[Parcel]:
        nodes = list(self._grid.get_node_ids())
        answers = self._ask_nodes(asked, nodes)
        self._know(asked, answers)
        return [answer for answer in answers.values() if answer is not None]

    def _know(self, asked: Parcel, answers: Mapping[int, Parcel | None]) -> None:
        for node, answer in answers.items():
            client = self._client_of(asked, answer)
            if client is not None:
                self.nodes[client] = node

    def exchange(self, asked: Sequence[tuple[Id, Parcel]]) -> list[Parcel | FedForgetError]:
        now = self._clock()
        waiting = {place: _Waiting(client, parcel, now) for place, (client, parcel) in enumerate(asked)}
        found: dict[int, Parcel | FedForgetError] = {}
        while waiting:
            self._find_nodes([each for each in waiting.values() if not each.message])
            self._send([each for each in waiting.values() if not each.message and each.node is not None])
            self._receive(waiting, found)
            for place in [place for place, each in waiting.items() if self._clock() - each.since >= self._patience]:
                found[place] = _unreachable(waiting.pop(place).client, self._patience)
            if waiting:
                self._wait(self._poll)
        return [found[place] for place in range(len(asked))]

    def _find_nodes(self, lost: Sequence[_Waiting]) -> None:
        """Ask the nodes that no client is known to have who they are."""
        for each in lost:
            each.node = self.nodes.get(each.client)
        missing = [each for each in lost if each.node is None]
        if not missing:
            return
        taken = set(self.nodes.values())
        unknown = [node for node in self._grid.get_node_ids() if node not in taken]
        asked = Parcel({**missing[0].parcel.body, "kind": parcels.PRESENCE, "client": None})
        self._know(asked, self._ask_nodes(asked, unknown))
        for each in missing:
            each.node = self.nodes.get(each.client)

    def _ask_nodes(self, asked: Parcel, nodes: Sequence[int]) -> dict[int, Parcel | None]:
        """Ask nodes who they are. Only nodes that answer while others still do are in the result."""
        messages = [_message(asked, node, {}) for node in nodes]
        sent = dict(zip(self._grid.push_messages(messages), nodes, strict=True)) if messages else {}
        found: dict[int, Parcel | None] = {}
        since = self._clock()
        while sent:
            replies = list(self._grid.pull_messages(list(sent)))
            for reply in replies:
                node = sent.pop(reply.metadata.reply_to_message_id, None)
                if node is not None and not reply.has_error():
                    found[node] = _unpacked(reply)
            since = self._clock() if replies else since
            if not sent or self._clock() - since >= self._introduction:
                break
            self._wait(self._poll)
        return found

    def _send(self, ready: Sequence[_Waiting]) -> None:
        if not ready:
            return
        packed: dict[int, ArrayRecord] = {}
        messages = [_message(each.parcel, each.node or 0, packed) for each in ready]
        for each, identifier in zip(ready, self._grid.push_messages(messages), strict=True):
            each.message = identifier

    def _receive(self, waiting: dict[int, _Waiting], found: dict[int, Parcel | FedForgetError]) -> None:
        sent = {each.message: place for place, each in waiting.items() if each.message}
        for reply in self._grid.pull_messages(list(sent)) if sent else ():
            place = sent.pop(reply.metadata.reply_to_message_id, None)
            if place is None:
                continue  # an answer that came twice
            each = waiting[place]
            if not reply.has_error():
                found[place] = _answer(reply, each.client)
                del waiting[place]
            elif reply.error.code == _RAISED or reply.error.code in _APP_ERRORS:
                found[place] = _app_failed(each.client, reply.error.reason)
                del waiting[place]
            else:  # the node or its process has gone, or the message: ask again, of the node that is there by then
                log.warning("client %s did not answer (Flower's error %d)", shown(each.client), reply.error.code)
                self.nodes.pop(each.client, None)
                each.node, each.message = None, ""


def _message(parcel: Parcel, node: int, packed: dict[int, ArrayRecord]) -> Message:
    """``packed``: the models that other messages carry, so that a round's model is packed once."""
    kind = MessageType.TRAIN if parcel.body["kind"] in _TRAINING else MessageType.QUERY
    if parcel.model is not None and id(parcel.model) not in packed:
        packed[id(parcel.model)] = pack_model(parcel.model)
    content = pack(parcel, None if parcel.model is None else packed[id(parcel.model)])
    return Message(content, node, kind, group_id=str(parcel.body.get("round", "")))


def _unpacked(reply: Message) -> Parcel | None:
    try:
        return unpack(reply.content)
    except FedForgetError:
        return None


def _client_in(answer: Parcel | None) -> Id | None:
    """Return which client a node answers for, also if its data have left the run; None if it is none of this run."""
    try:
        return None if answer is None else parcels.client_in(answer)
    except FedForgetError:
        return None


def _answer(reply: Message, client: Id) -> Parcel | FedForgetError:
    found = _unpacked(reply)
    return parcels.broken(client, "an answer that cannot be read") if found is None else found


def _app_failed(client: Id, reason: str | None) -> TrainingFailed:
    return TrainingFailed(
        f"client {shown(client)} failed: its ClientApp raised {shown(reason or 'an error')}",
        hint="see the log of its node, and give the same command again",
    )


def _unreachable(client: Id, patience: float) -> ClientUnreachable:
    return ClientUnreachable(
        f"client {shown(client)} has not answered for {patience:g} s",
        hint="start its node again, and give the same command again; or erase the client "
        "(a choice that depends on the draws: --basis model-informed)",
    )
