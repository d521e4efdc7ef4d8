"""A post through a socket: the command keeps the run, and Flower's ServerApp only hands on its parcels.

The ServerApp runs on the SuperLink's machine, so the command has to run there, too.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from fedforget.errors import TrainingFailed
from fedforget.federation.parcels import Parcel
from fedforget.federation.post import Address, Letter, Post

_NODES, _PUSH, _PULL = "nodes", "push", "pull"


def serve(post: Post, address: str) -> None:
    """Carry out the orders of the command at a socket, until it closes the connection or ends."""
    with connected(address) as connection:
        connection.send("ready")
        while True:
            connection.send(_carried_out(post, *connection.recv()))


@contextlib.contextmanager
def connected(address: str) -> Iterator[Connection]:
    """Connect to the command at a socket. The block ends when the command closes the connection or ends."""
    with socket.socket(socket.AF_UNIX) as here:
        here.connect(address)
        connection = Connection(here.detach())
    with contextlib.closing(connection), contextlib.suppress(EOFError, OSError):
        yield connection


def _carried_out(post: Post, order: str, given: Any) -> Any:
    if order == _NODES:
        return post.nodes()
    return post.push(given) if order == _PUSH else post.pull(given)


class RelayedPost:
    """A ``Post`` at the end of a connection to ``serve``. ``patience``: seconds that an order may take."""

    def __init__(self, connection: Connection, patience: float = 120.0) -> None:
        self._connection, self._patience = connection, patience

    def nodes(self) -> list[Address]:
        return list(self._ordered(_NODES, None))

    def push(self, parcels: Sequence[tuple[Parcel, Address]]) -> list[str]:
        return list(self._ordered(_PUSH, list(parcels)))

    def pull(self, messages: Sequence[str]) -> list[Letter]:
        return list(self._ordered(_PULL, list(messages))) if messages else []

    def _ordered(self, order: str, given: Any) -> Any:
        try:
            self._connection.send((order, given))
            if not self._connection.poll(self._patience):
                raise TrainingFailed(
                    f"Flower's ServerApp has not answered for {self._patience:g} s", hint="give the same command again"
                )
            return self._connection.recv()
        except (OSError, EOFError) as error:
            raise TrainingFailed(
                "Flower's ServerApp has ended before it had answered",
                hint="see the SuperLink's log, start it again if it is down, and give the same command again",
            ) from error

    def close(self) -> None:
        self._connection.close()
