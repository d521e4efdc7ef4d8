"""One client of a deployment on its own machine: its state directory, its requests, its receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedforget.client_side.client_state import ClientState
    from fedforget.client_side.opened import open_client

__all__ = ["ClientState", "open_client"]

_HOMES = {
    "ClientState": "fedforget.client_side.client_state",
    "open_client": "fedforget.client_side.opened",
}


def __getattr__(name: str) -> Any:
    """Load on first use."""
    if name in _HOMES:
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
