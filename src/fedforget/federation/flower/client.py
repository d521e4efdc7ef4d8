"""The side of a client in Flower: a ClientApp that hands each message to the party of its node, or computes a round.

In a simulation the server keeps the clients' books, and a node only computes local rounds. In a deployment a node
answers for the client whose data it holds. One app answers both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedforget.errors import FedForgetError, InvalidInput
from fedforget.federation import local_rounds
from fedforget.federation.flower.records import pack, unpack
from fedforget.federation.parcels import Parcel, failure


class Answers(Protocol):
    """What answers for a client: its party, or its open state directory."""

    def answer(self, asked: Parcel) -> Parcel: ...


Open = Callable[[Context], AbstractContextManager[Answers]]
Compute = Callable[[Parcel], Parcel]


def client_app_of(open_party: Open | None = None, compute: Compute | None = None) -> ClientApp:
    """Return a ClientApp that answers for the party of its node, and computes local rounds for any client.

    ``open_party`` keeps other processes from answering for the same client until the block ends.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            answered = _answer(unpack(message.content), context, open_party, compute)
        except FedForgetError as error:
            answered = failure(error)
        return Message(pack(answered), reply_to=message)

    app.train()(answer)
    app.query()(answer)
    return app


def _answer(asked: Parcel, context: Context, open_party: Open | None, compute: Compute | None) -> Parcel:
    kind = asked.body.get("kind")
    if kind == local_rounds.INTRODUCTION:
        return Parcel({"partition": context.node_config.get("partition-id")})
    if kind == local_rounds.LOCAL_ROUND:
        if compute is None:
            raise InvalidInput(
                "this node computes no rounds of a simulation", hint="use fedforget.flower.client_app on both sides"
            )
        return compute(asked)
    if open_party is None:
        raise InvalidInput(
            "this node holds no client's data",
            hint="start it with --node-config \"state-dir='DIR'\"; see docs/flower.md",
        )
    with open_party(context) as party:
        return party.answer(asked)
