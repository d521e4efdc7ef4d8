"""The entry of ``python -m fedforget``."""

from fedforget.cli import main

main()
