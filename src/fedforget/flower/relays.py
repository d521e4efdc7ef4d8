"""The Flower apps that the command line starts: they hand on its messages to the nodes until the command ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedforget import builtin
from fedforget.federation import post_relay
from fedforget.federation.flower.client import client_app_of
from fedforget.federation.flower.post import GridPost
from fedforget.federation.flower.processes import end_simulation_of_this_process
from fedforget.federation.flower.relay import serve
from fedforget.flower.client import Answering, answering, built_in_learning
from fedforget.session.node_work import NodeWorker

# What `--federation flower-simulation` runs

simulation_relay = ServerApp()


@simulation_relay.main()
def _relay_rounds(grid: Grid, context: Context) -> None:
    """Hand on the local rounds of a command to the nodes, until the command ends."""
    serve(GridPost(grid), str(context.run_config["socket"]))
    end_simulation_of_this_process()


# What `--federation flower:NAME` runs

deployment_relay = ServerApp()


@deployment_relay.main()
def _relay_parcels(grid: Grid, context: Context) -> None:
    """Hand on the parcels of a command to the clients, until the command ends."""
    post_relay.serve(GridPost(grid), str(context.run_config["socket"]))


@contextlib.contextmanager
def _built_in_client(context: Context) -> Iterator[Answering]:
    with answering(context.node_config, built_in_learning(context.node_config)) as found:
        yield found


built_in = client_app_of(_built_in_client, compute=NodeWorker(builtin.built_of))
