"""Checks of every file of a run, the doctor, and repair."""
