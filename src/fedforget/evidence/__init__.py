"""Proof: laws by enumeration, and replay."""
