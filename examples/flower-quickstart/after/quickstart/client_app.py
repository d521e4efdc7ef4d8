"""A client."""

from fedforget.flower import client_app
from quickstart.task import Net, samples_of

app = client_app(model=Net, data=samples_of)
