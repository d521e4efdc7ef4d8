"""Checks of every file of a run, and the doctor."""
