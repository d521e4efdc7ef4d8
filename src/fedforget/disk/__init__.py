"""Durable, private files and databases of a run directory. Every read validates what it finds."""
