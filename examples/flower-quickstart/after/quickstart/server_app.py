"""The server."""

from fedforget.flower import server_app
from quickstart.task import CLIENTS, PLAN, Net, samples_of, test_set

app = server_app(model=Net, data=samples_of, test=test_set, clients=range(CLIENTS), plan=PLAN)
