"""How the server names what only a client knows: a handle that the client chose stands for one or more samples.

A request that was made at a client goes through the same procedure as any other, with the handle in the place of a
sample id. So the server learns when the samples were first used, and never which ones they are.
"""

from __future__ import annotations

from fedforget.algorithm.ids import Id

WITHDRAWAL, ADDITION = "withdrawal:", "addition:"


def is_withdrawal(sample: Id) -> bool:
    """Return whether an id stands for the samples of a request that was made at a client."""
    return isinstance(sample, str) and sample.startswith(WITHDRAWAL)
