"""The names of the files of a run directory."""

from __future__ import annotations

SERVER = "server.db"
USES = "uses.db"
BOOKS = tuple(f"clients-{number:x}.book" for number in range(16))  # the number is a power of two
CONTACTS = "contacts.db"  # in place of USES and BOOKS where clients are on other machines
METRICS = "metrics.db"
RECORD = "record.db"
KEYS = "record.keys"
SEALS = "seals"
BROKEN_SEALS = "seals.broken"
MODELS = "models"
PRIVATE_KEY = "receipt-key.pem"
PUBLIC_KEY = "receipt-key.pub.pem"
