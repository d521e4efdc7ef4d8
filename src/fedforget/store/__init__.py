"""The run directory on disk. Only this package writes it."""
