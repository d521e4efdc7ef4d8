"""FedForget as a Flower app: a ServerApp and a ClientApp from a model, a data function and a plan.

app = server_app(model=build, data=samples_of, clients=range(10), plan=Plan(...))
app = client_app(model=build, data=samples_of)
"""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedforget import builtin
from fedforget.federation.flower_client import client_app_of
from fedforget.federation.flower_processes import end_simulation_of_this_process
from fedforget.federation.flower_relay import serve
from fedforget.session.node_work import NodeWorker

relay = ServerApp()


@relay.main()
def _relay(grid: Grid, context: Context) -> None:
    """Hand on the local rounds of a command to the nodes, until the command ends."""
    serve(grid, str(context.run_config["socket"]))
    end_simulation_of_this_process()


built_in = client_app_of(compute=NodeWorker(builtin.built_of))
