"""The server: trains, carries out requests that wait, and goes on where it stopped."""

from fedforget.flower import server_app
from flower_mnist.task import CLIENTS, PLAN, build, samples_of, test_set

app = server_app(model=build, data=samples_of, test=test_set, clients=range(CLIENTS), plan=PLAN)
