"""How the server names what only a client knows: a handle that the client chose stands for one or more samples.

A client asks the server to carry a request out that was made there. The server puts it through the same procedure as
any request, with the handle in the place of a sample id; the client resolves it. So the server learns when the samples
were first used, and never which ones they are.
"""

from __future__ import annotations

from fedforget.algorithm.ids import Id

_WITHDRAWAL, _ADDITION = "withdrawal:", "addition:"


def withdrawal(handle: str) -> str:
    """Return the id that stands for the samples of a withdrawal."""
    return _WITHDRAWAL + handle


def addition(handle: str) -> str:
    """Return the id that stands for the samples of an addition."""
    return _ADDITION + handle


def is_withdrawal(sample: Id) -> bool:
    return isinstance(sample, str) and sample.startswith(_WITHDRAWAL)


def is_addition(sample: Id) -> bool:
    return isinstance(sample, str) and sample.startswith(_ADDITION)


def handle_of(sample: Id) -> str:
    """Return the handle in the id of a withdrawal or an addition."""
    return str(sample).partition(":")[2]
