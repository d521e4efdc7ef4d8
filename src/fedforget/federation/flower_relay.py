"""The ServerApp of a simulation that a command started: it hands on what the command asks through a socket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection

from flwr.serverapp import Grid

from fedforget.federation.flower_nodes import GridNodes
from fedforget.federation.parcels import Parcel


def serve(grid: Grid, address: str) -> None:
    """Answer the orders of the command at a socket until it closes the connection, or ends."""
    with socket.socket(socket.AF_UNIX) as here:
        here.connect(address)
        connection = Connection(here.detach())
    nodes = GridNodes(grid)
    with contextlib.closing(connection), contextlib.suppress(EOFError, OSError):
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
