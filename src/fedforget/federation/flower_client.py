"""The side of a client in Flower: a ClientApp that hands each message to the client's party."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedforget.errors import FedForgetError
from fedforget.federation.flower_records import pack, unpack
from fedforget.federation.parcels import failure
from fedforget.federation.party import ClientParty

Open = Callable[[Context], AbstractContextManager[ClientParty]]


def client_app_of(open_party: Open) -> ClientApp:
    """Return a ClientApp that answers for the party of its node.

    ``open_party`` keeps other processes from answering for the same client until the block ends.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            asked = unpack(message.content)
            with open_party(context) as party:
                answered = party.answer(asked)
        except FedForgetError as error:
            answered = failure(error)
        return Message(pack(answered), reply_to=message)

    app.train()(answer)
    app.query()(answer)
    return app
