"""FedForget: exact federated unlearning.

from fedforget import Plan, Request, Run
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedforget.algorithm.forget import Request
    from fedforget.algorithm.plan import LocalOptimizer, Plan, ServerOptimizer
    from fedforget.errors import FedForgetError
    from fedforget.run import Run

__all__ = ["FedForgetError", "LocalOptimizer", "Plan", "Request", "Run", "ServerOptimizer", "__version__"]

_HOMES = {
    "FedForgetError": "fedforget.errors",
    "LocalOptimizer": "fedforget.algorithm.plan",
    "Plan": "fedforget.algorithm.plan",
    "Request": "fedforget.algorithm.forget",
    "Run": "fedforget.run",
    "ServerOptimizer": "fedforget.algorithm.plan",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    """Load on first use: importing the package costs next to nothing."""
    if name in _HOMES:
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
