"""FedForget as a Flower app: ``server_app`` and ``client_app``. Importing this package needs flwr."""

from fedforget.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
