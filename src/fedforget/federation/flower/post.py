"""Flower's post: parcels as messages on its Grid."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ArrayRecord, Message, MessageType
from flwr.serverapp import Grid

from fedforget.errors import FedForgetError
from fedforget.federation.flower.records import pack, pack_model, unpack
from fedforget.federation.parcels import Parcel
from fedforget.federation.post import Address, Letter


class GridPost:
    """A ``Post`` on Flower's Grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> list[Address]:
        return list(self._grid.get_node_ids())

    def push(self, parcels: Sequence[tuple[Parcel, Address]]) -> list[str]:
        packed: dict[int, ArrayRecord] = {}
        messages = [_message(parcel, node, packed) for parcel, node in parcels]
        return list(self._grid.push_messages(messages)) if messages else []

    def pull(self, messages: Sequence[str]) -> list[Letter]:
        return [_letter(reply) for reply in self._grid.pull_messages(list(messages))] if messages else []

    def close(self) -> None:
        """Do nothing: the Grid belongs to the ServerApp."""


def _message(parcel: Parcel, node: Address, packed: dict[int, ArrayRecord]) -> Message:
    """``packed``: the models that other messages carry, so that a round's model is packed once."""
    kind = MessageType.QUERY if parcel.model is None else MessageType.TRAIN
    if parcel.model is not None and id(parcel.model) not in packed:
        packed[id(parcel.model)] = pack_model(parcel.model)
    content = pack(parcel, None if parcel.model is None else packed[id(parcel.model)])
    return Message(content, node, kind, group_id=str(parcel.body.get("round", "")))


def _letter(reply: Message) -> Letter:
    message = str(reply.metadata.reply_to_message_id)
    if reply.has_error():
        return Letter(message, error=int(reply.error.code), reason=str(reply.error.reason or ""))
    try:
        return Letter(message, unpack(reply.content))
    except FedForgetError as error:
        return Letter(message, reason=error.message)
