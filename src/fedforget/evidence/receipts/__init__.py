"""Signed receipts: the statement, its envelope, its shape, its key; issuing and checking."""
