"""Disk: the run directory. Nobody else writes it."""
