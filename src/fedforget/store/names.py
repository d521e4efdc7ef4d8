"""The names of the files of a run directory."""

from __future__ import annotations

SERVER = "server.db"
CLIENTS = "clients.db"
RECORD = "record.db"
MODELS = "models"
PRIVATE_KEY = "receipt-key.pem"
PUBLIC_KEY = "receipt-key.pub.pem"
