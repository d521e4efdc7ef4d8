"""A client: computes local rounds on its own images."""

from fedforget.flower import client_app
from flower_mnist.task import build, samples_of

app = client_app(model=build, data=samples_of)
