"""The command line: wiring only. Data on stdout, progress and errors on stderr."""

from fedforget.cli.app import main

__all__ = ["main"]
