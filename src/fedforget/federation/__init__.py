"""Reaching clients: one port, several ways, one contract test."""
