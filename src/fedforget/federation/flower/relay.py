"""The ServerApp of a simulation that a command started: it hands on what the command asks through a socket."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from multiprocessing.connection import Connection

from fedforget.federation.flower.nodes import GridNodes
from fedforget.federation.parcels import Parcel
from fedforget.federation.post import Post
from fedforget.federation.post_relay import connected


def serve(post: Post, address: str) -> None:
    """Answer the orders of the command at a socket, until it closes the connection or ends."""
    nodes = GridNodes(post)
    with connected(address) as connection:
        nodes.introduce()
        connection.send("ready")
        while True:
            number, patience, asked = connection.recv()
            nodes.patience = patience
            _carry_out(nodes, connection, number, asked)


def _carry_out(nodes: GridNodes, connection: Connection, number: int, asked: Sequence[Parcel]) -> None:
    """Send each answer as it comes. A new order replaces one whose answers are no longer awaited."""
    with contextlib.closing(nodes.exchange(asked, iter(()))) as answers:
        for place, answer in answers:
            connection.send((number, place, answer))
            if connection.poll(0):
                return
